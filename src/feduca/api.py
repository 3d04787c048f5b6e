"""The library's front door: run a recipe, iterate over its rounds, compare several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca import rounds as loop
from feduca import runs
from feduca.config import Recipe
from feduca.config import load as load_recipe
from feduca.errors import FeducaError
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
    `out`, the run directory is written below it, and a run that is finished there already is read back (`again` repeats it).
    """
    chosen = recipe(source, settings, rounds=rounds, seed=seed, device=device)
    seed = chosen.seeds[0]
    directory = None
    if out is not None:
        runs.check_writable(Path(out))
        directory = RunDirectory(Path(out), chosen.name, chosen.hash(), seed)
        if directory.state() == "finished" and not again and task is None:
            return runs.load(directory.path)
    experiment = build(chosen, seed, task)
    records: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []

    def on_round(record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        records.append(plain(record))
        clients.append(plain(per_client))
        if directory is not None:
            directory.append(records[-1], clients[-1])
        if watch is not None:
            watch(record, per_client)

    if directory is not None:
        described = getattr(experiment.task, "describe", dict)()
        directory.begin(chosen.plain(), seed, experiment.federation.silos, described)
    try:
        final = loop.play(
            loop.rounds(
                experiment.server,
                experiment.theta,
                experiment.task.examples,
                evaluate=experiment.task.test,
                on_round=on_round,
            ),
            experiment.federation,
        )
    except BaseException as error:
        if directory is not None:
            directory.fail(str(error) if isinstance(error, FeducaError) else f"{type(error).__name__}: {error}")
        raise
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
    listed = [(row.label, chosen.with_settings(row.set)) for row in chosen.compare]
    if chosen.cross:
        from feduca.cross import combinations

        listed += [(one.label, one.recipe) for one in combinations(chosen)]
    return listed or [(chosen.mechanism["name"], chosen)]
