"""The library's front door: run a recipe, iterate over its rounds, compare several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from feduca import rounds as loop
from feduca import runs
from feduca.config import Recipe
from feduca.config import load as load_recipe
from feduca.errors import InputError
from feduca.experiment import build
from feduca.records import ClientRecord, RoundRecord, plain
from feduca.runs import RunDirectory, RunResult, summarise
from feduca.types import ServerState, Task

Watcher = Callable[[RoundRecord, ClientRecord], None]


def recipe(
    source: str | Path | Mapping[str, Any] | Recipe = "quickstart",
    settings: Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> Recipe:
    """A validated recipe with the usual overrides."""
    extra = {"rounds": rounds, "seeds": None if seed is None else [seed], "engine.device": device}
    chosen = {**(settings or {}), **{key: value for key, value in extra.items() if value is not None}}
    return source.with_settings(chosen) if isinstance(source, Recipe) else load_recipe(source, chosen)


def run(
    source: str | Path | Mapping[str, Any] | Recipe = "quickstart",
    settings: Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    task: Task | None = None,
    watch: Watcher | None = None,
    again: bool = False,
) -> RunResult:
    """Run one federation (the recipe's first seed) and return what happened.

    `settings` changes recipe entries by dotted key, `task` puts your own model and data in place of the recipe's. With
    `out`, the run directory is written below it; a run that is finished there already is read back, one that was interrupted
    goes on from its last checkpoint (`again` repeats it from the start). With a `task` of your own a run starts anew: only you
    know whether the task is still the same (see `resume`).
    """
    chosen = recipe(source, settings, rounds=rounds, seed=seed, device=device)
    seed = chosen.seeds[0]
    directory = None
    if out is not None:
        runs.check_writable(Path(out))
        directory = RunDirectory(Path(out), chosen.name, chosen.hash(), seed, chosen.checkpoint.every_s)
        if directory.state() == "finished" and not again and task is None:
            return runs.load(directory.path)
    return _play(chosen, seed, task, directory, watch, resuming=not again and task is None)


def resume(path: str | Path, *, task: Task | None = None, watch: Watcher | None = None) -> RunResult:
    """Go on with an interrupted run directory; one that is finished is read back.

    The result equals that of a run that was never interrupted, bit for bit on CPU. `task` must be the one the run was started
    with, where that was your own.
    """
    chosen, directory = recorded(path)
    if directory.state() == "finished":
        return runs.load(path)
    return _play(chosen, chosen.seeds[0], task, directory, watch, resuming=True)


def recorded(path: str | Path) -> tuple[Recipe, RunDirectory]:
    """The recipe of a run directory and the directory itself, provided that they still belong together."""
    path = Path(path)
    if not (path / "config.toml").is_file():
        raise InputError(f"{path} is not a run directory (no config.toml); give one that `feduca run` wrote")
    chosen = load_recipe(path / "config.toml")
    name = f"{chosen.hash()}-s{chosen.seeds[0]}"
    if path.resolve().name != name:
        raise InputError(
            f"{path}/config.toml describes run {name}: it was changed, or another version of feduca wrote it;"
            f" undo that, or start a new run from it with `feduca run {path}/config.toml`"
        )
    parent = path.resolve().parent
    return chosen, RunDirectory(parent.parent, parent.name, chosen.hash(), chosen.seeds[0], chosen.checkpoint.every_s)


def _play(
    chosen: Recipe, seed: int, task: Task | None, directory: RunDirectory | None, watch: Watcher | None, resuming: bool
) -> RunResult:
    experiment = build(chosen, seed, task)
    federation, state = experiment.federation, None
    records: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []

    def on_round(record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        records.append(plain(record))
        clients.append(plain(per_client))
        if directory is not None:
            directory.append(records[-1], clients[-1])
            directory.save(state, federation.snapshot(), last=state.round > experiment.server.rounds)
        if watch is not None:
            watch(record, per_client)

    with directory or nullcontext():
        if directory is not None:
            earlier = directory.resume(experiment.theta, federation.silos) if resuming else None
            if earlier is not None:
                federation.restore(earlier.clients)
                state, records, clients = earlier.state, earlier.rounds, earlier.records
            else:
                described = getattr(experiment.task, "describe", dict)()
                directory.begin(chosen.plain(), seed, federation.silos, described)
        final = loop.play(
            loop.rounds(
                experiment.server,
                experiment.theta,
                experiment.task.examples,
                evaluate=experiment.task.test,
                on_round=on_round,
                state=state,
            ),
            federation,
        )
        summary = summarise(records, clients)
        if directory is not None:
            directory.finish(summary)
    where = None if directory is None else directory.path
    return RunResult(chosen.name, chosen.plain(), seed, records, clients, summary, where, final.theta)


def iterate(
    source: str | Path | Mapping[str, Any] | Recipe = "quickstart",
    settings: Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    task: Task | None = None,
) -> Iterator[tuple[RoundRecord, ClientRecord, ServerState]]:
    """The loop as a generator: one item per finished round. Stop whenever you like."""
    chosen = recipe(source, settings, rounds=rounds, seed=seed, device=device)
    experiment = build(chosen, chosen.seeds[0], task)
    yield from loop.steps(
        experiment.server,
        experiment.theta,
        experiment.task.examples,
        experiment.federation,
        evaluate=experiment.task.test,
    )


def rows(chosen: Recipe) -> Sequence[tuple[str, Recipe]]:
    """The recipe's comparison: one labelled recipe per row, all validated before anything runs."""
    if not chosen.compare:
        return [(chosen.mechanism["name"], chosen)]
    return [(row.label, chosen.with_settings(row.set)) for row in chosen.compare]
