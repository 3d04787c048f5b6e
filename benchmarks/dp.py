"""What differential privacy in the silo costs: accuracy and participation at several budgets, and the accountant beside another.

    python benchmarks/dp.py [SET ...] [--device cpu|cuda] [--smoke]
    python benchmarks/dp.py tables

Runs every method at every budget on three splits (fewer sets where named) and writes `benchmarks/results/dp.json`, cell by cell:
stopped, it goes on where it was. `--again` repeats, `--smoke` runs all of it small and writes nothing. `tables` puts the
committed figures into docs/privacy.md. All runs of a set have the same model, batches, rounds and learning rate, without noise,
too; the rate was chosen on another split (seed 7), for FedAvg with everybody in; so was the clip, the same for all sets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import feduca
from feduca.recipes.build import build
from feduca.runs.directory import environment
from feduca.runs.files import write_whole

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, too
from benchmarks.tables import markdown, replace_tables

RESULT = Path(__file__).parent / "results" / "dp.json"
PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
SEEDS = (0, 1, 2)
LAST = 10
BUDGETS = (None, 8.0, 3.0, 1.0)
CLIP = 3.0
TAILORED = {"participation.rule": "always", "participation.against": "outside", "offer.kind": "stack"}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, everybody in": {"participation.rule": "always"},
    "FedAvg, Eq. 1": {"participation.rule": "accuracy"},
    "our offer (tailored)": TAILORED,
}
NATURAL = {"task.model": "logistic", "local.epochs": 1, "local.batch_size": 256}
FMNIST = {
    "task.data": "fmnist", "task.clients": 10, "task.classes_per_client": 5, "task.validation_share": 0.2,
    "task.test_share": 0.5, "local.epochs": 1, "local.batch_size": 256, "local.lr": 0.1,
}  # fmt: skip
SETS: dict[str, dict[str, Any]] = {
    "randhie": {**NATURAL, "task.data": "randhie", "local.lr": 0.3},
    "azpro": {**NATURAL, "task.data": "azpro", "local.batch_size": 50, "local.lr": 0.3},
    "vowel": {
        "task.data": "vowel",
        "task.model": "mlp",
        "task.hidden": [16],
        "local.epochs": 5,
        "local.batch_size": 10,
        "local.lr": 0.3,
    },
    "fmnist": {**FMNIST, "task.model": "mlp", "task.hidden": [64]},
    "fmnist-6000": {
        **FMNIST,
        "task.max_examples": 6000,
        "local.batch_size": 64,
        "task.model": "mlp",
        "task.hidden": [64],
    },
    "fmnist-cnn": {**FMNIST, "task.model": "cnn", "task.hidden": [64]},
}
USUAL = ("randhie", "azpro", "vowel", "fmnist-6000")  # the others want a GPU


def settings(name: str, method: str, budget: float | None, device: str) -> dict[str, Any]:
    """Everything of one cell but its seed."""
    private = {} if budget is None else {"privacy.dp": "records", "privacy.epsilon": budget, "privacy.clip": CLIP}
    alone = budget is None or METHODS[method] == TAILORED  # else it is the same model again
    return {
        **SETS[name], "mechanism.name": "fedavg", **METHODS[method], "alone": alone, "engine.device": device, **private,
    }  # fmt: skip


def commonest(name: str, seeds: tuple[int, ...]) -> float:
    """The accuracy, mean over silos, of answering with the class that is commonest in all training data."""
    found = []
    for seed in seeds:
        task: Any = build(feduca.recipe({}, settings(name, "FedAvg, Eq. 1", None, "cpu")), seed).task
        y = task.pool.y.numpy()
        most = np.bincount(np.concatenate([y[silo.rows["train"]] for silo in task.members])).argmax()
        found += [np.mean(y[silo.rows["test"]] == most) for silo in task.members if len(silo.rows["test"])]
    return float(np.mean(found))


def mean(values: Any) -> float | None:
    known = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(known)) if known else None


def cell(
    name: str, method: str, budget: float | None, seeds: tuple[int, ...], rounds: int, device: str
) -> dict[str, Any]:
    """One method at one budget: figures over seeds, of the last ten rounds."""
    each: list[dict[str, Any]] = []
    started = time.perf_counter()
    for seed in seeds:
        found = feduca.run({"name": "dp", "rounds": rounds}, settings(name, method, budget, device), seed=seed)
        last = found.clients[-LAST:]
        spent = last[-1]["noted"]["epsilon"] if budget else None
        deployed, alone = (np.array([c[f"test_{of}"] for c in last], float) for of in ("deployed", "alone"))
        each.append({
            "shared": found.accuracy,
            "deployed": float(np.nanmean(deployed)),
            "alone": mean(alone.ravel()),
            "participation": mean(r["participation"] for r in found.rounds[-LAST:]),
            "spent": spent and [float(min(spent)), float(max(spent))],
        })  # fmt: skip
    keys = ("shared", "deployed", "alone", "participation")
    return {
        "method": method, "epsilon": budget, "seeds": len(each),
        **{key: mean(one[key] for one in each) for key in keys},
        "shared_std": float(np.std([one["shared"] for one in each], ddof=1)) if len(each) > 1 else None,
        "spent": None if budget is None else [min(o["spent"][0] for o in each), max(o["spent"][1] for o in each)],
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def measure(name: str, methods: list[str], smoke: bool, device: str, again: bool) -> None:
    """All cells of a set; each is written down when it is done, and what is there is not run again."""
    asked = {"settings": SETS[name], "clip": CLIP, "rounds": 30}
    for budget in sorted(BUDGETS, key=lambda b: b not in (None, 3.0)):
        for method in methods:
            whole = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
            before = whole.get(name, {})
            cells = before.get("cells", []) if {key: before.get(key) for key in asked} == asked and not again else []
            if not smoke and any((c["method"], c["epsilon"]) == (method, budget) for c in cells):
                continue
            found = cell(name, method, budget, SEEDS[:1] if smoke else SEEDS, 2 if smoke else 30, device)
            print(name, json.dumps(found), file=sys.stderr, flush=True)
            if smoke:
                continue
            whole = (
                json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
            )  # another set may have been run meanwhile
            more = {"commonest": commonest(name, SEEDS), "environment": environment()}
            whole[name] = {**asked, "cells": [*cells, found], **more}
            write_whole(RESULT, json.dumps(whole, indent=1) + "\n")
            again = False


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; or tables", default=list(USUAL))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one; may be repeated")
    parser.add_argument("--smoke", action="store_true", help="small, and nothing is written")
    parser.add_argument("--again", action="store_true", help="also cells that were run before")
    given = parser.parse_args(arguments)
    if given.sets == ["tables"]:
        replace_tables(PAGE, tables())
        return
    if strange := [name for name in given.sets if name not in SETS]:
        parser.error(f"no set is called {strange[0]!r}; choose of {', '.join(SETS)}, or tables")
    for name in given.sets:
        measure(name, given.method or list(METHODS), given.smoke, given.device, given.again)


def tables() -> dict[str, str]:
    """The tables of docs/privacy.md, by name."""
    whole = json.loads(RESULT.read_text(encoding="utf-8"))
    made = {}
    for name, found in whole.items():
        rows = []
        for method in METHODS:
            of = {c["epsilon"]: c for c in found["cells"] if c["method"] == method}
            if of:
                rows.append([method, *(_said(of.get(budget)) for budget in BUDGETS)])
        alone = mean(c["alone"] for c in found["cells"] if c["epsilon"] is None)
        rows.append(["alone, no noise", f"{100 * (alone or 0):.1f}", "", "", ""])
        rows.append(["always the commonest class", f"{100 * found['commonest']:.1f}", "", "", ""])
        made[name] = markdown(["method", *("no noise" if b is None else f"epsilon {b:g}" for b in BUDGETS)], rows)
    return made


def _said(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{100 * found['deployed']:.1f} ({100 * found['participation']:.0f})"


if __name__ == "__main__":
    main(sys.argv[1:])
