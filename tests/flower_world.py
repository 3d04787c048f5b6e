"""A real SuperLink and real SuperNodes on 127.0.0.1, for integration tests. Everything started is ended by its own id.

SuperNodes are supervised, as `start.sh` does it: one that is sent away comes back. Waits are long, for they end as soon as
there is what they wait for; nothing here measures time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from feduca.flower import approval, control, deploy
from feduca.flower import folder as folders
from feduca.flower.processes import Process, descendants, free_ports, supervise
from feduca.recipes.schema import load
from feduca.runs.directory import without_none

HERE = Path(__file__).parent
BASE = {"local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}, "engine": {"threads": 1}}


class World:
    """Silos of numpy_task behind a SuperLink with TLS and authentication."""

    def __init__(self, folder: Path, silos: int = 3) -> None:
        self.folder = folder
        own = folder / "own"
        own.mkdir(parents=True)
        for file in (HERE / "flower_app" / "deployed.py", HERE / "numpy_task.py"):
            shutil.copy(file, own / file.name)
        names = [f"silo-{k}" for k in range(silos)]
        ports = free_ports(silos + 2)
        address, control = f"127.0.0.1:{ports.pop()}", ports.pop()
        self.place = folder / "deployment"
        settings = {"round-timeout": 120.0, "silos-timeout": 300.0}
        out = str(folder / "runs")
        where = {"address": address, "ports": ports, "control": control}
        folders.init(self.place, load(BASE), names, **where, app=own, out=out, settings=settings)
        self.superlink: Process | None = None
        self.nodes: dict[str, Process] = {}
        self._kept: dict[str, tuple[threading.Event, threading.Thread]] = {}

    @property
    def server(self) -> folders.ServerFolder:
        return folders.read_server(self.place)

    def recipe(self, settings: dict[str, Any], **of_the_server: Any) -> Path:
        """Use this recipe and these server settings from now on; returns the run directory it will have."""
        import tomlkit

        recipe = load({**BASE, "name": "deployed"}, settings)
        tree = without_none(recipe.plain())
        (self.place / "server" / "app" / "recipe.toml").write_text(tomlkit.dumps(tree))
        path = self.place / "server" / "server.toml"
        words = tomlkit.parse(path.read_text())
        for name, value in of_the_server.items():
            words["settings"][name.replace("_", "-")] = value  # type: ignore[index]
        path.write_text(tomlkit.dumps(words))
        self.approve(self.place / "server" / "app")
        return deploy.run_directory(self.server).path

    def approve(self, app: Path) -> None:
        """As every silo's operator would."""
        for silo in (self.place / "silos").iterdir():
            approval.approve(silo, approval.bundle(app))

    def start(self) -> None:
        self.start_superlink()
        for path in sorted((self.place / "silos").iterdir()):
            self.start_silo(path.name)

    def wait_online(self, *names: str, seconds: float = 400.0) -> None:
        """Until these silos (all, where none is named) are connected; else what each one's SuperNode says."""
        wanted = names or [path.stem for path in (self.place / "server" / "keys").glob("*.pub")]
        seen: dict[str, str] = {}
        deadline = time.monotonic() + seconds
        while any(seen.get(name) != "online" for name in wanted):
            if time.monotonic() > deadline:
                logs = [
                    self.place / "silos" / name / "state" / "supernode.log"
                    for name in wanted
                    if seen.get(name) != "online"
                ]
                last = "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in logs if log.is_file())
                raise AssertionError(f"after {seconds:g} s of waiting for {', '.join(wanted)}: {seen}\n{last}")
            time.sleep(0.2)
            seen = control.registered(self.server)

    def start_superlink(self) -> None:
        self.superlink = deploy.start_superlink(self.server)
        deploy.wait_until_reachable(self.server, self.superlink)

    def kill_server_app(self) -> None:
        """As a crash would: the process that plays the rounds, not the SuperLink that started it."""
        assert self.superlink is not None
        for pid, _ in descendants(self.superlink.pid):
            if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError("no server app to kill")

    def start_silo(self, name: str) -> None:
        """Under the supervisor, which starts it again whenever it ends; `nodes` has the process that runs now."""
        stop, silo = threading.Event(), folders.read_silo(self.place / "silos" / name)

        def start() -> Process:
            self.nodes[name] = deploy.start_silo(silo)
            return self.nodes[name]

        thread = threading.Thread(
            target=supervise, args=(start,), kwargs={"stop": stop, "name": name, "longest_s": 4.0}
        )
        self.nodes.pop(name, None)
        thread.start()
        self._kept[name] = stop, thread
        wait_for(lambda: name in self.nodes, 60, f"{name} to be started")

    def stop_silo(self, name: str) -> None:
        stop, thread = self._kept.pop(name)
        stop.set()
        thread.join(60)

    def mischief(self, name: str, plan: dict[str, str]) -> Path:
        state = self.place / "silos" / name / "state"
        state.mkdir(exist_ok=True)
        (state / "mischief.json").write_text(json.dumps(plan))
        return state

    def log(self, name: str) -> list[dict[str, Any]]:
        """A silo's own log."""
        path = self.place / "silos" / name / "state" / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def stop(self) -> None:
        for stop, _ in self._kept.values():
            stop.set()
        for _, thread in self._kept.values():
            thread.join(60)
        if self.superlink is not None:
            self.superlink.stop(3)


def wait_for(what, seconds: float = 60.0, why: str = "") -> Any:
    """Wait until `what()` is true and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain for {why or what}")


def statuses(path: Path) -> list[list[str]]:
    """Who did what, by round."""
    return [json.loads(line)["status"] for line in (path / "clients.jsonl").read_text().splitlines()]


def reasons(path: Path) -> list[list[str]]:
    return [json.loads(line)["reason"] for line in (path / "clients.jsonl").read_text().splitlines()]


def events(path: Path) -> str:
    return (path / "events.jsonl").read_text()
