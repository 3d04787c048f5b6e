"""From runs to the summary of a study: one dictionary per cell, what `results/NAME.json` holds."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feduca.records import mean
from feduca.reproduce import paper
from feduca.runs import RunResult
from feduca.study import Cell


def commit() -> str | None:
    """The commit this code is at, where it is a checkout (a trailing + marks uncommitted changes)."""
    here = Path(__file__).parent
    try:
        run = {"cwd": here, "capture_output": True, "text": True, "timeout": 10, "check": True}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **run).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **run).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if dirty else "")


def device(config: Mapping[str, Any]) -> str:
    if config["engine"]["device"] != "cuda":
        return "cpu"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"


def summarise(cell: Cell, results: Sequence[RunResult]) -> dict[str, Any]:
    """One cell of a study over its seeds."""
    config = results[0].config
    data, split = config["task"]["data"], _split(config)
    method = cell.labels.get("method", config["mechanism"]["name"])
    key = (data, split, method)
    accuracies = [result.accuracy for result in results if result.accuracy is not None]
    return {
        "data": data,
        "split": split,
        "method": method,
        "labels": dict(cell.labels),
        "schedule": config["mechanism"].get("schedule"),
        "rule": config["participation"]["rule"],
        "offer": config["offer"]["kind"],
        "memory": config["memory"]["kind"],
        "rounds": config["rounds"],
        "seeds": [result.seed for result in results],
        "accuracy_mean": mean(accuracies),
        "accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "participation_mean": mean([result.participation for result in results]),
        "paper_accuracy": paper.ACCURACY[key][0] if key in paper.ACCURACY else None,
        "paper_participation": paper.PARTICIPATION.get(key),
        "eq1_share": _over(results, "eq1_share"),
        "promise_kept": _over(results, "promise_kept"),
        "concession": _over(results, "concession"),
        "r2": _over(results, "r2"),
        "fallbacks": mean([result.summary["fallbacks"] for result in results]),
        "jensen": _jensen(results),
        "discrepancy": _curve(results, "discrepancy"),
        "discrepancy_bound_expected": _curve(results, "discrepancy_bound_expected"),
        "accuracy_by_round": _curve(results, "accuracy"),
        "participation_by_round": _curve(results, "participation"),
        **_better_off(results),
        "seconds": mean([result.summary["seconds"] for result in results]),
        "peak_mb": _over(results, "peak_mb"),
        "device": device(config),
        "config_hash": cell.recipe.hash(),
        "commit": commit(),
    }


def _split(config: Mapping[str, Any]) -> str:
    task = config["task"]
    return f"{float(task['train_concentration'])},{float(task['validation_concentration'])}"


def _over(results: Sequence[RunResult], key: str) -> float | None:
    values = [result.summary.get(key) for result in results]
    return mean([float("nan") if value is None else value for value in values])


def _curve(results: Sequence[RunResult], key: str) -> list[float | None] | None:
    """A quantity round by round, averaged over seeds; None where it was never defined."""
    table = [[float("nan") if r[key] is None else r[key] for r in result.rounds] for result in results]
    by_round = [mean(column) for column in zip(*table)]
    return None if all(value is None for value in by_round) else [_short(value) for value in by_round]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


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


def _better_off(results: Sequence[RunResult]) -> dict[str, float | None]:
    """On data no decision ever saw, mean over the last ten rounds: what the silo deploys and what it has of its own."""
    deployed = [record["test_deployed"] for result in results for record in result.clients[-10:]]
    own = [record["test_own"] for result in results for record in result.clients[-10:]]
    if any(values is None for values in deployed):
        return {}
    flat = [v for values in deployed for v in values if v is not None]
    own_flat = [v for values in own if values is not None for v in values if v is not None]
    return {"deployed_test_mean": mean(flat), "own_test_mean": mean(own_flat)}
