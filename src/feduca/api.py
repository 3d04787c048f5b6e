"""The library's front door: run a recipe, iterate over its rounds, compare several."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduca import folders, peak, runs
from feduca import rounds as loop
from feduca.config import Recipe
from feduca.config import load as load_recipe
from feduca.errors import ConfigError, InputError
from feduca.experiment import Experiment, build, fingerprint, make_task, origin
from feduca.federation import InProcess
from feduca.folders import is_folder
from feduca.records import ClientRecord, RoundRecord, plain
from feduca.runs import RunDirectory, RunResult, summarise
from feduca.types import ServerState, Task

log = logging.getLogger("feduca")

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
    goes on from its last checkpoint (`again` repeats it from the start). With a `task` of your own a run starts anew (see
    `resume`), in a folder whose name depends on the task's fingerprint; the recipe's `[task]` and `[engine]` are not used then.
    """
    chosen = _single(source, settings, rounds, seed, device, task)
    seed = chosen.seeds[0]
    directory = None
    if out is not None:
        runs.check_writable(Path(out))
        directory = _directory(out, chosen, seed)
        if not again:
            same_data(chosen, directory.path)
        if directory.state() == "finished" and not again and task is None:
            return runs.load(directory.path)
    return _play(chosen, seed, task, directory, watch, resuming=not again and task is None)


def _single(
    source: str | Path | Mapping[str, Any] | Recipe,
    settings: Mapping[str, Any] | None,
    rounds: int | None,
    seed: int | None,
    device: str | None,
    task: Task | None,
) -> Recipe:
    """The recipe of one run; with a `task` of the user's own it names that instead of the recipe's."""
    settings = dict(settings or {})
    made_for = getattr(task, "origin", None)
    if task is None or made_for is not None:
        chosen = recipe(source, settings, rounds=rounds, seed=seed, device=device).single()
        if task is None or made_for == origin(chosen, chosen.seeds[0]):
            return chosen
    if device is not None:
        settings["engine.device"] = device
    silos = len(task.silos)
    for key, value in settings.items():
        if key == "task.clients" and value != silos:
            raise ConfigError(f"task.clients is {value!r}, but the task given has {silos} silos: leave it out")
        if key != "task.clients" and key.partition(".")[0] in ("task", "engine", "own"):
            raise ConfigError(f"{key} is {value!r} beside a task of your own, which it does not reach: set it there")
    mine = {"task.clients": silos, "own": fingerprint(task)}
    return recipe(source, {**settings, **mine}, rounds=rounds, seed=seed).single()


def same_data(chosen: Recipe, path: Path) -> None:
    """Refuse to read back, go on with or export a run whose silos' files have changed since."""
    if chosen.own is not None or not is_folder(chosen.task.data):
        return
    then = runs.task_of(path).get("files")
    if then is not None and then != folders.checksum(chosen.task.data):
        raise InputError(
            f"{chosen.task.data} has changed since {path} was run: repeat the run with --again, or choose another --out"
        )


def is_finished(chosen: Recipe, seed: int, out: str | Path) -> bool:
    """Whether `run` would find this run done below `out`."""
    return _directory(out, chosen, seed).state() == "finished"


def _directory(out: str | Path, chosen: Recipe, seed: int, name: str | None = None) -> RunDirectory:
    return RunDirectory(Path(out), name or chosen.name, chosen.hash(), seed, **chosen.checkpoint.model_dump())


def resume(path: str | Path, *, task: Task | None = None, watch: Watcher | None = None) -> RunResult:
    """Go on with an interrupted run directory; one that is finished is read back.

    The result equals that of a run that was never interrupted, bit for bit on CPU. `task` must be the one the run was started
    with, where that was your own.
    """
    if runs.state_of(path) == "finished":
        return runs.load(path)
    chosen, directory = recorded(path)
    same_data(chosen, directory.path)
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
    return chosen, _directory(parent.parent, chosen, chosen.seeds[0], parent.name)


@dataclass(frozen=True)
class _Started:
    """A run whose directory is open and whose loop is ready to be driven."""

    loop: loop.Rounds
    federation: InProcess
    finish: Callable[..., RunResult]  # the last state, and what else the summary should say


def _play(
    chosen: Recipe, seed: int, task: Task | None, directory: RunDirectory | None, watch: Watcher | None, resuming: bool
) -> RunResult:
    device = chosen.engine.device if chosen.own is None else "cpu"  # where a user's own task computes, nobody told us
    peak.reset(device)
    experiment = build(chosen, seed, task)
    with directory or nullcontext():
        started = _start(chosen, seed, experiment, directory, watch, resuming)
        final = loop.play(started.loop, started.federation)
        used = peak.megabytes(device)
        return started.finish(final, {} if used is None else {"peak_mb": used})


def _start(
    chosen: Recipe,
    seed: int,
    experiment: Experiment,
    directory: RunDirectory | None,
    watch: Watcher | None,
    resuming: bool,
) -> _Started:
    """Begin or resume; whoever drives the loop then calls `finish` with its last state."""
    server, task, federation = experiment.server, experiment.task, experiment.federation
    records: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []
    state = None

    def on_round(record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        records.append(plain(record))
        clients.append(plain(per_client))
        if directory is not None:
            directory.append(records[-1], clients[-1])
            directory.save(state, federation.snapshot(), last=state.round > server.rounds)
        if watch is not None:
            watch(record, per_client)

    def finish(final: ServerState, more: Mapping[str, Any] | None = None) -> RunResult:
        summary = {**summarise(records, clients, federation.silos), **(more or {})}
        if (judge := getattr(task, "criterion", None)) is not None and judge.score is not None:
            summary["metric"] = judge.name  # what the figures called accuracy are here
        if directory is not None:
            directory.finish(summary)
        where = None if directory is None else directory.path
        silos = tuple(federation.silos)
        return RunResult(chosen.name, chosen.plain(), seed, records, clients, summary, where, final.theta, silos)

    if directory is not None:
        earlier = directory.resume(experiment.theta, federation.silos) if resuming else None
        if earlier is not None:
            federation.restore(earlier.clients)
            state = earlier.state
            records.extend(earlier.rounds)
            clients.extend(earlier.records)
        else:
            if resuming and directory.state() is not None:
                log.warning("%s starts from round 1: %s", directory.path, runs.nothing_kept(directory.path))
            directory.begin(chosen.plain(), seed, federation.silos, getattr(task, "describe", dict)())
    rounds = loop.rounds(server, experiment.theta, task.examples, evaluate=task.test, on_round=on_round, state=state)
    return _Started(rounds, federation, finish)


def shape_of(chosen: Recipe) -> tuple:
    """Runs of the same shape can go in lockstep: the same data, model and engine."""
    t, e = chosen.task, chosen.engine
    judged = (t.target, t.metric, t.loss)
    return (t.data, t.model, tuple(t.hidden or ()), t.max_examples, t.data_dir, judged, tuple(e.model_dump().values()))


def run_many(
    jobs: Sequence[tuple[Recipe, int]],
    *,
    out: str | Path,
    lockstep: int = 1,
    again: bool = False,
    watch: Watcher | None = None,
) -> list[RunResult]:
    """Several runs, each as `run` would have done it; up to `lockstep` of one shape side by side in the same calls.

    Finished ones are read back, interrupted ones go on. Runs on the same data, split and seed share one task.
    """
    runs.check_writable(Path(out))
    results: dict[int, RunResult] = {}
    open_jobs: dict[tuple, list[int]] = {}
    first_of: dict[tuple, int] = {}
    same = [first_of.setdefault((chosen.name, chosen.hash(), seed), i) for i, (chosen, seed) in enumerate(jobs)]
    for i, (chosen, seed) in enumerate(jobs):
        if same[i] != i:  # one run for all cells that ask for it
            continue
        directory = _directory(out, chosen, seed)
        if not again:
            same_data(chosen, directory.path)
        if directory.state() == "finished" and not again:
            results[i] = runs.load(directory.path)
        else:
            open_jobs.setdefault(shape_of(chosen), []).append(i)
    for indices in open_jobs.values():
        for first in range(0, len(indices), lockstep):
            batch = indices[first : first + lockstep]
            done = _side_by_side([jobs[i] for i in batch], Path(out), again, watch)
            results.update(zip(batch, done))
    return [results[i] for i in same]


def _side_by_side(jobs: Sequence[tuple[Recipe, int]], out: Path, again: bool, watch: Watcher | None) -> list[RunResult]:
    if len(jobs) == 1:
        chosen, seed = jobs[0]
        return [run(chosen, seed=seed, out=out, again=again, watch=watch)]
    from feduca.federation.lockstep import together
    from feduca.tasks import merge

    tasks: dict[tuple, Task] = {}
    experiments = []
    for chosen, seed in jobs:
        dealt = None if is_folder(chosen.task.data) else seed  # silos' files are not dealt by a seed
        key = (dealt, chosen.task.model_dump_json())
        if key not in tasks:
            tasks[key] = make_task(chosen, seed)
        experiments.append(build(chosen, seed, tasks[key]))
    with ExitStack() as stack:
        started = []
        for (chosen, seed), experiment in zip(jobs, experiments):
            directory = _directory(out, chosen, seed)
            stack.enter_context(directory)
            started.append(_start(chosen, seed, experiment, directory, watch, resuming=not again))
        merged = merge([experiment.task for experiment in experiments])
        finals = together([one.loop for one in started], [one.federation for one in started], merged)
        return [one.finish(final) for one, final in zip(started, finals)]


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
    chosen = _single(source, settings, rounds, seed, device, task)
    experiment = build(chosen, chosen.seeds[0], task)
    yield from loop.steps(
        experiment.server,
        experiment.theta,
        experiment.task.examples,
        experiment.federation,
        evaluate=experiment.task.test,
    )
