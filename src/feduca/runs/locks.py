"""One process at a time: locks on folders, which end with the process that holds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = ".lock"  # the file in the folder that is locked; empty, and left behind


def locked(folder: Path) -> BaseFileLock | None:
    """A lock on `folder`, to be released; BlockingIOError where somebody holds it, None where there are no such locks."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"{folder} is locked") from None
    except NotImplementedError:  # not on this file system
        return None
    return lock


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nobody else who asks for the folder has it meanwhile: processes and threads wait here for each other."""
    from filelock import FileLock

    try:
        lock = FileLock(folder / LOCK)
        lock.acquire()
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        lock.release()
