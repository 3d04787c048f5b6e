"""The server's half of a deployment, as a Flower ServerApp: the one round loop, driven by silos on other machines.

Its settings are the Flower app's run configuration (`[tool.flwr.app.config]`, or `flwr run --run-config`):

    silos          how many silos to wait for before round 1
    quorum         how many must be connected for a round to begin
    round-timeout  seconds a silo has to answer; then it is absent from that round
    silos-timeout  seconds to wait for `silos` or for the quorum; then the run stops, to be resumed
    patience       silent rounds after which a silo is left out of the program until it answers again; 0 = never
    out            folder for run directories, on the SuperLink's machine
    again          start over, even where the run is finished or can be continued
    dry-run        only ask who is there (`feduca deploy check --exchange`)
    folder         the deployment's server folder, so that `feduca resume` finds its way back

After every round there is a checkpoint. Started again on the same `out`, an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feduca import rounds as loop
from feduca.errors import CheckpointError, ConfigError
from feduca.experiment import make_server
from feduca.flower.app import App, Model
from feduca.flower.federation import FlowerFederation, Patience
from feduca.flower.register import Register
from feduca.records import ClientRecord, RoundRecord, plain
from feduca.rounds import Server
from feduca.runs import Resumed, RunDirectory, check_writable, summarise, write_whole
from feduca.types import Array, ServerState, Task

log = logging.getLogger("feduca")

SILOS, DEPLOYMENT = "silos.json", "deployment.json"


@dataclass(frozen=True)
class Settings:
    """The run configuration, checked."""

    silos: int = 1
    quorum: int = 1
    round_timeout: float = 3600.0
    silos_timeout: float = 600.0
    patience: int = 0
    out: str = "runs"
    again: bool = False
    folder: str = ""
    dry_run: bool = False

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """From Flower's run configuration, where dashes stand for underscores."""
        given = {}
        for name, field in Settings.__dataclass_fields__.items():
            value = config.get(name.replace("_", "-"), field.default)
            kind = type(field.default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind:
                raise ConfigError(
                    f"{name.replace('_', '-')} is {value!r} in the run configuration; it is a {kind.__name__}"
                )
            given[name] = value
        settings = Settings(**given)
        for name in ("silos", "quorum", "round_timeout", "silos_timeout"):
            if not getattr(settings, name) > 0:
                raise ConfigError(f"{name.replace('_', '-')} is {getattr(settings, name)}; it must be above 0")
        if settings.patience < 0:
            raise ConfigError(f"patience is {settings.patience}; it is a number of rounds, 0 for never")
        return settings


def server_app(app: App) -> ServerApp:
    """The ServerApp of `app`."""
    flower = ServerApp()

    @flower.main()
    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        serve(app, grid, Settings.of(context.run_config), context.run_config)

    return flower


def serve(app: App, grid: Grid, settings: Settings, config: Mapping[str, Any] | None = None) -> Path:
    """Run (or continue) the federation behind `grid`; returns the run directory."""
    recipe, seed = app.recipe, app.recipe.seeds[0]
    out = Path(settings.out).expanduser().absolute()
    check_writable(out)
    directory = RunDirectory(out, recipe.name, recipe.hash(), seed, every_s=0)  # a checkpoint after every round
    if directory.state() == "finished" and not settings.again and not settings.dry_run:
        log.info("this run is finished already: %s", directory.path)
        return directory.path
    model = app.server(config or {})
    server = make_server(recipe, seed, cast(Task, model))  # it asks for the number of parameters only
    theta = model.init(seed)
    if settings.dry_run:
        return _dry_run(grid, recipe.hash(), len(theta), server.family.size, settings)
    with directory:
        earlier, known = (None, None) if settings.again else _earlier(directory, theta)
        run, register = known or (f"{server.run}-{secrets.token_hex(4)}", Register())
        server = replace(server, run=run, patience=settings.patience)
        federation = FlowerFederation(
            grid,
            register,
            run=run,
            recipe=recipe.hash(),
            size=len(theta),
            curve=server.family.size,
            quorum=settings.quorum,
            patience=Patience(settings.round_timeout, settings.silos_timeout),
        )
        federation.gather(settings.silos)
        if earlier is None:
            directory.begin(recipe.plain(), seed, federation.silos, getattr(model, "describe", dict)())
            register.path = directory.path / SILOS
            register.write()
            words = {"run": run, "folder": settings.folder}  # the run's name among its silos; where `resume` finds it
            (directory.path / DEPLOYMENT).write_text(json.dumps(words))
        return _play(directory, federation, server, model, theta, earlier)


def _dry_run(grid: Grid, recipe: str, size: int, curve: int, settings: Settings) -> Path:
    """Ask every silo who it is and write the answers to a file that `deploy check` reads; no run is touched."""
    patience = Patience(silos_s=min(30.0, settings.silos_timeout))
    federation = FlowerFederation(
        grid, Register(), run="dry-run", recipe=recipe, size=size, curve=curve, quorum=0, patience=patience
    )
    federation.gather(settings.silos)
    told = {
        "silos": [{**asdict(hello), "heard": when} for hello, when in federation.heard.values()],
        "events": federation.events,
    }
    path = Path(settings.out) / f".dry-run-{recipe}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(told))
    return path


def _earlier(directory: RunDirectory, theta: Array) -> tuple[Resumed | None, tuple[str, Register] | None]:
    """The last checkpoint, the run's name among its silos, and who they are; nothing where there is no such thing."""
    if not (directory.path / DEPLOYMENT).is_file() or not (directory.path / SILOS).is_file():
        return None, None
    run = json.loads((directory.path / DEPLOYMENT).read_text())["run"]
    register = Register.load(directory.path / SILOS)
    for n in range(len(register.names), 0, -1):  # silos that came after the checkpoint are not in it yet
        try:
            earlier = directory.resume(theta, register.names[:n])
            return (earlier, (run, register)) if earlier is not None else (None, None)
        except CheckpointError:
            if n == 1:
                raise
    return None, None


def _play(
    directory: RunDirectory,
    federation: FlowerFederation,
    server: Server,
    model: Model,
    theta: Array,
    earlier: Resumed | None,
) -> Path:
    records = [] if earlier is None else earlier.rounds
    clients = [] if earlier is None else earlier.records
    if earlier is not None:
        federation.note(f"going on after round {len(records)}")

    def on_round(record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        records.append(plain(record))
        clients.append(plain(per_client))
        directory.append(records[-1], clients[-1])
        directory.save(state, federation.snapshot(), last=state.round > server.rounds)
        _log_events(directory.path, record.round, federation)
        words = ", ".join(f"{name} {word}" for name, word in zip(federation.silos, per_client.status))
        log.info("round %d of %d: accuracy %s; %s", record.round, server.rounds, record.accuracy, words)

    loop.play(
        loop.rounds(
            server,
            theta,
            federation.register.census().examples,
            evaluate=model.test,
            on_round=on_round,
            state=None if earlier is None else earlier.state,
            census=federation.register.census,
        ),
        federation,
    )
    directory.finish(summarise(records, clients, federation.silos))
    return directory.path


def _log_events(folder: Path, round: int, federation: FlowerFederation) -> None:
    """What happened beside the rounds goes to `events.jsonl`."""
    with (folder / "events.jsonl").open("a") as file:
        for what in federation.events:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(json.dumps({"time": when, "round": round, "event": what}) + "\n")
    federation.events.clear()
