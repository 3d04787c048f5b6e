"""Run a study's cells, skip what is done, and keep its summary up to date after every cell.

A study is one of the embedded ones, by name, or a user's own recipe, by the path of its TOML file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca import api
from feduca.analysis import partition_report as splits
from feduca.errors import ConfigError
from feduca.recipes import cost_hint, plugins
from feduca.recipes import schema as config
from feduca.recipes.build import check_here, make_task
from feduca.runs import directory as runs
from feduca.runs.directory import RunResult
from feduca.studies import jobs
from feduca.studies.cell_summary import CellSummary
from feduca.studies.cells import Cell, cells, set_by
from feduca.studies.pools import HERE, Where
from feduca.studies.summarise import PLAIN, summarise, taken_over
from feduca.studies.summary_file import SummaryFile, Tell, in_order, place, read
from feduca.studies.timed import timed

STUDIES = (
    "table1",
    "participation",
    "delta",
    "strategies",
    "jensen",
    "concavity",
    "discrepancy",
    "misreporting",
    "text",
    "cost",
    "splits",
    "schedules",
    "rules",
    "causes",
    "offers",
    "offers-quickstart",
    "offers-validation",
)

APART = (
    "real",
    "real-search",
    "readings",
)  # with pages of their own: natural silos, the search for the paper's reading

TIMED = ("cost",)  # studies whose clock counts: every run has the device to itself and starts warm

FREE = ("seeds", "rounds", "engine", "checkpoint")  # how long and where to run is the command line's to say, always

SAME = ("seeds", "engine", "checkpoint", "task.data_dir")  # settings that leave the experiment what it is

Watch = Callable[[float, int, str], None]  # runs done (and parts of them), runs in all, the label of what comes next


def parse_only(texts: Sequence[str]) -> dict[str, list[str]]:
    """`axis=label|label` of `--only`; said twice of one axis, both count."""
    keep: dict[str, list[str]] = {}
    for text in texts:
        axis, sign, labels = text.partition("=")
        if not sign or not axis:
            raise ConfigError(f"--only wants axis=label, got {text!r}; for instance --only data=fmnist")
        keep[axis] = list(dict.fromkeys([*keep.get(axis, []), *labels.split("|")]))
    return keep


def changed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings of a command line that make it another experiment than the recipe's."""
    return {key: value for key, value in settings.items() if not {key, key.split(".")[0]} & set(SAME)}


def results_folder(out: str | Path, smoke: bool, settings: Mapping[str, Any]) -> Path:
    """Where summaries go unless one says so: those of another experiment than the recipe's not among the real ones."""
    if smoke:
        return Path(out) / "results"
    return Path(out) / "changed" / "results" if changed(settings) else Path("results")


def is_file(name: str) -> bool:
    """Whether a study is a file of the user's."""
    return name.endswith(".toml")


def summary_name(name: str) -> str:
    """What a study's summary is called: a file of the user's says so itself (`name`, or else its own name).

    A copy of an embedded recipe (`feduca show`) has the `name` of that one, under which it finds that one's runs: its summary is
    called after the file.
    """
    if not is_file(name):
        return name
    called = config.load(name).name
    if called in config.recipes():
        called = Path(name).stem
    if called in (*STUDIES, *APART):
        raise ConfigError(
            f"{name} would be summarised in {called}.json, as a study of feduca's is; call the file something else"
        )
    return called


def plan(
    name: str,
    *,
    smoke: bool = False,
    settings: Mapping[str, Any] | None = None,
    keep: Mapping[str, Sequence[str]] | None = None,
) -> list[Cell]:
    """The cells of a study, all validated."""
    if name not in (*STUDIES, *APART) and name in config.recipes():
        whole = [study for study in (*STUDIES, *APART) if name in config.load(study).also]
        use = f"reproduce {whole[0]} --only study={config.load(name).study}" if whole else f"compare {name}"
        raise ConfigError(f"{name} is a recipe, not a study; use `feduca {use}`")
    if name not in (*STUDIES, *APART) and not is_file(name):
        raise ConfigError(f"there is no study {name!r}; {config.nearest(name, STUDIES)}")
    everything = _cells(name, smoke)
    seen: set[str] = set()
    for cell in everything:
        if place(cell.labels) in seen:
            raise ConfigError(f"{name} has two cells {cell.label!r}; give every value of an axis a label of its own")
        seen.add(place(cell.labels))
    _check_labels(name, everything, keep or {})
    chosen = kept(everything, keep or {})
    # Settings of the command line come last, over the small version; what an axis sets is not theirs to change.
    settings = settings or {}
    _check_settings(name, chosen, settings)
    found = []
    for cell, mine in zip(chosen, _each_its_own(chosen, settings)):
        found.append(Cell(cell.labels, cell.recipe.with_settings(mine), changed(mine)))
    return found


def kept(chosen: Sequence[Cell], keep: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The cells that `--only` leaves: on every axis it names, those with one of its labels."""
    return [cell for cell in chosen if all(cell.labels.get(axis) in labels for axis, labels in keep.items())]


def unjudged(name: str, smoke: bool, summary: Sequence[Mapping[str, Any]]) -> str:
    """Which rows left out by `--only` would say who is better off than alone (summary.beside); empty where none would."""
    found = [CellSummary.of(cell) for cell in summary]
    blind = [c for c in found if c.deployed_test_mean is not None and c.alone_test_mean is None]
    if not blind:
        return ""
    parts, there = {c.labels.get("study") for c in blind}, [c.labels for c in found]
    rows = dict.fromkeys(
        cell.labels.get("method", cell.label)
        for cell in plan(name, smoke=smoke)
        if cell.labels.get("study") in parts and dict(cell.labels) not in there and _bounds(cell.recipe)
    )
    said = "the ceiling and who is better off than alone come from other rows; add them to --only method=..."
    return f"{said}: {' | '.join(rows)}" if rows else ""


def _bounds(recipe: config.Recipe) -> bool:
    """Plain averaging with everybody in, or with nobody: the ceiling, and what silos have alone."""
    return (recipe.offer.kind, recipe.mechanism["name"]) == PLAIN and recipe.participation.rule in ("always", "never")


def _each_its_own(chosen: Sequence[Cell], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings for every cell: options of a search are for those cells that search, where there are any."""

    def has_use(cell: Cell, key: str) -> bool:
        kind = settings.get("offer.kind", cell.recipe.offer.kind)
        return key.removeprefix("offer.") in config.OFFER_OPTIONS.get(kind, ())

    options = {f"offer.{option}" for options in config.OFFER_OPTIONS.values() for option in options}
    choosy = {key for key in options & set(settings) if any(has_use(cell, key) for cell in chosen)}
    return [{k: v for k, v in settings.items() if k not in choosy or has_use(cell, k)} for cell in chosen]


def _check_labels(name: str, everything: Sequence[Cell], keep: Mapping[str, Sequence[str]]) -> None:
    """Refuse an `--only` that names an axis or a label that the study does not have."""
    there: dict[str, dict[str, None]] = {}
    for cell in everything:
        for axis, label in cell.labels.items():
            there.setdefault(axis, {})[label] = None
    for axis, labels in keep.items():
        if axis not in there:
            raise ConfigError(
                f"--only {axis}={'|'.join(labels)}: {name} has no axis {axis!r}; it has {', '.join(there)}"
            )
        for label in labels:
            if label not in there[axis]:
                hint = "; several labels are separated by |" if "," in label else ""
                raise ConfigError(f"--only {axis}={label}: the axis has {' | '.join(there[axis])}{hint}")
    left, so_far = list(everything), ""
    for axis, labels in keep.items():  # each is there, but not with the others
        mine = kept(left, {axis: labels})
        if not mine:
            has = list(dict.fromkeys(cell.labels[axis] for cell in left if axis in cell.labels))
            what = f"only {axis} {' | '.join(has)}" if has else f"no axis {axis!r}"
            raise ConfigError(f"--only {axis}={'|'.join(labels)}: no such cell with {so_far}, which has {what}")
        left, so_far = mine, f"{so_far}{' and ' if so_far else ''}{axis}={'|'.join(labels)}"


def _check_settings(name: str, chosen: Sequence[Cell], settings: Mapping[str, Any]) -> None:
    """Refuse to change what an axis sets: the table would show a cell under a label that is not its own."""
    shown = {cell.labels.get("study") for cell in chosen}
    parts = {part: recipe for part, recipe in _parts(name).items() if shown & {None, recipe.study}}
    for key in settings:
        for part, recipe in parts.items():
            if key.split(".")[0] not in FREE and (taken := set_by(recipe, key)):
                where, theirs = taken[0]
                raise ConfigError(
                    f"--set {key}: {where} of {part} sets {theirs}; choose its labels with --only, or"
                    f" run one federation of your own with `feduca run {part} --set {key}=...`"
                )
        if key.startswith("mechanism."):
            _check_option(key, chosen)


def _check_option(key: str, chosen: Sequence[Cell]) -> None:
    """Refuse an option that some cells' mechanisms do not have, and say which have it."""
    option = key.split(".")[1]
    have = [option in cell.recipe.mechanism for cell in chosen]
    if all(have):
        return
    without = chosen[have.index(False)]
    said = f"--set {key}: the mechanism {without.recipe.mechanism['name']} (of {without.label}) has no {option!r}"
    if not any(have):
        raise ConfigError(f"{said}; {config.nearest(option, list(without.recipe.mechanism)[1:])}")
    for axis in dict.fromkeys(axis for cell in chosen for axis in cell.labels):
        by_label: dict[str, set[bool]] = {}
        for cell, has in zip(chosen, have):
            by_label.setdefault(cell.labels.get(axis, ""), set()).add(has)
        if all(len(found) == 1 for found in by_label.values()):
            labels = "|".join(label for label, found in by_label.items() if found == {True})
            raise ConfigError(f"{said}; use --only {shlex.quote(f'{axis}={labels}')}")
    raise ConfigError(f"{said}; choose cells that have it with --only")


def _parts(name: str) -> dict[str, config.Recipe]:
    """A study's recipe and those it names in `also`, by name."""
    recipe = config.load(name)
    return {name: recipe} | {part: config.load(part) for part in recipe.also}


def _cells(name: str, smoke: bool) -> list[Cell]:
    """The cells of a recipe, and of those it names in `also`: parts of one study, told apart by the label `study`."""
    parts = list(_parts(name).values())
    if smoke and not parts[0].smoke:
        raise ConfigError(f"{name} has no small version; add a table [smoke] with its settings, e.g. rounds = 3")
    if len(parts) == 1:
        return cells(parts[0], None, smoke)
    return [
        Cell({"study": part.study, **cell.labels}, cell.recipe) for part in parts for cell in cells(part, None, smoke)
    ]


def execute(
    chosen: Sequence[Cell],
    *,
    out: str | Path = "runs",
    lockstep: int = 1,
    again: bool = False,
    warm: bool = False,
    where: Where = HERE,
    watch: Watch = lambda done, total, label: None,
    rounds: api.Watcher | None = None,
    tell: Tell = lambda line: None,
) -> Iterator[list[tuple[int, list[RunResult]]]]:
    """Run cells batch by batch: their places in `chosen`, each with a result per seed; all that are done come first.

    Neighbours of one shape go side by side, up to `lockstep` runs at a time. `warm`: every run is timed, so it starts on a warm
    device. Where that is not this process, batches are jobs and come as they are done; one that fails ends nothing but itself
    and is told by `Unfinished` at the end. `watch` hears of every batch before it starts, `rounds` of every round of every run
    of this process.
    """
    todo = [[s for s in cell.recipe.seeds if again or not api.is_finished(cell.recipe, s, out)] for cell in chosen]
    left = [cell.recipe for cell, seeds in zip(chosen, todo) for _ in seeds]
    check_here(left, device_elsewhere=where.on == "slurm")
    if line := cost_hint.warning_of_many(left):
        tell(line)
    total = sum(len(cell.recipe.seeds) for cell in chosen)
    done = total - len(left)

    def results(batch: Sequence[int], again: bool) -> list[tuple[int, list[RunResult]]]:
        wanted = [(chosen[i].recipe, seed) for i in batch for seed in chosen[i].recipe.seeds]
        found = iter(jobs.patiently(wanted, out, lockstep, again, rounds, tell))
        return [(i, [next(found) for _ in chosen[i].recipe.seeds]) for i in batch]

    if ready := [i for i, seeds in enumerate(todo) if not seeds]:
        yield results(ready, again=False)
    open_ = [i for i, seeds in enumerate(todo) if seeds]
    if open_ and (where.on or (not where.here and len(open_) > 1)):
        yield from _as_jobs(chosen, open_, todo, results, out, where, lockstep, again, total, watch)
        return
    for batch in _batches(chosen, open_, lockstep):
        first = chosen[batch[0]]
        watch(done, total, first.label if len(batch) == 1 else f"{first.label} and {len(batch) - 1} more")
        for recipe, seed in [(chosen[i].recipe, seed) for i in batch for seed in todo[i]] if warm else ():
            timed(recipe, seed, make_task(recipe, seed), out)
        yield results(batch, again=again and not warm)
        done += sum(len(todo[i]) for i in batch)
    watch(total, total, "")


def _as_jobs(
    chosen: Sequence[Cell],
    places: Sequence[int],
    todo: Sequence[Sequence[int]],
    results: Callable[[Sequence[int], bool], list[tuple[int, list[RunResult]]]],
    out: str | Path,
    where: Where,
    lockstep: int,
    again: bool,
    total: int,
    watch: Watch,
) -> Iterator[list[tuple[int, list[RunResult]]]]:
    """The batches of `execute` as jobs; a run that several cells ask for is one job's work. What fails is told at the end."""
    first_of: dict[tuple[str, str, int], int] = {}
    asked = {i: [(chosen[i].recipe.name, chosen[i].recipe.hash(), seed) for seed in todo[i]] for i in places}
    own = [i for i in places if all(first_of.setdefault(run, i) == i for run in asked[i])]
    done = total - sum(len(todo[i]) for i in places)
    failed: dict[int, jobs.Failure] = {}
    files, absolute = tuple(plugins.loaded()), str(Path(out).resolve())
    pool = where.pool(out)
    for i in own if again else ():  # now, and not in a job: that may be killed, and goes on when it is begun again
        for seed in todo[i]:
            api.forget(chosen[i].recipe, seed, out)

    def work(group: Sequence[int]) -> jobs.Work:
        return jobs.Work(tuple((chosen[i].recipe, s) for i in group for s in todo[i]), absolute, lockstep, files)

    def beat(going: Sequence[Sequence[int]]) -> None:
        parts = sum(jobs.part(chosen[i].recipe, seed, out) for group in going for i in group for seed in todo[i])
        watch(done + parts, total, f"{len(going)} {pool.word}")

    for group, failure in jobs.finish(_batches(chosen, own, lockstep), work, pool, beat):
        if failure is None:
            yield results(group, False)
        else:
            failed |= dict.fromkeys(group, failure)
        done += sum(len(todo[i]) for i in group)
    for i in (i for i in places if i not in own):
        if broken := [failed[first_of[run]] for run in asked[i] if first_of[run] in failed]:
            failed[i] = broken[0]
        else:
            yield results([i], False)
    if failed:
        first, why = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise jobs.Unfinished(
            f"{len(failed)} of {len(chosen)} failed, the others are done: {chosen[first].label}: {why.said} ({why.log}){more};"
            " the same command tries them again"
        )
    watch(total, total, "")


def _batches(chosen: Sequence[Cell], places: Sequence[int], lockstep: int) -> list[list[int]]:
    """Neighbouring cells with the same data and model, as many as fit beside each other."""
    batches: list[list[int]] = []
    runs = 0
    for i in places:
        recipe = chosen[i].recipe
        same = batches and api.shape_of(chosen[batches[-1][0]].recipe) == api.shape_of(recipe)
        if same and runs + len(recipe.seeds) <= lockstep:
            batches[-1].append(i)
            runs += len(recipe.seeds)
        else:
            batches.append([i])
            runs = len(recipe.seeds)
    return batches


def reproduce(
    name: str,
    *,
    smoke: bool = False,
    settings: Mapping[str, Any] | None = None,
    keep: Mapping[str, Sequence[str]] | None = None,
    out: str | Path = "runs",
    results: str | Path | None = None,
    lockstep: int = 1,
    where: Where = HERE,
    again: bool = False,
    fill: bool = False,
    watch: Watch = lambda done, total, label: None,
    tell: Tell = lambda line: None,
) -> list[dict[str, Any]]:
    """Run what is missing of a study and return its summary; `RESULTS/NAME.json` is written after every batch.

    `name` is one of `STUDIES` or the path of a TOML file (`summary_name`). Unset, `results` is what `results_folder` says.

    Cells that another call has already summarised stay in the file: a table can be filled in several sittings, and by
    several processes. `tell` hears of a cell that another takes the place of, and of one that stays because the new one has
    fewer of its seeds. With `fill` cells that are there are not run again even where their runs are gone; a cell that is the same
    run as one of another study in that folder is taken over from there.
    """
    if again and fill:
        raise ConfigError(
            "--again and --fill contradict each other: run everything anew, or only what the summary lacks"
        )
    chosen = plan(name, smoke=smoke, settings=settings, keep=keep)
    folder = results_folder(out, smoke, settings or {}) if results is None else Path(results)
    runs.check_writable(Path(out))
    runs.check_writable(folder, "--results")
    file = SummaryFile(folder / f"{summary_name(name)}.json", _places(name), tell)
    known = read(file.path)
    if name == "splits":
        return _draw(chosen, file, watch)
    missing = [cell for cell in chosen if not (fill and _summarised(cell, known))]
    if smoke:
        _spare(chosen, known, file.path)
    if fill and name not in TIMED:
        there = _everywhere(folder)
        taken = [(cell, taken_over(cell, there[_run_of(cell)])) for cell in missing if _run_of(cell) in there]
        missing = [cell for cell in missing if _run_of(cell) not in there]
        if taken:
            known = file.put(taken)
    if name in TIMED and lockstep > 1:
        tell(f"{name} runs one at a time, since its clock counts: --lockstep {lockstep} is left aside")
        lockstep = 1
    if name in TIMED and not where.here:
        tell(f"{name} runs one at a time and here, since its clock counts: --jobs and --on are left aside")
        where = HERE
    how = {"lockstep": lockstep, "where": where, "again": again, "warm": name in TIMED}
    batches = execute(missing, out=out, **how, watch=watch, tell=tell)
    for batch in batches:
        known = file.put([(missing[i], summarise(missing[i], results)) for i, results in batch])
    return [known[place(cell.labels)] for cell in chosen]


def _draw(chosen: Sequence[Cell], file: SummaryFile, watch: Watch) -> list[dict[str, Any]]:
    """The study that trains nothing: class counts of every cell's silos, and heat maps beside the summary."""
    known: Mapping[str, dict[str, Any]] = {}
    for done, cell in enumerate(chosen):
        watch(done, len(chosen), cell.label)
        shown = splits.describe(cell.recipe, cell.recipe.seeds[0], file.path.with_suffix(""))
        files = [f"{file.path.stem}/{Path(written).name}" for written in shown.pop("written")]  # seen from the summary
        known = file.put([(cell, {"labels": dict(cell.labels), **shown, "files": files})], compared=False)
    watch(len(chosen), len(chosen), "")
    return [known[place(cell.labels)] for cell in chosen]


def _summarised(cell: Cell, known: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the summary holds this cell, from the same configuration and at least these seeds."""
    if (entry := known.get(place(cell.labels))) is None:
        return False
    there = CellSummary.of(entry)
    return there.config_hash == cell.recipe.hash() and set(cell.recipe.seeds) <= set(there.seeds)


def _run_of(cell: Cell) -> tuple[str, tuple[int, ...]]:
    """What a cell computes, whichever study asks for it."""
    return cell.recipe.hash(), tuple(sorted(cell.recipe.seeds))


def _everywhere(folder: Path) -> dict[tuple[str, tuple[int, ...]], dict[str, Any]]:
    """Every cell that some study has summarised in the folder, by what it computes."""
    found = [cell for name in STUDIES for cell in read(folder / f"{name}.json").values() if "config_hash" in cell]
    return {(cell["config_hash"], tuple(sorted(cell["seeds"]))): cell for cell in reversed(found)}  # the first study's


def _spare(chosen: Sequence[Cell], known: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A small version never takes the place of the real one."""
    for cell in chosen:
        there = known.get(place(cell.labels))
        if there is not None and (data := CellSummary.of(there).data) != cell.recipe.task.data:
            raise ConfigError(f"{path} holds runs on {data}, which --smoke would replace: give another --results")


def ordered(name: str, summary: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells in the order in which the study's recipe lists them, whichever was run first; strangers come last."""
    return in_order(summary, _places(name))


def _places(name: str) -> dict[str, int]:
    """The order in which a study's recipe lists its cells."""
    return {place(cell.labels): i for i, cell in enumerate(_cells(name, smoke=False))}
