"""What docs/explore.md computes with: `python docs/explore.py` writes docs/_static/explore-data.js (no network).

Six clinics of the embedded recipe `clinics`, as sums over their rows: with the sums of x x', x y and y y a browser can fit a
linear model by least squares and score it, exactly. `play` is what docs/_static/explore.js does, in Python: tests compare them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).parent / "_static" / "explore-data.js"
SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # of a clinic's training rows
RIDGE = 20.0  # added to the diagonal, so that few rows give a sane model
ROUNDS = 12
POINTS = 10  # concessions a clinic tries if it picks its own: 0, 1/10, ... 9/10

Data = Mapping[str, Any]


def sums(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Rows as sums: the upper triangle of x x', x y, y y, and the spread of y around its mean."""
    upper = (x.T @ x)[np.triu_indices(x.shape[1])]
    short = [[float(f"{value:.7g}") for value in part] for part in (upper, x.T @ y)]
    spread = float(((y - y.mean()) ** 2).sum())
    return {"n": len(y), "xx": short[0], "xy": short[1], "yy": float(y @ y), "spread": round(spread, 6)}


def data() -> dict[str, Any]:
    """The clinics as the recipe deals them (split of seed 0)."""
    from feduca.recipes import build, schema

    task: Any = build.make_task(schema.load("clinics"), 0)
    x = np.column_stack([np.ones(len(task.pool.x)), np.asarray(task.pool.x, float)])
    y = np.asarray(task.pool.y, float)
    silos = []
    for member in task.members:
        train = member.rows["train"]
        parts = [train[: round(share * len(train))] for share in SHARES]
        held = {part: sums(x[rows], y[rows]) for part, rows in member.rows.items() if part != "train"}
        silos.append({"name": member.name, "train": [sums(x[rows], y[rows]) for rows in parts], **held})
    told = {"shares": SHARES, "ridge": RIDGE, "rounds": ROUNDS, "points": POINTS, "size": x.shape[1]}
    return {"command": "python docs/explore.py", **told, "silos": silos}


def play(
    found: Data, concession: Sequence[float], asks: Sequence[float], share: Sequence[int], best: bool
) -> dict[str, Any]:
    """All rounds: who is in, the shared model, and what every clinic ends with.

    Every clinic has the model it fits alone. The shared model is the mean of the models of those who are in; everybody starts
    in. A clinic joins if its offer explains more of its validation data than its own model does, by more than it asks for.
    """
    size, silos = found["size"], found["silos"]
    own = [_fit(silo["train"][i], size, found["ridge"]) for silo, i in zip(silos, share)]
    inside, rounds = [True] * len(silos), []
    shared = np.zeros(size)
    chosen, offered = list(concession), [0.0] * len(silos)
    alone = [_explained(model, silo["validation"]) for model, silo in zip(own, silos)]
    for _ in range(found["rounds"]):
        if any(inside):
            shared = np.mean([model for model, there in zip(own, inside) if there], axis=0)
        for k, silo in enumerate(silos):
            tried = [j / found["points"] for j in range(found["points"])] if best else [concession[k]]
            scores = [_explained((1 - c) * shared + c * own[k], silo["validation"]) for c in tried]
            offered[k] = max(scores)
            chosen[k] = tried[scores.index(offered[k])]
        inside = [offer > mine + ask for offer, mine, ask in zip(offered, alone, asks)]
        rounds.append(list(inside))
    deployed = [(1 - c) * shared + c * model if there else model for model, c, there in zip(own, chosen, inside)]
    return {
        "rounds": rounds,
        "concession": chosen,
        "alone": alone,
        "offered": offered,
        "shared": float(np.mean([_explained(shared, silo["test"]) for silo in silos])),
        "deployed": [_explained(model, silo["test"]) for model, silo in zip(deployed, silos)],
        "outside": [_explained(model, silo["test"]) for model, silo in zip(own, silos)],
    }


def _square(upper: Sequence[float], size: int) -> np.ndarray:
    full = np.zeros((size, size))
    full[np.triu_indices(size)] = upper
    return full + np.triu(full, 1).T


def _fit(part: Mapping[str, Any], size: int, ridge: float) -> np.ndarray:
    """Least squares with a ridge on everything but the constant."""
    penalty = ridge * np.eye(size)
    penalty[0, 0] = 0
    return np.linalg.solve(_square(part["xx"], size) + penalty, part["xy"])


def _explained(model: np.ndarray, part: Mapping[str, Any]) -> float:
    """The share of the spread that a model explains: below zero, the mean would do better."""
    error = part["yy"] - 2 * model @ np.array(part["xy"]) + model @ _square(part["xx"], len(model)) @ model
    return float(1 - error / part["spread"])


def main() -> None:
    text = json.dumps(data(), separators=(",", ":"))
    TARGET.write_text(f"window.FEDUCA_CLINICS = {text};\n", encoding="utf-8")


if __name__ == "__main__":
    main()
