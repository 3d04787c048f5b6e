"""Silos' rows in files (core/rows.py): so that memory grows with the cohort, and not with the federation.

    checkpoint/rows/own.rows      slots of equal size, one after another; a checkpoint knows which of them is whose

A slot that a kept checkpoint knows is not written again, so checkpoints copy no rows, and a run that was killed at any time goes
on from what its last checkpoint knows. Rows are read and written, not mapped into memory: a full disk is then an error that can
be told, and so is a row that is not what was written (by its checksum). Where a run keeps no folder, the files have no name and
go with it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from feduca.core.arrays import like as of_kind
from feduca.core.rows import Book, Rows, Store
from feduca.errors import CheckpointError, InputError, RunError
from feduca.runs import files
from feduca.types import Array, Ints

FOLDER, ENDING = "rows", ".rows"  # beside the checkpoints of a run
MOST = 1 << 50  # bytes of a file

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}", re.ASCII)


class InFile:
    """Slots of a file, opened when they are first needed; `path` None: of a file without a name."""

    def __init__(self, path: Path | None, empty: Array) -> None:
        self.path = path
        self._empty = empty
        self._shape, self._dtype = tuple(empty.shape[1:]), host(empty).dtype
        self._bytes = int(np.prod(self._shape)) * self._dtype.itemsize
        self._file: BinaryIO | None = None
        self._writing = False
        self.written = 0  # bytes since the last checkpoint

    def read(self, slots: Ints, sums: Ints) -> Array:
        found = np.empty((len(slots), *self._shape), self._dtype)
        rows = found.reshape(len(slots), -1).view(np.uint8)
        try:
            file = self._file or self._open(writing=False)
            for begin, end in _neighbours(slots):
                file.seek(int(slots[begin]) * self._bytes)
                _fill(file, rows[begin:end].reshape(-1).data)
        except OSError as error:
            raise RunError(f"cannot read {self._called}: {error.strerror}; is its disk there?") from None
        except EOFError:
            raise CheckpointError(self._damaged) from None
        if not np.array_equal(_sums(rows), sums):
            raise CheckpointError(self._damaged)
        return of_kind(self._empty, found)

    def write(self, slots: Ints, rows: Array) -> Ints:
        raw = np.ascontiguousarray(host(rows), self._dtype).reshape(len(slots), -1).view(np.uint8)
        try:
            file = self._file if self._writing and self._file is not None else self._open(writing=True)
            for begin, end in _neighbours(slots):
                file.seek(int(slots[begin]) * self._bytes)
                left = raw[begin:end].reshape(-1).data
                while len(left):
                    left = left[file.write(left) :]
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            todo = "free some space" if full else "make it writable"
            more = (
                f"{todo}, then go on with `feduca resume`" if self.path else f"{todo}, or set TMPDIR to another folder"
            )
            raise RunError(f"cannot write to {self._called}: {error.strerror}; {more}") from None
        self.written += raw.size
        return _sums(raw)

    def sync(self) -> None:
        """Wait until all of it is on the disk."""
        if self._writing and self._file is not None:
            os.fsync(self._file.fileno())
        self.written = 0

    @property
    def _called(self) -> Path | str:
        return self.path or f"a file of silos' models in {tempfile.gettempdir()}"

    @property
    def _damaged(self) -> str:
        return (
            f"{self._called} is not what the run wrote there (checksum); go back to an earlier checkpoint with"
            " `feduca resume --to-round`, or repeat the run with --again"
        )

    def _open(self, *, writing: bool) -> BinaryIO:
        if self.path is None:
            found = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, it is there as long as the rows are
        elif self.path.parent.is_symlink():
            raise InputError(f"{self.path.parent} is a link; links in a run directory are not followed")
        elif writing:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = files.changing(self.path)
        else:
            found = files.opened(self.path, MOST)
        if self._file is not None:
            self._file.close()
        self._file, self._writing = found, writing or self.path is None
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    __del__ = close


class OnDisk(Store):
    """Makes Rows in files of `folder`, or without a folder in files that go with the run."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._books: dict[str, Book] = {}

    def book(self, name: str, empty: Array) -> Book:
        if name not in self._books:
            path = None if self.folder is None else self.folder / f"{_file_name(name)}{ENDING}"
            self._books[name] = Book(InFile(path, empty), empty)
        return self._books[name]

    def check_room(self, needed: int) -> None:
        """Refuse a run whose rows the disk has no room for, before anything is computed."""
        where = self.folder or Path(tempfile.gettempdir())
        there = sum(path.stat().st_size for path in where.glob(f"*{ENDING}")) if self.folder else 0
        while not where.exists():
            where = where.parent
        free = shutil.disk_usage(where).free
        if needed - there > free:
            raise InputError(
                f"what is kept of silos takes about {needed / 2**30:.3g} GiB on the disk, and {where} has {free / 2**30:.3g} GiB"
                f" free; free some space, or choose another disk with {'--out' if self.folder else '--out or TMPDIR'}"
            )


def slots_of(rows: Rows) -> InFile | None:
    """Where they lie, if that is a file."""
    return rows.book.slots if isinstance(rows.book.slots, InFile) else None


def name_of(rows: Rows) -> str:
    """The name of their file; those of a folder are copied to another under the same."""
    there = slots_of(rows)
    return "" if there is None or there.path is None else there.path.name.removesuffix(ENDING)


def copied(rows: Rows, folder: Path) -> Rows:
    """The same rows in a file of another folder."""
    found = Rows.blank(OnDisk(folder).book(name_of(rows), rows.book.empty), len(rows))
    for some in rows.portions(rows.there):
        found = found.put(some, rows.take(some))
    return found


def described(rows: Rows, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a checkpoint beside `folder` keeps of rows: words, and arrays. Those in files are on the disk when this returns."""
    there = slots_of(rows)
    about: dict[str, Any] = {"silos": len(rows)}
    if there is None:
        return about, {"who": rows.there, "rows": host(rows.take(rows.there))}
    if there.path is None or there.path.parent != folder:
        return described(copied(rows, folder), folder)
    there.sync()
    return {**about, "file": name_of(rows)}, {"slots": rows.slots, "sums": rows.sums, "empty": host(rows.book.empty)}


def read_back(about: dict[str, Any], parts: dict[str, Array], store: OnDisk) -> Rows:
    """The rows that `described` told of; ValueError where that makes no sense."""
    n = about["silos"]
    if type(n) is not int or n < 1:
        raise ValueError(f"rows of {str(n)[:40]} silos")
    if "file" not in about:
        who, rows = parts["who"], parts["rows"]
        if who.ndim != 1 or who.dtype.kind != "i" or len(who) != len(rows) or ((who < 0) | (who >= n)).any():
            raise ValueError("rows of other silos than there are")
        return Rows.blank(Store().book("", rows[:0]), n).put(who, rows)
    name, slots, sums = about["file"], parts["slots"], parts["sums"]
    fits = slots.shape == sums.shape == (n,) and slots.dtype.kind == "i" and sums.dtype == np.uint32
    if not (isinstance(name, str) and _PLAIN.fullmatch(name) and fits and (slots >= -1).all() and (slots < MOST).all()):
        raise ValueError("rows of a file without their places")
    book = store.book(name, parts["empty"])
    if book.empty.shape != parts["empty"].shape or len(book.empty):
        raise ValueError(f"rows of {name} are not as long as they were")
    rows = Rows(book, slots, sums)
    book.found(rows)
    return rows


def host(x: Array) -> np.ndarray:
    """A numpy view or copy; numpy has no bfloat16, and float32 holds it exactly."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def _file_name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:16]


def _neighbours(slots: Ints) -> Iterator[tuple[int, int]]:
    """From where to where slots lie one behind the other: so much is one access."""
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    ends = [0, *cuts.tolist(), len(slots)]
    return ((a, b) for a, b in pairwise(ends) if b > a)


def _fill(file: BinaryIO, room: memoryview) -> None:
    while len(room):
        count = file.readinto(room)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        room = room[count:]


def _sums(rows: np.ndarray) -> Ints:
    return np.array([zlib.crc32(row) for row in rows], np.uint32)
