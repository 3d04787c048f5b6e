"""Records of many rounds that do not stay in memory: lines of a run's file, or packed where a run has no file.

A line is JSON. A round of thousands of silos has megabytes of it, so in a long line each large column is `{"$zlib": "..."}`
instead: its JSON, compressed, in base64. Columns are packed one by one, so that who wants one of them unpacks only that.
A line of a cohort has entries of those who were asked, and reads as one of all silos (core/records.py).
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

from feduca.core.records import COHORT, of_all
from feduca.errors import InputError
from feduca.runs import files

Record = dict[str, Any]

LONG = 128 << 10  # characters of a line; from here on its columns are packed
COLUMN = 1 << 10  # characters of a column that is worth it
MOST = 64 << 20  # bytes of a line, and of all of its columns unpacked
LEVEL = 3  # of zlib: a tenth longer than the best, in a fifth of the time
PACKED = "$zlib"


def encoded(item: Mapping[str, Any]) -> bytes:
    """A record as a line of its file."""
    parts = {json.dumps(str(key)): json.dumps(value, separators=(",", ":")) for key, value in item.items()}
    if sum(map(len, parts.values())) > LONG:
        parts = {key: _packed(part) if len(part) > COLUMN else part for key, part in parts.items()}
    return ("{" + ",".join(f"{key}:{part}" for key, part in parts.items()) + "}\n").encode()


def decoded(line: bytes, only: Container[str] | None = None) -> Any:
    """What a line says, or `only` some of its columns. ValueError where that is no JSON, or unpacks to more than MOST."""
    item, room = json.loads(line), MOST
    if not isinstance(item, dict):
        return item
    found = {}
    for key, value in item.items():
        if only is not None and key not in only and key != COHORT:
            continue
        if isinstance(value, dict) and value.keys() == {PACKED}:
            text = _unpacked(value[PACKED], room)
            room -= len(text)
            value = json.loads(text)
        found[key] = value
    return of_all(found)


def _packed(text: str) -> str:
    return json.dumps({PACKED: base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()})


def _unpacked(text: Any, most: int) -> bytes:
    if not isinstance(text, str):
        raise ValueError("a packed column is not text")
    worker = zlib.decompressobj()
    try:
        found = worker.decompress(base64.b64decode(text, validate=True), most + 1)
    except (ValueError, zlib.error) as error:  # base64's, too
        raise ValueError(f"a packed column cannot be unpacked ({error})") from None
    if len(found) > most or not worker.eof or worker.unused_data:
        raise ValueError("a packed column is cut off or too long")
    return found


def columns(records: Sequence[Mapping[str, Any]], *names: str) -> Iterator[Mapping[str, Any]]:
    """These columns of all records, one after the other; the others are not unpacked where they are packed."""
    for i in range(len(records)):
        yield records.one(i, names) if isinstance(records, Records) else records[i]


def each(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines from where a file stands. InputError where one is longer than a record can be."""
    while line := file.readline(MOST + 1):
        if len(line) > MOST:
            raise InputError(f"{path} has a line of more than {MOST} bytes; this is not a run's record")
        yield line


class Records(Sequence[Record]):
    """Looks like a list of JSON objects; each is made when somebody asks for it."""

    def one(self, i: int, only: Container[str] | None = None) -> Record:
        """The record at `i`, or `only` some of its columns."""
        raise NotImplementedError

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | Sequence[Record]:
        place = range(len(self))[i]
        return self.one(place) if isinstance(place, int) else _Chosen(self, place)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


class Lines(Records):
    """Lines of a file, known by where they end and by a checksum each; the file may grow, its lines may not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends, self._sums = array("Q"), array("L")

    @classmethod
    def of(cls, path: Path, whole: bool = True) -> Lines:
        """What is in a file; unless it is `whole`, a last line without its end is not written yet, or never was."""
        found = cls(path)
        with files.opened(path, files.LARGE) as file:
            for line in each(file, path):
                if whole or line.endswith(b"\n"):
                    found.note(line)
        return found

    def note(self, line: bytes) -> None:
        """One more line, which is at the end of the file now."""
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))
        self._sums.append(zlib.crc32(line))

    def __len__(self) -> int:
        return len(self._ends)

    def one(self, i: int, only: Container[str] | None = None) -> Record:
        start = self._ends[i - 1] if i else 0
        try:
            with files.opened(self._path, files.LARGE) as file:
                file.seek(start)
                line = file.read(self._ends[i] - start)
        except OSError as error:
            raise InputError(
                f"{self._path} was there when the run was read and cannot be read now ({error.strerror});"
                " load the run again from where it is"
            ) from None
        if zlib.crc32(line) != self._sums[i]:
            raise InputError(f"{self._path} has changed since it was read; load the run again")
        return decoded(line, only)


class Packed(Records):
    """Records in memory, as compressed text: about a tenth of what the objects take."""

    def __init__(self, items: Iterable[Record] = ()) -> None:
        self._items: list[bytes] = []
        for item in items:
            self.append(item)

    def append(self, item: Record) -> None:
        self._items.append(zlib.compress(json.dumps(item).encode(), 1))

    def __len__(self) -> int:
        return len(self._items)

    def one(self, i: int, only: Container[str] | None = None) -> Record:
        item = json.loads(zlib.decompress(self._items[i]))
        if only is not None:
            item = {key: value for key, value in item.items() if key in only or key == COHORT}
        return dict(of_all(item))


class _Chosen(Records):
    """A slice of other records."""

    def __init__(self, whole: Records, places: range) -> None:
        self._whole, self._places = whole, places

    def __len__(self) -> int:
        return len(self._places)

    def one(self, i: int, only: Container[str] | None = None) -> Record:
        return self._whole.one(self._places[i], only)
