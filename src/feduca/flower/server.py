"""The server's half of a deployment, as a Flower ServerApp: the one round loop, driven by silos on other machines.

Its settings are the Flower app's run configuration (`[tool.flwr.app.config]`, or `flwr run --run-config`):

    silos          how many silos to wait for before round 1
    quorum         how many must be connected for a round to begin
    round-timeout  seconds a silo has to answer; then it is absent from that round
    silos-timeout  seconds to wait for `silos` or for the quorum; then the run stops, to be resumed
    policy-timeout seconds to wait while every silo declines by its policy; then the run stops, to be resumed
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
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feduca.core import roster
from feduca.core import rounds as loop
from feduca.core.records import UNRELEASED, ClientRecord, RoundRecord
from feduca.errors import CheckpointError, ConfigError, InputError
from feduca.flower.app import App
from feduca.flower.federation import FlowerFederation, Patience
from feduca.flower.folder import read_server
from feduca.flower.keys import Keys
from feduca.flower.operate import log as events
from feduca.flower.processes import started
from feduca.flower.register import Register
from feduca.recipes.build import make_server
from feduca.runs import checkpoint, files, privacy
from feduca.runs.directory import Resumed, RunDirectory, check_writable, write_whole
from feduca.runs.session import Session, metric_of
from feduca.types import ABSENT, REFUSED, Array, ServerState

log = logging.getLogger("feduca")

HISTORY = 10  # checkpoints: far enough back for an operator to notice what a round did
SILOS, DEPLOYMENT = "silos.json", "deployment.json"
RUNNING = "running.json"  # in the server's folder: which process is the server app


@dataclass(frozen=True)
class Settings:
    """The run configuration, checked."""

    silos: int = 1
    quorum: int = 1
    round_timeout: float = 3600.0
    silos_timeout: float = 600.0
    policy_timeout: float = 604800.0
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
        for name in ("silos", "quorum", "round_timeout", "silos_timeout", "policy_timeout"):
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
        settings = Settings.of(context.run_config)
        if settings.folder:
            events.begin(Path(settings.folder), "app")
        if settings.folder and not settings.dry_run:
            here = {"run": context.run_id, "pid": os.getpid(), "since": started(os.getpid())}
            write_whole(Path(settings.folder) / RUNNING, json.dumps(here))
        own = read_server(Path(settings.folder)).settings if settings.folder else {}  # these never travel
        serve(app, grid, settings, {**own, **context.run_config})

    return flower


def serve(app: App, grid: Grid, settings: Settings, config: Mapping[str, Any] | None = None) -> Path:
    """Run (or continue) the federation behind `grid`; returns the run directory."""
    recipe, seed = app.recipe, app.recipe.seeds[0]
    out = Path(settings.out).expanduser().absolute()
    check_writable(out)
    history = recipe.checkpoint.history or HISTORY
    directory = RunDirectory(out, recipe.name, recipe.hash(), seed, every_s=0, history=history)  # one after every round
    if directory.state() == "finished" and not settings.again and not settings.dry_run:
        log.info("this run is finished already: %s", directory.path)
        return directory.path
    model = app.server(config or {})
    server = make_server(recipe, seed, model)
    theta = model.init(seed)
    if settings.dry_run:
        return _dry_run(grid, recipe.hash(), len(theta), server.family.size, settings)
    if server.secure and not settings.folder:
        raise ConfigError(
            "privacy.secure_aggregation needs silos with registered keys, which sign those of a round; use a folder of"
            " `feduca deploy init`"
        )
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
            patience=Patience(settings.round_timeout, settings.silos_timeout, closed_s=settings.policy_timeout),
            keys=_keys(settings),
            share=server.share,
            secure=recipe.privacy.least if server.secure else 0,
            waiting=directory.waits,
        )
        federation.gather(settings.silos)
        if (least := recipe.privacy.least) >= (silos := len(register.members)) and server.secure:
            said = (
                f"{silos} silos, and a sum needs {least} fresh updates (privacy.least): whoever declines or is absent"
            )
            federation.note(f"{said} costs a round its sum; have more silos than that", "no-sum", logging.WARNING)
        session = Session(recipe, seed, federation, model, directory)
        state = session.begin(earlier)
        if state is not None:
            federation.note(f"going on after round {state.round - 1}", "resumed", round=state.round - 1)
        else:
            register.path = directory.path / SILOS
            register.write()
            words = {"run": run, "folder": settings.folder}  # the run's name among its silos; where `resume` finds it
            write_whole(directory.path / DEPLOYMENT, json.dumps(words))
        rounds = loop.rounds(
            server,
            theta,
            register.census().examples,
            evaluate=model.test,
            on_round=_told(session, federation, directory.path),
            state=state,
            census=register.census,
        )
        session.finish(loop.play(rounds, federation))
        return directory.path


def _keys(settings: Settings) -> Keys | None:
    """The silos that belong, where this is a deployment of ours."""
    return Keys(Path(settings.folder) / "keys") if settings.folder else None


def _dry_run(grid: Grid, recipe: str, size: int, curve: int, settings: Settings) -> Path:
    """Ask every silo who it is and write the answers to a file that `deploy check` reads; no run is touched."""
    patience = Patience(silos_s=min(90.0, settings.silos_timeout))
    federation = FlowerFederation(
        grid,
        Register(),
        run="dry-run",
        recipe=recipe,
        size=size,
        curve=curve,
        quorum=0,
        patience=patience,
        keys=_keys(settings),
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
    try:
        run = str(files.read_json(directory.path / DEPLOYMENT)["run"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{directory.path / DEPLOYMENT} does not name the run ({error}); repeat it with again = true"
        ) from None
    register = Register.load(directory.path / SILOS)
    for n in range(len(register.names), 0, -1):  # silos that came after the checkpoint are not in it yet
        try:
            earlier = directory.resume(theta, register.names[:n])
            return (earlier, (run, register)) if earlier is not None else (None, None)
        except CheckpointError:
            if n == 1:
                raise
    return None, None


def _told(session: Session, federation: FlowerFederation, path: Path) -> loop.OnRound:
    """What the session does after each round, and a line for whoever watches the server."""
    metric, last = metric_of(session.recipe, session.model), session.recipe.rounds
    forgotten: list[int] = []  # silos whose updates older checkpoints no longer hold
    lost: list[int] = []  # rounds without a sum

    def on_round(record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        erased = federation.register.census().erased  # who asked for it in this very round, too
        session.on_round(record, per_client, roster.erase(state, erased))
        if erased is not None and erased.sum() > len(forgotten):
            forgotten[:] = np.flatnonzero(erased)
            for old in checkpoint.existing(path / "checkpoint")[1:]:
                shutil.rmtree(old)
        _log_events(path, record.round, federation)
        words = ", ".join(f"{name} {word}" for name, word in zip(federation.silos, per_client.status))
        said = record.round, last, metric, record.accuracy, words
        log.info("round %d of %d: %s %s; %s", *said, extra={"event": "round", "round": record.round})
        if record.reason.startswith(UNRELEASED):
            lost.append(record.round)
            if len(lost) == 1:  # the live page counts them
                about = {"event": "no-sum", "round": record.round}
                log.warning(
                    "round %d: no sum was released: %s", record.round, privacy.why_not(record.reason), extra=about
                )
        for name, word, why in zip(federation.silos, per_client.status, per_client.reason):
            if word in (ABSENT, REFUSED):
                about = {"event": word, "round": record.round, "silo": name}
                log.warning("round %d: %s %s: %s", record.round, name, word, why, extra=about)

    return on_round


def _log_events(folder: Path, round: int, federation: FlowerFederation) -> None:
    """What happened beside the rounds goes to `events.jsonl`."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [json.dumps({"time": when, "round": round, "event": what}) for what in federation.events]
    try:
        with files.appending(folder / "events.jsonl") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:  # the rounds' own records count
        log.warning("cannot write to %s: %s", folder / "events.jsonl", error.strerror)
    federation.events.clear()
