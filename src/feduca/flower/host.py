"""The SuperNodes of many silos on one machine, to try a federation out: forked from one process that imports everything once.

    python -m feduca.flower.host SILO_FOLDER ...

Each SuperNode is what launch.py makes of it, in a process, a folder and under a key of its own, and is started again whenever it
ends. Together they take the memory of the imports once. A silo on a machine of its own has nothing to share (`deploy silo`).
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

from feduca.flower import launch
from feduca.flower.folder import SiloFolder, read_silo
from feduca.flower.processes import alive, descendants, environment, port_for
from feduca.flower.template import OURS, imported, unfit, wanted

log = logging.getLogger("feduca")

FIRST_S, LONGEST_S, WELL_S = 1.0, 30.0, 60.0  # between an end and the next start; after so long a life it starts over
GRACE_S = 6.0
BARE = "--bare"  # import nothing of the apps


class Host:
    """Starts and buries them. One thread, for it forks."""

    def __init__(self, silos: list[SiloFolder]) -> None:
        self._silos = {silo.name: silo for silo in silos}
        self._due = dict.fromkeys(self._silos, 0.0)
        self._pause = dict.fromkeys(self._silos, FIRST_S)
        self._runs: dict[int, tuple[str, float]] = {}  # by process: whose, and since when
        # What SuperNodes have for standard input: it closes when this process is gone.
        self._leash, self._held = os.pipe()

    def keep(self) -> None:
        """Until standard input closes, or a signal comes."""
        told: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: told.append(number))
        while not told:
            for name in [name for name, when in self._due.items() if when <= time.monotonic()]:
                del self._due[name]
                self._start(name)
            if select.select([0], [], [], 0.2)[0] and not os.read(0, 4096):
                break
            self._bury()
        self._end()

    def _start(self, name: str) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(read_silo(self._silos[name].path))  # as it is now
            sys.exit()
        self._runs[pid] = name, time.monotonic()

    def _become(self, silo: SiloFolder) -> None:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        silo.state.mkdir(exist_ok=True)
        silo.state.chmod(0o700)
        said = os.open(silo.state / "supernode.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for here, there in ((self._leash, 0), (said, 1), (said, 2)):
            os.dup2(here, there)
        for handle in (self._leash, self._held, said):
            os.close(handle)
        os.chdir(silo.path)
        os.environ.update(environment(silo.state / "flwr"))
        launch.supernode(silo, port_for(silo.name, silo.port))

    def _bury(self) -> None:
        for pid, (name, began) in list(self._runs.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._runs[pid]
            if time.monotonic() - began > WELL_S:
                self._pause[name] = FIRST_S
            pause, code = self._pause[name], os.waitstatus_to_exitcode(status)
            log.warning("the SuperNode of %s ended with code %s; starting it again in %g s", name, code, pause)
            self._due[name], self._pause[name] = time.monotonic() + pause, min(2 * pause, LONGEST_S)

    def _end(self) -> None:
        """Ask them to end, then insist; nothing that they started is left."""
        family = descendants(os.getpid())
        for pid in self._runs:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self._runs and time.monotonic() < deadline:
            self._runs = {pid: run for pid, run in self._runs.items() if not os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.05)
        for pid, _ in alive([*family, *descendants(os.getpid())]):
            os.kill(pid, signal.SIGKILL)


def main(*arguments: str) -> None:
    os.umask(0o077)
    bare = arguments[0] == BARE
    silos = [read_silo(Path(folder)) for folder in arguments[bare:]]
    apps = [] if bare else [name for silo in silos for name in wanted(silo)]
    imported([*OURS, "flwr.supernode.cli", *dict.fromkeys(apps)])
    if why := unfit():
        if bare:
            raise SystemExit(f"SuperNodes cannot be forked here, for {why}; write fresh = true into every silo.toml")
        os.execv(sys.executable, [sys.executable, "-m", "feduca.flower.host", BARE, *arguments])
    gc.collect()
    gc.freeze()
    Host(silos).keep()


if __name__ == "__main__":
    main(*sys.argv[1:])
