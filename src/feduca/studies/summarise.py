"""From runs to the summary of a study: one dictionary per cell, what `results/NAME.json` holds."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feduca.analysis import judging
from feduca.core.records import mean
from feduca.recipes.schema import Recipe
from feduca.runs import directory as runs
from feduca.runs import standing
from feduca.runs.commit import commit
from feduca.runs.directory import RunResult
from feduca.runs.summary import silent
from feduca.studies import curves
from feduca.studies import printed as paper
from feduca.studies.cell_summary import CellSummary, PerSilo
from feduca.studies.cells import Cell

SHORT = 1e-6  # slack above what the solver's tolerance may leave


def device(config: Mapping[str, Any]) -> str:
    if config["engine"]["device"] != "cuda":
        return "cpu"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"


def summarise(cell: Cell, results: Sequence[RunResult]) -> dict[str, Any]:
    """One cell of a study over its seeds."""
    config = results[0].config
    accuracies = [result.accuracy for result in results if result.accuracy is not None]
    return {
        **_place(cell),
        "start": _start(cell),
        "train": _start(cell, frozenset({"test_share"})),  # the global test set does not care how a silo judges
        "mechanism": config["mechanism"]["name"],
        "clients": config["task"]["clients"],
        **_model(results[0]),
        "n_s": config["mechanism"].get("n_s"),
        "schedule": config["mechanism"].get("schedule"),
        "rule": "pooled" if config["task"].get("pooled") else config["participation"]["rule"],
        "ties": config["participation"]["ties"],
        "offer": config["offer"]["kind"],
        "memory": config["memory"]["kind"],
        "rounds": config["rounds"],
        "seeds": [result.seed for result in results],
        "split_seed": config["task"].get("split_seed"),
        "accuracies": [result.accuracy for result in results],
        "accuracy_mean": mean(accuracies),
        "accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "participations": [result.participation for result in results],
        "participation_mean": mean([result.participation for result in results]),
        "eq1_share": _over(results, "eq1_share"),
        "promise_kept": _over(results, "promise_kept"),
        "concession": _over(results, "concession"),
        "r2": _over(results, "r2"),
        "fits": curves.fits(results),
        "fallbacks": mean([result.summary["fallbacks"] for result in results]),
        "joined_least": min(r["joined"] for result in results for r in result.rounds),
        "promise_error": _promise_error(results),
        "short_share": _short_share([record for result in results for record in result.clients]),
        "jensen_short": _jensen_short(results),
        "jensen": _jensen(results),
        "discrepancy": _curve(results, "discrepancy"),
        "discrepancy_bound_expected": _curve(results, "discrepancy_bound_expected"),
        "accuracy_by_round": _curve(results, "accuracy"),
        "participation_by_round": _curve(results, "participation"),
        "members_share": mean([r.summary["still_in"] for r in results]),
        "own_validation_mean": _validation(results, "own_accuracy"),
        "global_validation_mean": _validation(results, "global_accuracy"),
        **_untouched(results),
        **_judged(results),
        **_kept_curves(results[0]),
        "seconds": mean([result.summary["seconds"] for result in results]),
        "seconds_allocate": mean([sum(r["seconds"]["allocate"] for r in result.rounds) for result in results]),
        "peak_mb": _over(results, "peak_mb"),
        "device": device(config),
        "precision": config["engine"]["precision"],
        "config_hash": cell.recipe.hash(),
        "experiment": experiment(cell.recipe),
        "commit": _commit(results),
    }


def _model(result: RunResult) -> dict[str, Any]:
    """Which model was trained, and from which weights: a ResNet's may be published ones or, for want of them, random."""
    told = {} if result.run_dir is None else runs.task_of(result.run_dir)
    return {"model": told.get("model"), "weights": told.get("weights")}


def _commit(results: Sequence[RunResult]) -> str | None:
    """The commit that ran; runs that do not say, being older, are taken to be of now."""
    found = {runs.commit_of(r.run_dir, commit()) if r.run_dir is not None else commit() for r in results}
    return ", ".join(sorted(one for one in found if one)) or None


def experiment(recipe: Recipe) -> str:
    """A name for what a recipe computes, wherever and however exactly it is computed."""
    return recipe.with_settings({"engine": {}, "task.data_dir": None}).hash()


def taken_over(cell: Cell, found: Mapping[str, Any]) -> dict[str, Any]:
    """A cell of another study that is the same run, under the labels it has in this one."""
    return {**found, **_place(cell)}


def _place(cell: Cell) -> dict[str, Any]:
    """What a cell's summary says about where it stands, and what the paper prints there."""
    config = cell.recipe.plain()
    data, split = config["task"]["data"], _split(config)
    method = cell.labels.get("method", config["mechanism"]["name"])
    key = ("", "", "") if "rule" in cell.labels else (data, split, method)  # the paper has each method under one rule
    return {
        "data": data,
        "split": split,
        "method": method,
        "labels": dict(cell.labels),
        "study": cell.recipe.study,
        "set": dict(cell.changed),
        "paper_accuracy": paper.ACCURACY[key][0] if key in paper.ACCURACY else None,
        "paper_participation": paper.PARTICIPATION.get(key),
    }


def _split(config: Mapping[str, Any]) -> str:
    task = config["task"]
    if "train_concentration" not in task:
        return "its own"  # silos' files
    return f"{float(task['train_concentration'])},{float(task['validation_concentration'])}"


def _over(results: Sequence[RunResult], key: str) -> float | None:
    values = [result.summary.get(key) for result in results]
    return mean([float("nan") if value is None else value for value in values])


def _curve(results: Sequence[RunResult], key: str) -> list[float | None] | None:
    """A quantity round by round, averaged over seeds; None where it was never defined."""
    table = [[float("nan") if r[key] is None else r[key] for r in result.rounds] for result in results]
    by_round = [mean(column) for column in zip(*table)]
    return None if all(value is None for value in by_round) else [standing.short(value) for value in by_round]


def _jensen(results: Sequence[RunResult]) -> dict[str, float] | None:
    """Sum of Jensen gaps per round: mean, and mean over the 50 and the 25 rounds with the largest (fractions of 1)."""
    found = []
    for result in results:
        gaps = sorted((r["jensen"] for r in result.rounds if r["jensen"] is not None), reverse=True)
        if gaps:
            found.append([float(np.mean(gaps)), float(np.mean(gaps[:50])), float(np.mean(gaps[:25]))])
    if not found:
        return None
    return dict(zip(("mean", "top50", "top25"), (float(v) for v in np.mean(found, axis=0))))


def _promise_error(results: Sequence[RunResult]) -> float | None:
    """How far what silos got is from what their curves promised, either way: mean over silos, rounds and seeds."""
    kept = [value for result in results for record in result.clients for value in record["promise_kept"]]
    return mean([np.nan if value is None else abs(value) for value in kept])


def _short_share(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of demands that the weights do not meet in full, that is, of constraints with slack."""
    slack = [value for record in records for value in record["slack"] or () if value is not None]
    return mean([value > SHORT for value in slack])


def _jensen_short(results: Sequence[RunResult]) -> dict[str, float | None] | None:
    """The same in the 25 rounds of each seed with the largest Jensen gaps (`top25`), and in all others (`rest`)."""
    top: list[Mapping[str, Any]] = []
    rest: list[Mapping[str, Any]] = []
    for result in results:
        both = [(r["jensen"], record) for r, record in zip(result.rounds, result.clients) if r["jensen"] is not None]
        ranked = [record for _, record in sorted(both, key=lambda pair: pair[0], reverse=True)]
        top, rest = top + ranked[:25], rest + ranked[25:]
    found = {"top25": _short_share(top), "rest": _short_share(rest)}
    return None if None in found.values() else found


def _start(cell: Cell, but: frozenset[str] = frozenset()) -> str:
    """A name for everything that models trained alone depend on besides the seed, `but` some entries of `[task]`."""
    what = cell.recipe.model_dump(include={"task", "local", "rounds", "engine"})
    what["engine"] = what["engine"]["precision"]
    what["task"] = {key: value for key, value in what["task"].items() if key not in {*but, "pooled"}}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def _last(results: Sequence[RunResult], column: str) -> list[list[float | None]] | None:
    """A column of the silos' records, mean over the last ten rounds: one list over silos per seed; None where unrecorded."""
    table = [standing.last(result.clients, column) for result in results]
    return None if any(row is None for row in table) else [row for row in table if row is not None]


def _validation(results: Sequence[RunResult], column: str) -> float | None:
    """Mean accuracy over silos and seeds on the data that silos decide by, last ten rounds: what settings may be chosen by."""
    found = _last(results, column)
    return None if found is None or any(silent(r.clients) for r in results) else mean(np.array(found, float))


def _untouched(results: Sequence[RunResult]) -> dict[str, Any]:
    """On data no decision ever saw, per seed and silo: what it deploys, and what it would have had alone if the run knows."""
    columns = {name: _last(results, f"test_{name}") for name in ("deployed", "own", "global", "alone")}
    if columns["deployed"] is None:
        return {}
    own, shared = columns["own"], columns["global"]
    return {
        "deployed_test": columns["deployed"],
        "alone_test": columns["alone"],
        "deployed_test_mean": mean(columns["deployed"]),
        "own_test_mean": None if own is None else mean(np.array(own, float)),
        "global_test_mean": None if shared is None else mean(shared),
    }


def _judged(results: Sequence[RunResult]) -> dict[str, Any]:
    """Who is better off than alone with the models of the last round, silo by silo over all seeds (analysis/judging.py)."""
    found = judging.poolable([result.clients[-1].get("paired") for result in results], results[0].config["task"])
    if found is None:
        return {}
    columns, parts = found
    seen = judging.pooled([judging.Paired.of(one) for one in columns], parts)
    return {"paired": seen.columns(), **judging.figures(columns, parts)}


def _kept_curves(result: RunResult) -> dict[str, Any]:
    """A few measured utility curves, where the run kept them."""
    found = curves.curves(result)
    return {} if found is None else {"curves": found}


def beside(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a study with what only their neighbours know: the ceiling, and who is better off than alone.

    The ceiling is the row in which everybody is forced in, the models alone are those of the row in which nobody ever joins (or
    the run's own, where it trained them), both on the same data, split, seeds and local work.
    """
    known = [CellSummary.of(cell) for cell in cells]
    return [{**cell, **_ceiling(one, known), **_better_off(one, known)} for cell, one in zip(cells, known)]


PLAIN = ("global", "fedavg")  # offer and mechanism of the rows that others are held against


def _neighbour(
    cell: CellSummary, cells: Sequence[CellSummary], rule: str, key: Callable[[CellSummary], str]
) -> CellSummary | None:
    """The row of plain averaging under `rule` that shares the cell's `key` and has run all of its seeds, if there is one."""
    plain = (c for c in cells if (c.rule, c.offer, c.mechanism) == (rule, *PLAIN))
    same = (c for c in plain if key(c) and key(c) == key(cell) and set(cell.seeds) <= set(c.seeds))
    return next(same, None)


def _ceiling(cell: CellSummary, cells: Sequence[CellSummary]) -> dict[str, float | None]:
    forced = _neighbour(cell, cells, "always", lambda c: c.train)
    if forced is None:
        return {}
    by_seed = dict(zip(forced.seeds, forced.accuracies))
    return {"ceiling_accuracy_mean": mean([by_seed[seed] for seed in cell.seeds])}


def alone(cell: CellSummary, cells: Sequence[CellSummary]) -> PerSilo | None:
    """What each silo of each seed would have had alone: as the run itself knows, or from the row in which nobody ever joins."""
    if cell.alone_test is not None:
        return cell.alone_test
    solo = _neighbour(cell, cells, "never", lambda c: c.start)
    if solo is None or not solo.deployed_test:
        return None
    by_seed = dict(zip(solo.seeds, solo.deployed_test))
    return [by_seed[seed] for seed in cell.seeds]


def _better_off(cell: CellSummary, cells: Sequence[CellSummary]) -> dict[str, float]:
    """Silos of all seeds together; the worst silo both over everything and as the mean over seeds."""
    without = alone(cell, cells)
    return {} if cell.deployed_test is None or without is None else standing.figures(cell.deployed_test, without)
