"""Logistic regression on a CSV file, as a feduca Task: all it takes to bring your own model and data.

A Task trains and scores flat vectors `theta[K, size]` for K clients at once; here a hospital has one client, itself. `theta`
holds one weight per measurement and a bias.
"""

from __future__ import annotations

import copy
import csv
from pathlib import Path

import numpy as np

from feduca.core.rng import stream
from feduca.errors import DataError
from feduca.types import LocalSpec, Scores

MEASUREMENTS = 30
# Units the hospitals agreed on beforehand: rough typical value and spread of each measurement (nobody's patients are needed).
TYPICAL = [14, 19, 90, 650, .1, .1, .09, .05, .18, .06, .4, 1.2, 2.9, 40, .007, .025, .03, .01, .02, .004,
           16, 26, 107, 880, .13, .25, .27, .11, .29, .08]  # fmt: skip
SPREAD = [3.5, 4.3, 24, 350, .014, .05, .08, .04, .03, .007, .28, .55, 2, 45, .003, .018, .03, .006, .008, .003,
          4.8, 6, 34, 570, .023, .16, .21, .066, .06, .018]  # fmt: skip
VALIDATION = 1 / 3


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Measurements in agreed units, and labels."""
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = np.array([[float(v) for v in row] for row in list(csv.reader(file))[1:]])
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); it is a CSV file of {MEASUREMENTS} numbers and a label"
        ) from None
    if rows.ndim != 2 or rows.shape[1] != MEASUREMENTS + 1 or len(rows) < 6:
        raise DataError(f"{path} has shape {rows.shape}; it needs at least 6 rows of {MEASUREMENTS + 1} columns")
    return (rows[:, :-1] - TYPICAL) / SPREAD, rows[:, -1]


class Logistic:
    """One hospital, or (without data) the server."""

    def __init__(self, name: str = "", index: int = 0, data=None, test=None) -> None:
        self.silos = (name,)
        self.size = self.parameters = MEASUREMENTS + 1
        self._index, self._test = index, test
        if data is not None:
            x, y = data
            order = stream(0, "validation split", len(y)).permutation(len(y))
            cut = int(len(y) * VALIDATION)
            self._parts = {"validation": (x[order[:cut]], y[order[:cut]]), "train": (x[order[cut:]], y[order[cut:]])}
            self.examples = np.array([len(y) - cut])

    def init(self, seed: int) -> np.ndarray:
        return np.zeros(self.size)

    def train(self, theta, clients, spec: LocalSpec, round: int, seed: int, anchor=None) -> np.ndarray:
        x, y = self._parts["train"]
        out = np.array(theta, dtype=float)
        rng = stream(seed, "batches", round, self._index)
        for _ in range(spec.epochs):
            order = rng.permutation(len(y))
            for start in range(0, len(y), spec.batch_size):
                b = order[start : start + spec.batch_size]
                error = 1 / (1 + np.exp(-_logits(out[0], x[b]))) - y[b]
                slope = np.append(x[b].T @ error, error.sum()) / len(b) + spec.weight_decay * out[0]
                if anchor is not None:
                    slope += spec.prox * (out[0] - anchor)
                out[0] -= spec.lr * slope
        return out

    def limited(self, most: int) -> Logistic:
        """The same hospital with fewer training examples, for an operator whose policy says so."""
        x, y = self._parts["train"]
        chosen = np.sort(stream(0, "quota", len(y)).permutation(len(y))[:most])
        less = copy.copy(self)
        less._parts = {**self._parts, "train": (x[chosen], y[chosen])}
        less.examples = np.array([len(chosen)])
        return less

    def evaluate(self, theta, clients, split: str) -> Scores:
        pairs = np.array([_score(row, *self._parts[split]) for row in theta])
        return Scores(pairs[:, 0], pairs[:, 1])

    def along(self, start, end, places, clients, split: str) -> Scores:
        between = [self.evaluate((1 - r) * start + r * end, clients, split) for r in places[0]]
        return Scores(*(np.stack([getattr(s, name) for s in between], 1) for name in ("accuracy", "loss")))

    def test(self, theta) -> Scores | None:
        if self._test is None:
            return None
        accuracy, loss = _score(theta, *self._test)
        return Scores(np.array([accuracy]), np.array([loss]))


def _logits(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x @ theta[:-1] + theta[-1]


def _score(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    z = _logits(theta, x)
    return float(((z > 0) == (y > 0.5)).mean()), float((np.logaddexp(0, z) - y * z).mean())
