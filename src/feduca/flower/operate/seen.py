"""What is known of a server's run from what it leaves on the disk, read a little further with every look.

Nothing is asked of the run itself. Its records may be cut (a resume, a rollback) or begin anew: then they are read again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feduca.errors import FeducaError
from feduca.flower import deploy
from feduca.flower.failures import numberless
from feduca.flower.folder import ServerFolder
from feduca.flower.operate import log as events
from feduca.flower.processes import alive
from feduca.report.cleaning import letters, number, text
from feduca.runs import files, lines, manifest, rollback
from feduca.types import ABSENT, DECLINED, JOINED, LEFT, REFUSED

STATUSES = (JOINED, DECLINED, ABSENT, REFUSED, LEFT)
_NAMED = {status[0]: status for status in STATUSES}

CLASSES = (  # why a silo declined: what its words begin with or hold, and what that is called
    ("policy", ("declined: policy", "policy")),
    ("threshold", ("is below gamma",)),
    ("tie", ("tie at confidence", "no gain", "equal ")),
    ("no better", ("does not beat", "no point on the way", "nothing beat", "no offer")),
    ("alone", ("stays alone",)),
)
OTHER = "other"


def class_of(reason: str) -> str:
    """A silo's own words as one of a few classes: no figure of it, and no end of different ones."""
    return next((name for name, words in CLASSES if any(word in reason for word in words)), OTHER)


class Tail:
    """The complete lines of a growing file, each once; `fresh` after it was cut or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place, self._file, self._last = 0, 0, b""

    def new(self) -> tuple[bool, list[bytes]]:
        """Whether one has to begin again, and the lines that came."""
        try:
            with files.opened(self.path, files.LARGE) as file:
                stat = os.fstat(file.fileno())
                file.seek(max(0, self._place - len(self._last)))
                same = stat.st_ino == self._file and file.read(len(self._last)) == self._last
                again = bool(self._place) and not same
                if not same:
                    self._place, self._last, self._file = 0, b"", stat.st_ino
                    file.seek(0)
                found = []
                for line in lines.each(file, self.path):
                    if not line.endswith(b"\n"):
                        break
                    found.append(line)
                    self._place += len(line)
                    self._last = line
                return again, found
        except (OSError, FeducaError):
            again, self._place, self._last = bool(self._place), 0, b""
            return again, []


class Seen:
    """One run, as far as it has come. `look` goes on reading."""

    def __init__(self, path: Path, planned: int) -> None:
        self.path, self.planned = path, planned
        self.name = f"{path.parent.name}/{path.name}"
        self.state, self.reason = "none", ""
        self.said = 0.0  # when its status was written: as it began, was gone on with, waited or waits no longer
        self.silos: list[str] = []
        self.rolled_back: list[int] = []  # to which rounds, one after the other
        self._rounds, self._clients = Tail(path / manifest.ROUNDS), Tail(path / manifest.CLIENTS)
        self._events = Tail(path / rollback.EVENTS)
        self._clear()

    def _clear(self) -> None:
        self.round, self.changed = 0, 0.0  # the last finished one, and when that was
        self.last: Mapping[str, Any] = {}  # its record
        self.status: list[str] = []  # of every silo, in the server's order, in the last round ...
        self.why: list[str] = []  # ... with the class of the reason of those who declined
        self.silent: list[int] = []  # rounds in a row without an answer
        self.totals: Counter[str] = Counter()  # silo-rounds by status, bytes
        self.seconds: Counter[str] = Counter()  # by phase
        self.rounds: list[tuple[int, list[str]]] = []  # what the last look brought

    def look(self) -> None:
        self._state()
        (cut, rounds), (cut_too, clients) = self._rounds.new(), self._clients.new()
        if cut or cut_too:
            self._clear()
            self._rounds, self._clients = Tail(self._rounds.path), Tail(self._clients.path)
            (_, rounds), (_, clients) = self._rounds.new(), self._clients.new()
        self.rounds = []
        for item in _objects(rounds, None):
            self._one_round(item)
        for item in _objects(clients, ("round", "status", "reason")):
            self._one_row(item)
        for item in _objects(self._events.new()[1], None):
            if item.get("event") == "rolled back":
                self.rolled_back.append(int(number(item.get("round")) or 0))

    @property
    def waits(self) -> str:
        """For what a run that goes on waits, or nothing."""
        return self.reason if self.state == "running" else ""

    def name_of(self, k: int) -> str:
        return self.silos[k] if k < len(self.silos) else f"silo-{k}"

    def _state(self) -> None:
        with contextlib.suppress(OSError, ValueError, FeducaError):
            told = files.read_json(self.path / manifest.STATUS)
            self.state, self.reason = text(told.get("state")) or "none", text(told.get("reason"))
            self.said = (self.path / manifest.STATUS).stat().st_mtime
        with contextlib.suppress(OSError, ValueError, FeducaError, LookupError, TypeError):
            self.silos = [text(one["name"]) for one in files.read_json(self.path / manifest.SILOS)["silos"]]

    def _one_round(self, item: Mapping[str, Any]) -> None:
        self.round, self.last = int(number(item.get("round")) or self.round), item
        with contextlib.suppress(OSError):
            self.changed = (self.path / manifest.ROUNDS).stat().st_mtime
        for name in ("bytes_up", "bytes_down"):
            self.totals[name] += int(number(item.get(name)) or 0)
        clocks = item.get("seconds")
        for phase, value in clocks.items() if isinstance(clocks, dict) else ():
            self.seconds[str(phase)] += number(value) or 0.0  # type: ignore[assignment]

    def _one_row(self, item: Mapping[str, Any]) -> None:
        words, reasons = item.get("status"), item.get("reason")
        if not isinstance(words, list) or not isinstance(reasons, list) or len(words) != len(reasons):
            return
        self.status = [_NAMED[letter] for letter in letters(words)]
        self.why = [class_of(str(r)) if s == DECLINED else "" for s, r in zip(self.status, reasons)]
        before = [*self.silent, *[0] * len(words)]
        self.silent = [silent + 1 if s == ABSENT else 0 for s, silent in zip(self.status, before)]
        self.totals.update(self.status)
        self.rounds.append((int(number(item.get("round")) or 0), self.status))


def _objects(found: list[bytes], only: tuple[str, ...] | None) -> Iterator[dict[str, Any]]:
    for line in found:
        with contextlib.suppress(ValueError, RecursionError):
            item = lines.decoded(line, only)
            if isinstance(item, dict):
                yield item


class Warned:
    """What the server app warns of from now on, for whoever waits at a terminal: each thing once, not in every round."""

    def __init__(self, server: ServerFolder) -> None:
        self._tail = Tail(server.path / events.NAME)
        self._tail.new()
        self._said: dict[tuple[str, str], str] = {}

    def new(self) -> Iterator[str]:
        for item in _objects(self._tail.new()[1], None):
            if item.get("from") != "app" or item.get("level") not in ("warning", "error"):
                continue
            about, words = (str(item.get("event")), str(item.get("silo"))), text(item.get("text"))
            said = numberless(words)
            if self._said.get(about) != said:
                self._said[about] = said
                yield words


class Watched:
    """The run that the server's folder is about now, and its app's process."""

    def __init__(self, server: ServerFolder) -> None:
        self.server = server
        self.run: Seen | None = None
        self.problem = ""  # why there is no run to look at
        self._recipe: tuple[int, ...] = ()  # the file that was read
        self.app_alive = False
        self.app_since = 0.0  # when that app began, by the wall clock

    def look(self) -> None:
        if (recipe := self._stamp()) != self._recipe:  # reading it takes a while, and it hardly ever changes
            try:
                path, planned = deploy.run_directory(self.server).path, deploy.recipe_of(self.server).rounds
                self.problem = ""
            except FeducaError as error:
                self.problem = str(error)
            else:
                if self.run is None or self.run.path != path:
                    self.run = Seen(path, planned)
            self._recipe = recipe
        if self.run is not None:
            self.run.look()
        self._app()

    def _stamp(self) -> tuple[int, ...]:
        try:
            seen = (self.server.path / "app" / "recipe.toml").stat()
            return seen.st_mtime_ns, seen.st_size, seen.st_ino
        except OSError:
            return (0,)

    def _app(self) -> None:
        path = self.server.path / deploy.RUNNING
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            self.app_alive = bool(told["since"]) and bool(alive([(int(told["pid"]), str(told["since"]))]))
            self.app_since = path.stat().st_mtime
        except (OSError, ValueError, LookupError, TypeError):
            self.app_alive = False

    def overdue(self) -> float:
        """By how many seconds the round that goes on is overdue; 0 where it is not."""
        if self.run is None or self.run.state != "running" or self.run.waits:
            return 0.0
        most = (
            self.server.operate.overdue
            or sum(float(self.server.settings.get(name, 0.0)) for name in ("round-timeout", "silos-timeout")) + 60.0
        )
        since = max(self.run.changed, self.run.said, self.app_since)
        return max(0.0, time.time() - since - most) if since else 0.0
