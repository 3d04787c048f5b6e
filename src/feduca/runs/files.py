"""Files of a run directory: opened with suspicion, written whole or not at all.

A directory may come from a stranger. A link in it could show what lies elsewhere on this machine, and a device or a pipe never
ends. So what is opened here is a plain file of bounded size, or it is refused in one line.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from feduca.errors import InputError, shown

SMALL = 2 << 20  # bytes of config.toml, env.json, status.json
LARGE = 64 << 30  # of records, which are read piece by piece, and of models

_SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def opened(path: Path, most: int = SMALL) -> BinaryIO:
    """A plain file of at most `most` bytes, for reading. OSError where there is none; InputError where it is something else."""
    try:
        handle = os.open(path, os.O_RDONLY | _SAFELY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise InputError(
                f"{path} is a link; links in a run directory are not followed: put the file in its place"
            ) from None
        if error.errno == errno.ENXIO:
            raise InputError(_strange(path)) from None
        raise
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            raise InputError(_strange(path))
        if seen.st_size > most:
            raise InputError(f"{path} is {seen.st_size} bytes; more than {most} is not a run's {path.name}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _strange(path: Path) -> str:
    return f"{path} is not a plain file; remove it: a run directory holds nothing else"


def read(path: Path, most: int = SMALL) -> bytes:
    """All of a plain file, as long as it is now."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_json(path: Path) -> Any:
    """A small JSON file; OSError or ValueError where there is none."""
    try:
        return json.loads(read(path))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def place(value: Any, what: str = "run directory") -> Path:
    """A path that somebody gave; what is none is refused in one line."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(
            f"the {what} is {shown(value)}: give its path, which `feduca.run(..., out=...)` has as run_dir"
        )
    return Path(value)


def digest(path: Path, first: int | None = None) -> str | None:
    """The SHA-256 of a plain file, or of its `first` bytes; None where there is no such file or it is shorter."""
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    if time.time() - seen.st_ctime < 2:  # clocks of file systems are coarse: it may change again and look the same
        return _digest(path, first)
    return _known_digest(path, first, (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))


@functools.lru_cache(maxsize=4096)  # a list of runs asks again and again
def _known_digest(path: Path, first: int | None, version: tuple[int, ...]) -> str | None:
    return _digest(path, first)


def _digest(path: Path, first: int | None) -> str | None:
    try:
        return hashed(path, first).hexdigest()
    except (OSError, EOFError):
        return None


def hashed(path: Path, first: int | None) -> hashlib._Hash:
    """A file's SHA-256, to be gone on with; EOFError where it is shorter than `first` bytes."""
    found = hashlib.sha256()
    with opened(path, LARGE) as file:
        left = os.fstat(file.fileno()).st_size if first is None else first
        while left and (piece := file.read(min(left, 1 << 20))):
            found.update(piece)
            left -= len(piece)
    if left:
        raise EOFError(f"{path} is shorter than {first} bytes")
    return found


def appending(path: Path) -> BinaryIO:
    """A file to write to the end of; never the target of a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY, 0o666), "ab")


def changing(path: Path) -> BinaryIO:
    """A file to read and to change in place, made where there is none; never the target of a link, nor what a backup shares."""
    with contextlib.suppress(FileNotFoundError):
        unshared(path)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o666), "r+b", buffering=0)


def unshared(path: Path) -> None:
    """A file that is to be changed in place gets content of its own: a backup may share it through a hard link."""
    if os.lstat(path).st_nlink > 1:
        with opened(path, LARGE) as source, _replacing(path) as file:
            shutil.copyfileobj(source, file, 1 << 20)


def write_whole(path: Path, content: str | bytes) -> None:
    """Whole or not at all, and on the disk: a reader never sees half a file, and a full disk leaves none behind."""
    with _replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place once it is whole and on the disk."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # it may be a link
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_output(path: Path, content: str | bytes) -> None:
    """The same where a user said; through a link, and into a device or a pipe as it is."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        write_whole(path, content)


def remove(path: Path) -> None:
    """A file, a folder with everything in it, or a link without what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_writable(root: Path, option: str = "--out") -> None:
    """Find out before any work is done that results can be written; leaves nothing behind."""
    root = Path(root)
    existing = root
    while not existing.exists():
        existing = existing.parent
    what = None if existing.is_dir() else "is not a folder"
    if what is None:
        try:  # permissions alone do not tell: think of /proc, or of a disk mounted read-only
            with tempfile.TemporaryFile(dir=existing):  # a file without a name: nobody who lists the folder sees it
                pass
        except OSError as error:
            what = f"is not writable ({error.strerror})"
    if what is not None:
        raise InputError(f"cannot write results to {root}: {existing} {what}; choose another folder with {option}")


def without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is unset is left out."""
    return {k: without_none(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}
