"""What the command line writes to: progress that nobody can read ends no training."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


class Unheard:
    """A stream for messages: where they cannot be written (a full disk, a closed pipe, a lost terminal) they are dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def give_up_stdout() -> None:
    """Nobody reads on, or the disk behind it is full: what is buffered must not fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
