"""The library's front door: run a recipe, iterate over its rounds, compare several."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from feduca.core import rounds as loop
from feduca.core.records import ClientRecord, RoundRecord
from feduca.errors import ConfigError, InputError, shown
from feduca.recipes import folders
from feduca.recipes.build import Experiment, build, fingerprint, make_task, origin
from feduca.recipes.folders import is_folder
from feduca.recipes.footprint import stored
from feduca.recipes.schema import Recipe
from feduca.recipes.schema import load as load_recipe
from feduca.runs import directory as runs
from feduca.runs import files, manifest
from feduca.runs.directory import RunDirectory, RunResult
from feduca.runs.extend import extend
from feduca.runs.session import Session, Watcher
from feduca.runs.store import OnDisk
from feduca.runs.vouched import read_back
from feduca.tasks.engines.gpu import peak
from feduca.types import ServerState, Task

log = logging.getLogger("feduca")

TASK = ("silos", "examples", "parameters", "size", "init", "train", "evaluate", "along", "test")  # what a Task has


def recipe(
    source: str | Path | Mapping[str, Any] | Recipe = "quickstart",
    settings: Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> Recipe:
    """A validated recipe with the usual overrides."""
    settings = _mapping(settings)
    if not isinstance(source, str | Path | Mapping | Recipe):
        raise ConfigError(
            f"the recipe is {shown(source)}: give a name, a TOML file or a mapping; a task goes in as task=..."
        )
    extra = {"rounds": rounds, "seeds": None if seed is None else [seed], "engine.device": device}
    chosen = {**settings, **{key: value for key, value in extra.items() if value is not None}}
    return source.with_settings(chosen) if isinstance(source, Recipe) else load_recipe(source, chosen)


def _mapping(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if settings is None or isinstance(settings, Mapping):
        return settings or {}
    raise ConfigError(f"settings is {shown(settings)}: give a mapping from dotted keys, such as {{'local.lr': 0.05}}")


def _check_task(task: Any) -> None:
    lacking = [name for name in TASK if not hasattr(task, name)]
    if lacking or isinstance(task, type):
        seen = f"the class {task.__name__}" if isinstance(task, type) else _seen(task)
        raise InputError(
            f"task is {seen}, which {'is no object' if not lacking else 'has no ' + ', '.join(lacking)}: give what"
            " feduca.own_task or build_own_task makes, or an object like feduca.Task"
        )


def _seen(task: Any) -> str:
    """Arrays by the bare name of what holds them."""
    return f"a {type(task).__name__} of {len(task)}" if isinstance(task, Mapping | list | tuple) else shown(task)


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
    goes on from its last checkpoint (`again` repeats it from the start). With a `task` of your own the folder's name depends on
    the task's fingerprint, a task that has none starts anew; the recipe's `[task]` and `[engine]` are not used then.
    """
    chosen = _single(source, settings, rounds, seed, device, task)
    seed = chosen.seeds[0]
    directory = None
    known = task is None or hasattr(task, "fingerprint")  # whether the folder's name says which task it was
    if out is not None:
        directory = _directory(files.place(out, "folder for runs"), chosen, seed)
        if not again:
            same_data(chosen, directory.path)
            if known and directory.state() == "finished":
                return read_back(directory.path)
        runs.check_writable(Path(out))
    return _play(chosen, seed, task, directory, watch, resuming=not again and known)


def _single(
    source: str | Path | Mapping[str, Any] | Recipe,
    settings: Mapping[str, Any] | None,
    rounds: int | None,
    seed: int | None,
    device: str | None,
    task: Task | None,
) -> Recipe:
    """The recipe of one run; with a `task` of the user's own it names that instead of the recipe's."""
    if task is not None:
        _check_task(task)
    settings = dict(_mapping(settings))
    made_for = getattr(task, "origin", None)
    if task is None or made_for is not None:
        chosen = recipe(source, settings, rounds=rounds, seed=seed, device=device).single()
        if task is None or made_for == origin(chosen, chosen.seeds[0]):
            return chosen
    if device is not None:
        settings["engine.device"] = device
    silos = len(task.silos)
    if silos == 1:
        log.warning("there is one silo, %s: it federates with nobody; give at least two", task.silos[0])
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
    if runs.state_of(path) is not None and not runs.task_of(path):
        raise InputError(
            f"{path}/env.json is missing or damaged, so it is unknown whether {chosen.task.data} has changed since: repeat the"
            " run with --again"
        )
    then = runs.task_of(path).get("files")
    if then is not None and then != folders.checksum(chosen.task.data):
        raise InputError(
            f"{chosen.task.data} has changed since {path} was run: repeat the run with --again, or choose another --out"
        )


def is_finished(chosen: Recipe, seed: int, out: str | Path) -> bool:
    """Whether `run` would find this run done below `out`."""
    return _directory(out, chosen, seed).state() == "finished"


def forget(chosen: Recipe, seed: int, out: str | Path) -> None:
    """Remove what is there of a run below `out`: the next one starts anew."""
    _directory(out, chosen, seed).forget()


def _directory(
    out: str | Path, chosen: Recipe, seed: int, name: str | None = None, place: Path | None = None
) -> RunDirectory:
    how = chosen.checkpoint.model_dump()
    return RunDirectory(Path(out), name or chosen.name, chosen.hash(), seed, **how, place=place)


def resume(
    path: str | Path, *, rounds: int | None = None, task: Task | None = None, watch: Watcher | None = None
) -> RunResult:
    """Go on with an interrupted run directory; one that is finished is read back, or with more `rounds` goes on, too.

    The result equals that of a run that was never interrupted, or had so many rounds from the start, bit for bit on CPU. A run
    with more rounds is another run: it gets a folder of its own beside the one it extends. `task` must be the one the run was
    started with, where that was your own.
    """
    if rounds is not None:
        path = extended(path, rounds)
    path = files.place(path)
    if runs.state_of(path) == "finished":
        return read_back(path)
    chosen, directory = recorded(path)
    same_data(chosen, directory.path)
    return _play(chosen, chosen.seeds[0], task, directory, watch, resuming=True)


def extended(path: str | Path, rounds: int) -> Path:
    """The folder of the run that `path` becomes with so many rounds, ready to be resumed; it may be there already."""
    chosen, directory = recorded(path)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < chosen.rounds:
        raise InputError(f"rounds is {rounds!r}, and {path} has {chosen.rounds}: give more")
    if rounds == chosen.rounds:
        return directory.path
    same_data(chosen, directory.path)
    longer = chosen.with_settings({"rounds": rounds})
    target = _directory(directory.path.parent.parent, longer, longer.seeds[0], directory.path.parent.name).path
    if runs.state_of(target) is None:
        run = f"{chosen.hash()}-s{chosen.seeds[0]}"
        extend(directory.path, run, target, {**longer.plain(), "seeds": longer.seeds[:1]})
    return target


def recorded(path: str | Path) -> tuple[Recipe, RunDirectory]:
    """The recipe of a run directory and the directory itself, wherever it lies and whatever it is called now."""
    path = files.place(path)
    chosen = described(path)
    place = path.resolve()
    return chosen, _directory(place.parent.parent, chosen, chosen.seeds[0], place.parent.name, place)


def described(path: Path) -> Recipe:
    """The recipe of a run directory, provided that it is the one that was run."""
    try:
        files.opened(path / "config.toml").close()
    except OSError:
        raise InputError(f"{path} is not a run directory (no config.toml); give one that `feduca run` wrote") from None
    chosen = load_recipe(path / "config.toml")
    name = f"{chosen.hash()}-s{chosen.seeds[0]}"
    if name != manifest.run_of(path, name):
        raise InputError(
            f"{path}/config.toml describes run {name}: it was changed, or another version of feduca wrote it;"
            f" undo that, or start a new run from it with `feduca run {path}/config.toml`"
        )
    return chosen


def _play(
    chosen: Recipe, seed: int, task: Task | None, directory: RunDirectory | None, watch: Watcher | None, resuming: bool
) -> RunResult:
    device = chosen.engine.device if chosen.own is None else "cpu"  # where a user's own task computes, nobody told us
    peak.reset(device)
    experiment = build(chosen, seed, task, None if directory is None else directory.rows)
    with directory or nullcontext():
        session, rounds = _start(chosen, seed, experiment, directory, watch, resuming)
        final = loop.play(rounds, experiment.federation)
        used = peak.megabytes(device)
        return session.finish(final, {} if used is None else {"peak_mb": used})


def _start(
    chosen: Recipe,
    seed: int,
    experiment: Experiment,
    directory: RunDirectory | None,
    watch: Watcher | None,
    resuming: bool,
) -> tuple[Session, loop.Rounds]:
    """Begin or resume; whoever drives the loop then finishes the session with its last state."""
    server, task, federation = experiment.server, experiment.task, experiment.federation
    if isinstance(experiment.store, OnDisk):
        experiment.store.check_room(stored(chosen, len(task.silos), task.size))
    session = Session(chosen, seed, federation, task, directory, watch)
    earlier = None
    if directory is not None and resuming:
        earlier = directory.resume(experiment.theta, federation.silos)
        if earlier is None and directory.state() is not None:
            log.warning("%s starts from round 1: %s", directory.path, runs.nothing_kept(directory.path))
    state = session.begin(earlier)
    rounds = loop.rounds(
        server,
        experiment.theta,
        task.examples,
        evaluate=task.test,
        on_round=session.on_round,
        state=state,
        store=experiment.store,
    )
    return session, rounds


def shape_of(chosen: Recipe) -> tuple:
    """Runs of the same shape can go in lockstep: the same data, model and engine."""
    t, e = chosen.task, chosen.engine
    judged = (t.target, t.metric, t.loss)
    return (t.data, t.model, tuple(t.hidden or ()), t.max_examples, t.data_dir, judged, tuple(e.model_dump().values()))


def run_many(
    jobs: Sequence[tuple[Recipe, int]],
    *,
    out: str | Path | None,
    lockstep: int = 1,
    again: bool = False,
    watch: Watcher | None = None,
) -> list[RunResult]:
    """Several runs, each as `run` would have done it; up to `lockstep` of one shape side by side in the same calls.

    Finished ones are read back, interrupted ones go on; without `out` nothing is kept. Runs on the same data, split and seed
    share one task.
    """
    results: dict[int, RunResult] = {}
    open_jobs: dict[tuple, list[int]] = {}
    first_of: dict[tuple, int] = {}
    same = [first_of.setdefault((chosen.name, chosen.hash(), seed), i) for i, (chosen, seed) in enumerate(jobs)]
    for i, (chosen, seed) in enumerate(jobs):
        if same[i] != i:  # one run for all cells that ask for it
            continue
        directory = None if out is None else _directory(out, chosen, seed)
        if directory is not None and not again:
            same_data(chosen, directory.path)
        if directory is not None and not again and directory.state() == "finished":
            results[i] = runs.load(directory.path)
        else:
            open_jobs.setdefault(shape_of(chosen), []).append(i)
    if open_jobs and out is not None:
        runs.check_writable(Path(out))
    for indices in open_jobs.values():
        for first in range(0, len(indices), lockstep):
            batch = indices[first : first + lockstep]
            done = _side_by_side([jobs[i] for i in batch], out, again, watch)
            results.update(zip(batch, done))
    return [results[i] for i in same]


def _side_by_side(
    jobs: Sequence[tuple[Recipe, int]], out: str | Path | None, again: bool, watch: Watcher | None
) -> list[RunResult]:
    if len(jobs) == 1:
        chosen, seed = jobs[0]
        return [run(chosen, seed=seed, out=out, again=again, watch=watch)]
    from feduca.federation.lockstep import together
    from feduca.tasks import merge

    tasks: dict[tuple, Task] = {}
    experiments, directories = [], []
    for chosen, seed in jobs:
        dealt = None if is_folder(chosen.task.data) else seed  # silos' files are not dealt by a seed
        key = (dealt, chosen.task.model_dump_json())
        if key not in tasks:
            tasks[key] = make_task(chosen, seed)
        directories.append(None if out is None else _directory(out, chosen, seed))
        rows = None if directories[-1] is None else directories[-1].rows
        experiments.append(build(chosen, seed, tasks[key], rows))
    with ExitStack() as stack:
        started = []
        for (chosen, seed), experiment, directory in zip(jobs, experiments, directories):
            if directory is not None:
                stack.enter_context(directory)
            started.append(_start(chosen, seed, experiment, directory, watch, resuming=not again))
        merged = merge([experiment.task for experiment in experiments])
        federations = [experiment.federation for experiment in experiments]
        finals = together([rounds for _, rounds in started], federations, merged)
        return [session.finish(final) for (session, _), final in zip(started, finals)]


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
        store=experiment.store,
    )
