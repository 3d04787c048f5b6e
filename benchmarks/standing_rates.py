"""Short training and standing: who loses it, honest silos or one that sends noise: `python -m benchmarks.standing_rates`.

Digits, ten silos, by two rules: as it is, and by the mean cosine alone, as it was (an update had to answer, however loud it was).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from feduca import api
from feduca.analysis.incentives import LIMITED, deviation
from feduca.recipes.schema import Recipe, load
from feduca.runs.commit import commit
from feduca.studies.cells import cells
from feduca.trust import work

TARGET = Path(__file__).parent / "results" / "standing_rates.json"
RULES = {"by loudness, too": work.LOUD, "by the mean alone": math.inf}
LENGTHS = ((5, 30), (2, 15), (1, 30))  # epochs and rounds
SEEDS = range(5)


def without(recipe: Recipe, settings: dict[str, Any]) -> np.ndarray:
    """Who was without standing, by seed, round and silo."""
    jobs = [(api.recipe(recipe, settings, seed=seed).single(), seed) for seed in SEEDS]
    found = api.run_many(jobs, out=None, lockstep=len(jobs))
    return np.array([[record["standing"] for record in one.clients] for one in found]) <= LIMITED


def row(method: str, epochs: int, rounds: int, rule: str) -> dict[str, Any]:
    [cell] = cells(load("incentives"), {"data": ["digits"], "method": [method], "standing": ["on"]})
    recipe = cell.recipe.with_settings({"local.epochs": epochs, "rounds": rounds})
    work.LOUD = RULES[rule]
    honest, noisy = without(recipe, {}), without(recipe, deviation("noise", 0))
    return {
        "method": method,
        "epochs": epochs,
        "rounds": rounds,
        "rule": rule,
        "honest_limited": float(honest.mean()),
        "beside_noise_limited": float(noisy[:, :, 1:].mean()),
        "noise_found": float(noisy[:, :, 0].any(1).mean()),
    }


def main() -> None:
    methods = ("FedAvg, everybody in", "best mixture from consensus")
    rows = [row(method, *length, rule) for method in methods for length in LENGTHS for rule in RULES]
    command = " ".join(["python -m benchmarks.standing_rates", *sys.argv[1:]])
    about = {"command": command, "commit": commit(), "seeds": len(SEEDS)}
    TARGET.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for one in rows:
        print(one)


if __name__ == "__main__":
    main()
