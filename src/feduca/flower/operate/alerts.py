"""Telling an operator's program or web hook that something happened: beside everything else, and never twice.

What is told is what the server decided or saw: an event, a round, a silo's name, a fixed sentence. Nothing that a silo said, no
figure, no path. One thread calls one hook after the other; while one hangs, others wait, and of more than
`WAITING` the newest are dropped with a line in the log. A hook that fails is said to fail once, until it works again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import queue
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from feduca.flower.operate.settings import ABSENT, BACK, DIED, FAILED, LEFT, WAITS, Alert

log = logging.getLogger("feduca")

WAITING = 100

WORDS = {
    LEFT: "{silo} has left the federation for good",
    ABSENT: "{silo} has not answered for {rounds} rounds in a row",
    FAILED: "round {round} failed; status.json of the run and log.jsonl say why",
    DIED: "the process of the server app is gone; start server/run.sh again, it resumes",
    BACK: "the run was rolled back to round {round}",
    WAITS: "round {round} waits: every silo declines by its policy; it goes on by itself when one is back",
}


@dataclass(frozen=True)
class Event:
    what: str  # one of settings.EVENTS
    run: str
    round: int
    silo: str = ""
    rounds: int = 0  # how many in a row, of an absence

    def told(self) -> dict[str, Any]:
        when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        text = WORDS[self.what].format(silo=self.silo, round=self.round, rounds=self.rounds)
        return {"time": when, "event": self.what, "run": self.run, "round": self.round, "silo": self.silo, "text": text}


class Hooks:
    """Calls the hooks of `alert`, in a thread of its own that starts with the first event."""

    def __init__(self, alert: Alert) -> None:
        self._alert = alert
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING)
        self._failing: set[str] = set()
        self._thread: threading.Thread | None = None
        self.failures = 0

    def tell(self, event: Event) -> None:
        """Returns at once."""
        told = event.told()
        about = {"event": event.what, "round": event.round, "silo": event.silo or None}
        log.warning("%s", told["text"], extra=about)
        if event.what not in self._alert.events or not (self._alert.command or self._alert.webhook):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(told)
        except queue.Full:
            self._failed("queue", f"{WAITING} alerts wait already; this one was dropped")

    def close(self, seconds: float = 2.0) -> None:
        """Let what waits be told, for so long."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            self._thread.join(seconds)

    def _work(self) -> None:
        while (told := self._queue.get()) is not None:
            for name, hook in (("command", self._command), ("webhook", self._webhook)):
                try:
                    if hook(told):
                        self._failing.discard(name)
                        self._failing.discard("queue")
                except Exception as error:  # whatever a hook does, it is no matter of the federation's
                    self._failed(name, str(error) or type(error).__name__)

    def _failed(self, name: str, why: str) -> None:
        self.failures += 1
        if name not in self._failing:
            self._failing.add(name)
            log.warning("the alert %s failed: %s", name, why, extra={"event": "alert-failed"})

    def _command(self, told: dict[str, Any]) -> bool:
        """The event as JSON on standard input, and as FEDUCA_EVENT, FEDUCA_SILO, FEDUCA_ROUND, FEDUCA_TEXT."""
        if not self._alert.command:
            return False
        words = {f"FEDUCA_{name.upper()}": str(told[name]) for name in ("event", "silo", "round", "text", "run")}
        process = subprocess.Popen(
            self._alert.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **words},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(told).encode(), self._alert.timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it was ended after {self._alert.timeout:g} s") from None
        finally:  # with all that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise RuntimeError(f"it ended with code {process.returncode}")
        return True

    def _webhook(self, told: dict[str, Any]) -> bool:
        if not self._alert.webhook:
            return False
        request = urllib.request.Request(
            self._alert.webhook, json.dumps(told).encode(), {"content-type": "application/json"}, method="POST"
        )
        opener = urllib.request.build_opener(_Stay)
        try:
            with opener.open(request, timeout=self._alert.timeout):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            raise RuntimeError(f"it answered {error.code}") from None
        except OSError as error:
            raise RuntimeError(f"no answer ({type(error).__name__})") from None


class _Stay(urllib.request.HTTPRedirectHandler):
    """An answer that sends elsewhere is a failure: what is told goes to the address that was written, and nowhere else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None
