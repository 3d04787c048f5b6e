"""Log files of other programs: a time before every line, no colour codes, a new file when one is full, for their user only."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

BYTES, OLDER = 5_000_000, 4  # a file's length, and how many older ones stay
LINE = 20_000  # bytes of one line

_CODES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class OwnersAlone(logging.FileHandler):
    """A file that nobody but its user can read."""

    def _open(self) -> io.TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return io.TextIOWrapper(os.fdopen(handle, "ab"), encoding="utf-8", line_buffering=True)


class Private(OwnersAlone, RotatingFileHandler):
    """... and that is not longer than so much."""


class Log:
    """Copies what a program says to a file, until it and all that share its output have ended."""

    def __init__(self, path: Path, source: IO[bytes]) -> None:
        self._file = Private(path, maxBytes=BYTES, backupCount=OLDER)
        self._source = source
        self._thread = threading.Thread(target=self._copy, name=f"log of {path.name}", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        with self._source:
            while line := self._source.readline(LINE):
                text = _CODES.sub("", line.decode("utf-8", "replace")).rstrip()
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._file.emit(logging.makeLogRecord({"msg": f"{when} {text}".rstrip()}))
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._file.close()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
