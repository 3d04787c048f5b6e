"""Watches a server's run from beside it, and tells: metrics and health over HTTP, alerts by hooks, all events in the log."""

from __future__ import annotations

import logging
import threading
import time

from feduca.flower.folder import ServerFolder
from feduca.flower.operate import health, metrics
from feduca.flower.operate import log as events
from feduca.flower.operate.alerts import Event, Hooks
from feduca.flower.operate.seen import Seen, Watched
from feduca.flower.operate.serving import Answer, Served
from feduca.flower.operate.settings import ABSENT, BACK, DIED, FAILED, LEFT, WAITS
from feduca.types import ABSENT as SILENT
from feduca.types import LEFT as GONE
from feduca.types import REFUSED

log = logging.getLogger("feduca")

EVERY_S = 1.0  # between two looks
FRESH_S = 2.0  # how old an answer about health may be
GRACE_S = 5.0  # so long an app may be gone while its run says that it goes on: it may be writing its last word
KILLED = "the process of the server app was killed"  # deploy.follow writes it


class Monitor:
    """Runs in a thread of the process that started the SuperLink, from construction until `close`."""

    def __init__(self, server: ServerFolder, handler: logging.Handler | None = None) -> None:
        self.watched = Watched(server)
        self.hooks = Hooks(server.operate.alert)
        self._handler = handler
        self._known: Seen | None = None  # whose past was not told of
        self._left: set[int] = set()
        self._state, self._waits, self._back = "", "", 0
        self._gone_since: float | None = None
        self._said_gone = False
        self._lock, self._checked, self._complaint = threading.Lock(), 0.0, ""
        self._trouble = ""
        self._stop = threading.Event()
        self._served = self._serve(server)
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        if self._served is not None:
            self._served.close()
        self.hooks.close()

    def _serve(self, server: ServerFolder) -> Served | None:
        """A port that is taken costs the metrics, not the federation."""
        address = server.operate.metrics
        if address is None:
            return None
        try:
            return Served(address, {"/metrics": self._metrics, "/health": self._health})
        except OSError as error:
            log.warning(
                "no metrics: %s:%d cannot be listened on (%s); change metrics in server.toml",
                *address,
                error.strerror,
                extra={"event": "no-metrics"},
            )
            return None

    def _run(self) -> None:
        while True:
            try:
                self.look()
                self._trouble = ""
            except Exception as error:  # what cannot be read now may be read in a second
                if str(error) != self._trouble:
                    log.warning("the run cannot be watched: %r", error, extra={"event": "monitor"})
                self._trouble = str(error)
            if self._stop.wait(EVERY_S):
                return

    def look(self) -> None:
        """One look at the disk, and word of what is new."""
        if isinstance(self._handler, events.Rotating):
            self._handler.look()
        with self._lock:
            self.watched.look()
        run = self.watched.run
        if run is None:
            return
        if run is not self._known:  # what was so before this program began is no news
            self._known, self._left, self._state, self._waits = run, self._gone(run), run.state, run.waits
            self._back = len(run.rolled_back)
            self._gone_since, self._said_gone = None, False
        else:
            self._news(run)
        self._app(run)

    def _news(self, run: Seen) -> None:
        for number, status in run.rounds:
            if status and all(word in (SILENT, REFUSED, GONE) for word in status):
                self._tell(FAILED, run, number)
        for k in sorted(self._gone(run) - self._left):
            self._tell(LEFT, run, run.round, k)
        self._left = self._gone(run)
        if run.rounds:
            most = self.watched.server.operate.alert.absent_rounds
            for k, silent in enumerate(run.silent):
                if most <= silent < most + len(run.rounds):  # in one of the rounds that this look brought
                    self._tell(ABSENT, run, run.round, k, most)
        for number in run.rolled_back[self._back :]:
            self._tell(BACK, run, number)
        rolled, self._back = len(run.rolled_back) > self._back, len(run.rolled_back)
        died = run.reason == KILLED
        ended = run.state != self._state and run.state in ("failed", "interrupted") and not rolled
        if ended and not (died and self._said_gone):
            self._tell(DIED if died else FAILED, run, run.round + 1)
        if run.waits and not self._waits:
            self._tell(WAITS, run, run.round + 1)
        self._state, self._waits = run.state, run.waits

    def _app(self, run: Seen) -> None:
        """The app is gone while its run says that it goes on."""
        if self.watched.app_alive or run.state != "running":
            self._gone_since = None
            self._said_gone &= not self.watched.app_alive
            return
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since >= GRACE_S and not self._said_gone:
            self._said_gone = True
            self._tell(DIED, run, run.round + 1)

    def _gone(self, run: Seen) -> set[int]:
        return {k for k, word in enumerate(run.status) if word == GONE}

    def _tell(self, what: str, run: Seen, round: int, k: int | None = None, rounds: int = 0) -> None:
        self.hooks.tell(Event(what, run.name, round, "" if k is None else run.name_of(k), rounds))

    # What is asked over HTTP ------------------------------------------------------------------------------------------

    def _checkup(self) -> str:
        """What is wrong; several who ask at once cause one look."""
        with self._lock:
            if time.monotonic() - self._checked > FRESH_S or not self._checked:
                self._complaint = health.complaint(self.watched)
                self._checked = time.monotonic()
            return self._complaint

    def _health(self) -> Answer:
        wrong = self._checkup()
        words = wrong or health.well(self.watched)
        return 503 if wrong else 200, "text/plain; charset=utf-8", f"{words}\n".encode()

    def _metrics(self) -> Answer:
        healthy = not self._checkup()
        with self._lock:
            try:
                text = metrics.exposition(self.watched, healthy, self.hooks.failures)
            except ImportError:
                return 501, "text/plain", b'prometheus-client is not installed here; pip install "feduca[flower]"\n'
        return 200, "text/plain; version=0.0.4; charset=utf-8", text
