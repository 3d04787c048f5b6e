"""What runs on the server all the time: the SuperLink behind its front, the monitor, and the run if asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from feduca.errors import FeducaError, RunError
from feduca.flower import control, deploy
from feduca.flower.folder import ServerFolder
from feduca.flower.operate import log as events
from feduca.flower.operate.monitor import Monitor

log = logging.getLogger("feduca")

FIRST_S, LONGEST_S = 5.0, 300.0  # from the end of an app that failed to its next start


def serve(server: ServerFolder, told: threading.Event, ready: Callable[[], None], *, run: bool = False) -> None:
    """Until `told`; RunError if the SuperLink ends by itself. With `run`, a federation that ends early is gone on with."""
    handler = events.begin(server.path, "supervisor", rotate=True)
    process = monitor = None
    try:
        process = deploy.start_superlink(server)
        monitor = Monitor(server, handler)
        deploy.wait_until_reachable(server, process)
        log.info("the SuperLink answers at %s", server.address, extra={"event": "superlink-up"})
        ready()
        if run:
            threading.Thread(target=keep_running, args=(server, told), name="run", daemon=True).start()
        control.keep_registering(server, process, told)
        by_itself = not told.is_set()
        told.set()
        if by_itself:
            log.error("the SuperLink ended by itself", extra={"event": "superlink-down"})
            raise RunError(f"the SuperLink ended by itself; {server.path}/superlink.log says why")
    finally:
        if monitor is not None:
            monitor.close()
        if process is not None:
            process.stop()
        events.end(handler)


def keep_running(server: ServerFolder, told: threading.Event, first_s: float = FIRST_S) -> None:
    """Run the folder's federation; go on with one whose app died. A finished one stays so until the recipe is another."""
    pause, done = first_s, None
    while not told.is_set():
        try:
            directory = deploy.run_directory(server)
            if directory.state() != "finished":
                deploy.run(server)
                pause = first_s
            if done != directory.path:
                log.info("the run is finished: %s", directory.path, extra={"event": "finished"})
                done = directory.path
            told.wait(first_s)
        except FeducaError as error:
            if told.is_set():
                return
            log.error("%s; starting it again in %g s", error, pause, extra={"event": "run-ended"})
            told.wait(pause)
            pause = min(2 * pause, LONGEST_S)
