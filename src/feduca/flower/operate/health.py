"""Is the federation alive? SuperLink and front shake hands, the app runs, and the last round is not overdue."""

from __future__ import annotations

import contextlib
import socket
import ssl

from feduca.flower.folder import ServerFolder
from feduca.flower.operate.seen import Watched

SECONDS = 3.0  # for a handshake


def shakes(host: str, port: int, server: ServerFolder) -> bool:
    """Whether a program that shows our certificate answers there: a stopped program listens, too."""
    context = ssl.create_default_context(cafile=str(server.path / "ca.crt"))
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host, port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        return True
    return False


def complaint(watched: Watched) -> str:
    """What is wrong, in one line; empty where nothing is."""
    server, run = watched.server, watched.run
    if not shakes("127.0.0.1", server.control, server):
        return f"the SuperLink does not answer at 127.0.0.1:{server.control}; see superlink.log"
    if not shakes(*server.local, server):
        return f"the front does not answer at {':'.join(map(str, server.local))}; see superlink.log"
    if watched.problem:
        return watched.problem
    if run is None or run.state == "none":
        return "" if watched.app_alive else "no run has begun; start server/run.sh"
    if run.state == "finished":
        return ""
    if run.state != "running":
        return f"the run {run.state} after round {run.round} ({run.reason}); start server/run.sh again, it resumes"
    if not watched.app_alive:
        return f"the server app is gone after round {run.round}; start server/run.sh again, it resumes"
    if late := watched.overdue():
        return f"round {run.round + 1} is overdue by {late:.0f} s; see log.jsonl"
    return ""


def well(watched: Watched) -> str:
    run = watched.run
    if run is None or run.state == "none":
        return "the app waits for silos"
    return f"round {run.round} of {run.planned}, {run.state}" + (f"; it waits: {run.waits}" if run.waits else "")
