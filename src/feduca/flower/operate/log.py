"""The server's log: one JSON object per line, of all its programs, in `log.jsonl` of its folder.

    {"time": "2026-03-01T09:30:00.123Z", "level": "warning", "from": "app", "event": "absent", "round": 7, "silo": "north",
     "text": "round 7: north absent: its node is not connected"}

`round` and `silo` are there where the event has them. One program (the supervisor) starts a new file when one is full; the
others notice and follow. Lines are appended whole, so that programs do not write into each other's.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from logging.handlers import WatchedFileHandler
from pathlib import Path

from feduca.errors import printable
from feduca.flower import logs

NAME = "log.jsonl"
OUTSIDE = ("event", "round", "silo")  # what a caller gives as `extra`


class Lines(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        when = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        said = {"time": when.replace("+00:00", "Z"), "level": record.levelname.lower(), "from": self._program}
        said |= {"event": "note"}
        said |= {name: value for name in OUTSIDE if (value := getattr(record, name, None)) is not None}
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        return json.dumps({**said, "text": printable(text)})


class Rotating(logs.Private):
    """Its own lines and others' make it full."""

    def look(self) -> None:
        """Start a new file if others have filled this one."""
        self.acquire()
        try:
            if self.shouldRollover(logging.makeLogRecord({})):
                self.doRollover()
        finally:
            self.release()


class _Following(logs.OwnersAlone, WatchedFileHandler):
    """Opens the new file when the supervisor has begun one."""


def begin(folder: Path, program: str, *, rotate: bool = False) -> logging.Handler:
    """Let this process's events go to the log of a server's folder from now on."""
    path = folder / NAME
    if rotate:
        handler: logging.FileHandler = Rotating(path, maxBytes=logs.BYTES, backupCount=logs.OLDER)
    else:
        handler = _Following(path)
    handler.setFormatter(Lines(program))
    logger = logging.getLogger("feduca")
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.level or logging.INFO))
    return handler


def end(handler: logging.Handler) -> None:
    logging.getLogger("feduca").removeHandler(handler)
    handler.close()
