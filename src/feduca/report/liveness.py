"""Is anybody still writing a run that says it is running? A killed process cannot say that it was.

A run's folder is locked by whoever writes it. Taking the lock to see whether it is free could turn a writer away, so it is only
looked for in the system's list (Linux). Where that list does not show it, the run may still be written on another machine: it is
called silent only when nothing has changed for much longer than a round takes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from feduca.runs.locks import LOCK

LOCKS = Path("/proc/locks")
PATIENCE = 60.0  # seconds without a change, at least ...
ROUNDS = 10  # ... and so many rounds' time


def silent(folder: Path, round_seconds: float) -> float | None:
    """For how many seconds nothing was written, where that means that nobody is writing; None where somebody may be."""
    try:
        age = time.time() - max(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder))
    except (OSError, ValueError):
        return None
    if age < max(PATIENCE, ROUNDS * round_seconds) or _held(folder):
        return None
    return age


def _held(folder: Path) -> bool:
    """Whether a process of this machine is seen to hold the folder's lock."""
    try:
        lock = (folder / LOCK).stat(follow_symlinks=False)
        listed = LOCKS.read_text(encoding="utf-8")
    except OSError:
        return False
    where = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    return any(where in line.split() for line in listed.splitlines())


def lapse(seconds: float) -> str:
    """A stretch of time, in words."""
    for size, unit, most in ((1, "s", 90), (60, "min", 5400), (3600, "h", 172_800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
