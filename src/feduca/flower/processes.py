"""Processes of our own: started in a group of their own, ended by their own id with all they started, never by name.

Each is on a leash: its standard input is a pipe that only we hold. When we are gone, even by kill -9, the pipe closes, and the
programs that `leashed` end themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from feduca.flower.logs import Log

log = logging.getLogger("feduca")

TIRED = 3  # failures in a row


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: this Python's scripts first, a home of their own, nothing sent anywhere."""
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses just now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ones, below those that outgoing connections get: nobody takes one by chance before it is used."""
    found: set[int] = set()
    while len(found) < count:
        port = 10_000 + secrets.randbelow(22_000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


def listening(host: str, port: int, seconds: float = 1.0) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds):
        return True
    return False


def taken(host: str, port: int) -> bool:
    """Whether a program of ours could not listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return True
    return False


def port_for(silo: str, port: int) -> int:
    """Where the local service of a silo's SuperNode listens: at `port`, unless somebody else does."""
    if not taken("127.0.0.1", port):
        return port
    other = free_port()
    log.warning("port %d is in use; the SuperNode of %s takes %d for itself", port, silo, other)
    return other


def leashed(grace: float = 8.0) -> None:
    """End this process, and what it started, when the one that started it is gone: then standard input closes."""
    held = os.dup(0)  # ours alone: what this process starts reads nothing
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while os.read(held, 4096):
            pass
        family = descendants(os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        _signal_all([*family, *descendants(os.getpid())], signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="leash", daemon=True).start()


class Process:
    """One program and everything it starts."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_file: Path | None) -> None:
        self.command = list(command)
        told = None if log_file is None else subprocess.PIPE
        self._popen = subprocess.Popen(
            self.command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=None if told is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._log = None if log_file is None else Log(log_file, self._popen.stdout)  # type: ignore[arg-type]

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
        self._close()

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
        self._close()

    def _close(self) -> None:
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        if self._log is not None:
            self._log.join(5)


def started(pid: int) -> str:
    """When a process was started, in the system's own words: with its id this names one process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def descendants(pid: int) -> list[tuple[int, str]]:
    """Everything a process has started that is still its own, with starting times (where there is /proc)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = entry.read_text(encoding="utf-8").rpartition(")")[2].split()
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
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def _signal_all(family: Sequence[tuple[int, str]], number: int) -> None:
    for pid, since in family:
        if started(pid) == since:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def supervise(
    start: Callable[[], Process],
    *,
    stop: threading.Event,
    name: str,
    first_s: float = 1.0,
    longest_s: float = 30.0,
    diagnose: Callable[[], None] | None = None,
) -> None:
    """Keep one program running until `stop` is set: whenever it ends, wait a little longer and start it again.

    A SuperNode that died is refused until the SuperLink has given up on its predecessor (about a minute), so one failure is no
    reason to give up. After a minute of good running the waits start over. At every `TIRED`th failure in a row
    `diagnose` is asked to say why.
    """
    pause, failures = first_s, 0
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
        failures += 1
        if time.monotonic() - began > 60:
            pause, failures = first_s, 1
        log.warning("%s ended with code %s; starting it again in %g s", name, process.returncode, pause)
        if diagnose is not None and failures % TIRED == 0:
            diagnose()
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
