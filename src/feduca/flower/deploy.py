"""Starting the parts of a deployment, and running federations on them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feduca.errors import InputError, RunError
from feduca.flower import control, policy
from feduca.flower import folder as folders
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.processes import (
    Process,
    alive,
    environment,
    free_ports,
    listening,
    port_for,
    started,
    supervise,
    taken,
)
from feduca.recipes.schema import Recipe
from feduca.recipes.schema import load as load_recipe
from feduca.runs import files
from feduca.runs.directory import RunDirectory, RunResult, check_writable, load, state_of
from feduca.runs.lines import Lines

if TYPE_CHECKING:
    from feduca.flower.operate.seen import Warned

log = logging.getLogger("feduca")

DEPLOYMENT, RUNNING = "deployment.json", "running.json"  # as server.py writes them
STARTED = "started.json"  # in a silo's state/: with what its SuperNode was started


# The parts -----------------------------------------------------------------------------------------------------------


def start_superlink(server: ServerFolder) -> Process:
    """The SuperLink of a server folder behind its front (front.py), which alone is reached from outside."""
    for host, port, what in ((server.bind, server.port, "address"), ("127.0.0.1", server.control, "control")):
        if taken(host, port):
            raise RunError(
                f"{host}:{port} cannot be listened on (in use, or no address of this machine);"
                f" end the program that holds it, or change {what} in {server.path}/server.toml"
            )
    for path in server.path.glob("superlink.db*"):
        path.chmod(0o600)
    command = [sys.executable, "-m", "feduca.flower.front", str(server.path)]
    return Process(command, env=_env(server.path), cwd=server.path, log_file=server.path / "superlink.log")


def start_silo(silo: SiloFolder) -> Process:
    """The SuperNode of a silo folder, under its policy, guarded against apps that nobody approved (launch.py)."""
    policy.read(silo.path)  # one that is wrong is for whoever starts it, in one line
    silo.state.mkdir(exist_ok=True)  # a copy may have left the empty folder out
    silo.state.chmod(0o700)
    port = port_for(silo.name, silo.port)
    command = [sys.executable, "-m", "feduca.flower.launch", "supernode", str(silo.path), str(port)]
    process = Process(command, env=_env(silo.state), cwd=silo.path, log_file=silo.state / "supernode.log")
    told = {"pid": process.pid, "since": started(process.pid), "with": _needs_restart(silo)}
    with contextlib.suppress(OSError):  # a full disk stops nobody
        files.write_whole(silo.state / STARTED, json.dumps(told))
    return process


def keep_silo(silo: SiloFolder, stop: threading.Event, diagnose: Callable[[], None] | None = None) -> None:
    """Keep a silo's SuperNode running until told to stop; `diagnose` when that fails again and again.

    Every start reads silo.toml anew.
    """
    again = folders.read_silo
    supervise(lambda: start_silo(again(silo.path)), stop=stop, name=f"the SuperNode of {silo.name}", diagnose=diagnose)


def outdated(silo: SiloFolder) -> list[str]:
    """What silo.toml says otherwise now than when the SuperNode that runs was started."""
    try:
        was = json.loads((silo.state / STARTED).read_text(encoding="utf-8"))
        if not alive([(int(was["pid"]), str(was["since"]))]):
            return []
        now, then = _needs_restart(silo), was["with"]
        return sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _needs_restart(silo: SiloFolder) -> dict[str, Any]:
    """Of silo.toml what a SuperNode is told at its start; the rest is read with every message."""
    own = {"superlink": silo.superlink, "port": silo.port, "fresh": silo.fresh}
    return own | {f"config.{k}": v for k, v in silo.config.items()}


def keep_together(folder: Path, silos: Sequence[SiloFolder], stop: threading.Event) -> None:
    """Keep many silos' SuperNodes running that are all on this machine, in processes that share what they import (host.py)."""
    command = [sys.executable, "-m", "feduca.flower.host", *(str(silo.path) for silo in silos)]
    log_file = folder / "silos.log"
    supervise(
        lambda: Process(command, env=_env(folder), cwd=folder, log_file=log_file), stop=stop, name="the silos' host"
    )


def reachable(server: ServerFolder) -> bool:
    """Whether a SuperLink and its front run here."""
    return listening(*server.local) and control.running(server)


def wait_until_reachable(server: ServerFolder, process: Process, seconds: float = 330.0) -> None:
    """Wait for the front to listen; it does so when every key is registered. A process that ends is noticed at once."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.running():
        if listening(*server.local):
            return
        time.sleep(0.1)
    raise RunError(f"the SuperLink does not answer at {':'.join(map(str, server.local))}; its log says why")


# A run ---------------------------------------------------------------------------------------------------------------

Watch = Callable[[dict[str, Any], dict[str, Any]], None]
Say = Callable[[str], None]  # gets each warning of the server app once


def recipe_of(server: ServerFolder) -> Recipe:
    return load_recipe(server.path / "app" / "recipe.toml")


def out_of(server: ServerFolder) -> Path:
    """Where run directories go: `out` of server.toml, from the server's folder."""
    return (server.path / Path(server.settings["out"]).expanduser()).resolve()


def run_directory(server: ServerFolder) -> RunDirectory:
    recipe = recipe_of(server)
    return RunDirectory(out_of(server), recipe.name, recipe.hash(), recipe.seeds[0])


def submit(server: ServerFolder, **changes: Any) -> int:
    """Start the server app on the SuperLink; returns Flower's number of the run."""
    settings = {**server.settings, "out": str(out_of(server)), "folder": str(server.path), **changes}
    known = {name: value for name, value in settings.items() if name in folders.SETTINGS}  # others stay on the server
    return control.start(server, server.path / "app", known)


def run(
    server: ServerFolder,
    *,
    again: bool = False,
    watch: Watch | None = None,
    say: Say | None = None,
    seconds: float | None = None,
) -> RunResult:
    """Run the deployment's federation to its end, or go on with it; one that is finished is read back."""
    directory = run_directory(server)
    if directory.state() == "finished" and not again:
        return load(directory.path)
    before, warned = _age(directory.path / "status.json"), None
    if say is not None:
        from feduca.flower.operate.seen import Warned

        warned = Warned(server), say
    _wait_for_superlink(server)
    number = submit(server, again=again)
    follow(server, number, directory, before, watch, seconds, warned)
    return load(directory.path)


def _wait_for_superlink(server: ServerFolder, seconds: float = 60.0) -> None:
    """After a boot, or in a script, `run.sh` may come before what `start.sh` starts is there."""
    deadline = time.monotonic() + seconds
    while not reachable(server):
        if time.monotonic() > deadline:
            where = ":".join(map(str, server.local))
            raise RunError(
                f"no SuperLink answers at {where} within {seconds:g} s: start server/start.sh, then this again"
            )
        time.sleep(0.2)


def follow(
    server: ServerFolder,
    number: int,
    directory: RunDirectory,
    before: float = 0.0,
    watch: Watch | None = None,
    seconds: float | None = None,
    warned: tuple[Warned, Say] | None = None,
) -> None:
    """Wait until run `number` is over, telling `watch` of every round; RunError unless it finished well."""
    deadline = None if seconds is None else time.monotonic() + seconds
    ask_again, told = time.monotonic() + 5, 0
    while True:
        fresh = _age(directory.path / "status.json") > before
        state = directory.state() if fresh else None
        if warned is not None:
            for words in warned[0].new():
                warned[1](words)
        if fresh and watch is not None:
            for record, clients in _records(directory.path, told):
                told += 1
                watch(record, clients)
        if state == "finished":
            return
        died = _died(server, number)
        if died or time.monotonic() > ask_again or state in ("failed", "interrupted"):
            how = control.ended(server, number)  # an app that ends by itself tells Flower before its process is gone
            now = directory.state()
            if now != "finished" and died and (how is None or (fresh and now == "running")):
                directory.fail("the process of the server app was killed")
                raise RunError("the process of the server app was killed; see superlink.log, then resume")
            if now != "finished" and how is not None:
                reason = _reason(directory.path) if fresh else how
                raise RunError(f"the server app ended early ({reason}); see superlink.log, then resume")
            ask_again = time.monotonic() + 5
        if deadline is not None and time.monotonic() > deadline:
            raise RunError(
                f"run {number} is not over after {seconds:g} s; `flwr log` and superlink.log say where it is"
            )
        time.sleep(0.3)


@contextlib.contextmanager
def standing(folder: Path, metrics: str | None = None) -> Iterator[ServerFolder]:
    """SuperLink and all silos of a deployment folder on this machine, for as long as the context lasts.

    It is watched as `start.sh` does it: `metrics` is where, in place of what server.toml says.
    """
    from feduca.flower.operate import settings
    from feduca.flower.operate.monitor import Monitor

    server = folders.read_server(folder)
    if metrics is not None:
        told = settings.read({"metrics": metrics}, Path("--metrics")).metrics
        server = replace(server, operate=replace(server.operate, metrics=told))
    silos = [folders.read_silo(path) for path in sorted((folder / "silos").iterdir())]
    for silo in silos:
        policy.read(silo.path)  # one that is wrong is for whoever starts it, in one line
    stop, threads = threading.Event(), []

    def keep(task: Callable[..., None], *arguments: Any) -> None:
        threads.append(threading.Thread(target=task, args=arguments, daemon=True))
        threads[-1].start()

    superlink = start_superlink(server)
    monitor = Monitor(server)
    try:
        wait_until_reachable(server, superlink)
        for silo in silos:
            if silo.fresh:
                keep(keep_silo, silo, stop)
        if together := [silo for silo in silos if not silo.fresh]:
            keep(keep_together, folder, together, stop)
        yield server
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
        monitor.close()
        superlink.stop()


def up(
    recipe: Recipe,
    out: Path,
    *,
    silos: int = 3,
    again: bool = False,
    watch: Watch | None = None,
    say: Say | None = None,
    metrics: str | None = None,
) -> RunResult:
    """A whole federation on this machine, with TLS and authentication: for trying out. Nothing is left running.

    Its deployment folder lies beside the run directory until the run is finished, so that an interrupted one can go on.
    """
    directory = RunDirectory(out.absolute(), recipe.name, recipe.hash(), recipe.seeds[0])
    if directory.state() == "finished" and not again:
        return load(directory.path)
    check_writable(out)
    folder = directory.path.with_name(f"{directory.path.name}.deployment")
    if again or not (folder / "server" / "server.toml").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        names = folders.silo_names(recipe, silos)
        ports = free_ports(len(names) + 2)
        folders.init(
            folder,
            recipe,
            names,
            address=f"127.0.0.1:{ports.pop()}",
            control=ports.pop(),
            ports=ports,
            out=str(out.absolute()),
            settings={"silos-timeout": 300.0},
        )
    with standing(folder, metrics) as server:
        result = run(server, again=again, watch=watch, say=say)
    shutil.rmtree(folder)
    return result


def resume(path: Path, watch: Watch | None = None, say: Say | None = None) -> RunResult:
    """Go on with a deployed run, whose server app or SuperLink died."""
    if state_of(path) == "finished":
        return load(path)
    try:
        place = Path(files.read_json(path / DEPLOYMENT)["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(
            f"{path / DEPLOYMENT} does not name the server's folder; repeat the run with --again"
        ) from None
    server = folders.read_server(place)
    if reachable(server):
        return run(server, watch=watch, say=say)
    if (place.parent / "silos").is_dir() and server.host == "127.0.0.1":  # a trial on this machine: bring it up again
        with standing(place.parent):
            return run(server, watch=watch, say=say)
    raise RunError(f"no SuperLink answers at {server.address}; start it with {place}/start.sh, then resume")


# ---------------------------------------------------------------------------------------------------------------------


def _env(path: Path) -> dict[str, str]:
    return environment(path / "flwr")


def _died(server: ServerFolder, number: int) -> bool:
    """Whether the process of run `number` is gone. Flower itself notices only after some time."""
    try:
        app = json.loads((server.path / RUNNING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return app["run"] == number and bool(app["since"]) and not alive([(app["pid"], app["since"])])


def _age(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _reason(path: Path) -> str:
    try:
        return json.loads((path / "status.json").read_text(encoding="utf-8")).get("reason", "no reason given")
    except (OSError, ValueError):
        return "no reason given"


def _records(path: Path, told: int) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
    def lines(name: str) -> Sequence[dict[str, Any]]:
        with contextlib.suppress(OSError):
            return Lines.of(path / name, whole=False)[told:]
        return []

    return list(zip(lines("rounds.jsonl"), lines("clients.jsonl")))
