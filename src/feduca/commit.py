"""Which commit of feduca is running."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path


def commit() -> str | None:
    """The commit this code is at, where it is a checkout (a trailing + marks uncommitted changes).

    On a machine that gets the files without their history, FEDUCA_COMMIT says it.
    """
    return os.environ.get("FEDUCA_COMMIT") or _checkout()


@functools.cache  # what is committed while a process runs is not what it runs
def _checkout() -> str | None:
    here = Path(__file__).parent  # the package: summaries that are being written do not count as changes
    try:
        run = {"cwd": here, "capture_output": True, "text": True, "timeout": 10, "check": True}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **run).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no", "."], **run).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if dirty else "")
