"""Processes of our own: started in a group of their own, ended by their own id with all they started, never by name."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

log = logging.getLogger("feduca")


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: this Python's scripts first, a home of their own, nothing sent anywhere."""
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """One program and everything it starts."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_file: Path | None) -> None:
        self.command = list(command)
        output = None if log_file is None else log_file.open("ab")
        try:
            self._popen = subprocess.Popen(
                self.command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        self.pid = self._popen.pid

    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, or None if it is still running after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        return None

    def kill(self) -> None:
        """At once and without a chance to say goodbye, as a machine that loses power."""
        family = descendants(self.pid)
        _signal_all([(self.pid, started(self.pid)), *family], signal.SIGKILL)
        self._popen.wait()

    def stop(self, seconds: float = 8.0) -> None:
        """Ask it to end, then insist; afterwards nothing it started is left."""
        family = descendants(self.pid)
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                self._popen.terminate()
            self.wait(seconds)
        family += descendants(self.pid)
        _signal_all([(self.pid, started(self.pid))] if self.running() else [], signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(5)
        deadline = time.monotonic() + 3
        while alive(family) and time.monotonic() < deadline:
            time.sleep(0.1)
        _signal_all(alive(family), signal.SIGKILL)


def started(pid: int) -> str:
    """When a process was started, in the system's own words: with its id this names one process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def descendants(pid: int) -> list[tuple[int, str]]:
    """Everything a process has started that is still its own, with starting times (where there is /proc)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append((child, started(child)))
            todo.append(child)
    return found


def alive(family: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Those of `family` (ids with starting times) that still run."""
    return [(pid, since) for pid, since in family if since and started(pid) == since and not _zombie(pid)]


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def _signal_all(family: Sequence[tuple[int, str]], number: int) -> None:
    for pid, since in family:
        if started(pid) == since:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def supervise(
    start: Callable[[], Process], *, stop: threading.Event, name: str, first_s: float = 1.0, longest_s: float = 30.0
) -> None:
    """Keep one program running until `stop` is set: whenever it ends, wait a little longer and start it again.

    A SuperNode that died is refused until the SuperLink has given up on its predecessor (about a minute), so one failure is no
    reason to give up. After a minute of good running the waits start over.
    """
    pause = first_s
    while not stop.is_set():
        began = time.monotonic()
        process = start()
        try:
            while process.running() and not stop.wait(0.2):
                pass
        finally:
            process.stop()
        if stop.is_set():
            return
        if time.monotonic() - began > 60:
            pause = first_s
        log.warning("%s ended with code %s; starting it again in %g s", name, process.returncode, pause)
        stop.wait(pause)
        pause = min(2 * pause, longest_s)


@contextlib.contextmanager
def until_told():
    """A `threading.Event` that SIGINT and SIGTERM set."""
    event = threading.Event()
    old = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
