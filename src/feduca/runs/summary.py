"""The figures of a run, from its records, and of several seeds together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from feduca.analysis import judging
from feduca.core.records import mean
from feduca.runs import standing
from feduca.runs.lines import columns
from feduca.runs.standing import LAST
from feduca.types import ABSENT, DECLINED, NOT_ASKED


def summarise(
    rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], silos: Sequence[str] = ()
) -> dict[str, Any]:
    """The figures of a run, from its records. Against the models alone only where they were recorded (standing.py)."""

    def over(key: str, records: Sequence[Mapping[str, Any]] = rounds) -> float | None:
        return mean([float("nan") if r[key] is None else r[key] for r in records])

    deployed = deployed_accuracy(clients[-LAST:])
    known = [value for value in deployed if not math.isnan(value)]
    flags = [  # round 1 has no own models
        flag
        for record in columns(clients[1:], "eq1", "status")
        for flag, status in zip(record["eq1"], record["status"])
        if status != NOT_ASKED
    ]
    told = not silent(clients)  # what only some tell says nothing of all
    return {
        "accuracy": over("accuracy", rounds[-LAST:]),
        "final_accuracy": rounds[-1]["accuracy"],
        "participation": over("participation"),
        "eq1_share": mean(flags) if told else None,
        "satisfied": over("satisfied"),
        "fallbacks": sum(r["fallback"] is not None for r in rounds),
        "jensen": over("jensen"),
        "discrepancy": over("discrepancy"),
        "r2": over("r2"),
        "concession": over("concession"),
        "promise_kept": over("promise_kept"),
        "deployed": mean(deployed) if told else None,
        "worst_client": min(known, default=None) if told else None,
        **standing.summary(clients, silos),
        **judged(clients),
        **standing.membership(rounds, clients, silos),
        "smallest_cohort": rounds[-1]["smallest_cohort"],
        "rounds": len(rounds),
        "seconds": sum(r["seconds"]["round"] for r in rounds),
    }


def silent(clients: Sequence[Mapping[str, Any]]) -> bool:
    """Whether silos decline without telling what their models score (`reporting.decliners`)."""
    declined = (
        (status, own)
        for record in columns(clients, "status", "own_accuracy")
        for status, own in zip(record["status"], record["own_accuracy"])
    )
    return any(status == DECLINED and own is None for status, own in declined)


def judged(clients: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of silos that are better off than alone, or worse, or undecided, with the models of the last round."""
    last = clients[-1].get("paired") if clients else None
    return {} if last is None else judging.figures([last])


def deployed_accuracy(clients: Sequence[Mapping[str, Any]]) -> list[float]:
    """Each silo's accuracy with the model it deploys, mean over these rounds: the offer where it joined, else its own.

    On the silo's untouched test part where it has one, else on its validation data. NaN where there is nothing.
    """

    def one(record: Mapping[str, Any], k: int) -> float:
        if record["test_deployed"] is not None and record["test_deployed"][k] is not None:
            return record["test_deployed"][k]
        return record["offered_accuracy" if record["status"][k] == "joined" else "own_accuracy"][k]

    clients = list(clients)  # each is looked at once per silo
    heard = [
        [one(r, k) for r in clients if r["status"][k] not in (ABSENT, NOT_ASKED)]
        for k in range(len(clients[0]["status"]))
    ]
    means = (mean([float("nan") if v is None else v for v in values]) for values in heard)
    return [float("nan") if value is None else value for value in means]


def over_seeds(
    rows: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any] | None], task: Mapping[str, Any]
) -> dict[str, Any]:
    """One row for several seeds: means, the standard deviation of accuracy, the worst silo, and every run's directory.

    Who is better off than alone is judged once, over the seeds together: `ends` are the last records' columns `paired`.
    """
    first = dict(rows[0])
    if len(rows) == 1:
        return first
    found = judging.poolable(ends, task)
    together = {} if found is None else judging.figures(*found)
    for key in ("left", *judging.FIGURES):  # are one seed's
        first.pop(key, None)
    for key in first.keys() - {"seed"}:
        values = [row.get(key) for row in rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            first[key] = mean([float("nan") if value is None else value for value in values])
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    if judged := [row for row in rows if row.get("gain_worst") is not None]:  # the worst silo of all seeds
        worst = min(judged, key=lambda row: row["gain_worst"])
        first |= {key: worst[key] for key in ("gain_worst", "gain_worst_silo")}
    return {
        **first,
        **together,
        "accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "seed": None,
        "seeds": [row["seed"] for row in rows],
        "run_dirs": [row["run_dir"] for row in rows],
    }
