"""A real little task without torch: logistic regression on seeded Gaussian silos, in numpy, along the client axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from feduca.core.rng import stream
from feduca.types import Floats, Ints, LocalSpec, Predictions, Scores

DIMENSION = 4


class NumpyTask:
    """`clients` silos of unequal size whose true boundaries differ; theta is one weight vector."""

    def __init__(self, clients: int = 4, seed: int = 0, validation: int = 40) -> None:
        self.silos = tuple(f"silo-{k}" for k in range(clients))
        self.parameters = self.size = DIMENSION
        self.parameter_names = {"body.weight": DIMENSION - 1, "head.bias": 1}
        self._data = {}
        for k in range(clients):
            rng = stream(seed, "numpy-task", k)  # keyed by client: adding one leaves the others' data as they were
            w = np.ones(DIMENSION) + rng.normal(size=DIMENSION)
            for split, n in (("train", 20 + 7 * k), ("validation", validation), ("test", 30)):
                x = rng.normal(size=(n, DIMENSION))
                y = (x @ w + 0.5 * rng.normal(size=n) > 0).astype(float)
                self._data[k, split] = (x, y)
        self.examples = np.array([len(self._data[k, "train"][1]) for k in range(clients)])
        self.validation_examples = np.full(clients, validation)
        self.test_examples = np.full(clients, 30)
        self._test = (np.concatenate([self._data[k, "test"][0] for k in range(clients)]),
                      np.concatenate([self._data[k, "test"][1] for k in range(clients)]))  # fmt: skip

    def init(self, seed: int) -> Floats:
        return 0.1 * stream(seed, "init").normal(size=DIMENSION)

    def train(
        self,
        theta: Floats,
        clients: Ints,
        spec: LocalSpec,
        round: int,
        seed: int,
        anchor: Floats | None = None,
        drift: Floats | None = None,
        free: Floats | None = None,
    ) -> Floats:
        out = np.array(theta, dtype=float)
        for row, k in enumerate(clients):
            x, y = self._data[int(k), "train"]
            rng = stream(seed, "batches", round, int(k))
            for _ in range(spec.epochs):
                order = rng.permutation(len(y))
                for i in range(0, len(y), spec.batch_size):
                    b = order[i : i + spec.batch_size]
                    p = 1 / (1 + np.exp(-(x[b] @ out[row])))
                    g = x[b].T @ (p - y[b]) / len(b)
                    if anchor is not None:
                        g = g + spec.prox * (out[row] - (anchor if anchor.ndim == 1 else anchor[row]))
                    if drift is not None:
                        g = g + drift[row]
                    if free is not None:
                        g = g * free[row]
                    out[row] -= spec.lr * g
        return out

    def evaluate(self, theta: Floats, clients: Ints, split: str) -> Scores:
        pairs = [_score(theta[row], *self._data[int(k), split]) for row, k in enumerate(clients)]
        return Scores(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))

    def along(self, start: Floats, end: Floats, places: Floats, clients: Ints, split: str) -> Scores:
        columns = []
        for m in range(places.shape[1]):
            r = places[:, m : m + 1]
            columns.append(self.evaluate((1 - r) * start + r * end, clients, split))
        return Scores(np.stack([c.accuracy for c in columns], 1), np.stack([c.loss for c in columns], 1))

    def predict(self, theta: Floats, clients: Ints, split: str) -> Predictions:
        data = [self._data[int(k), split] for k in clients]
        ones = [1 / (1 + np.exp(-(x @ theta[row]))) for row, (x, _) in enumerate(data)]
        n = max((len(y) for _, y in data), default=0)
        probabilities, targets = np.zeros((len(clients), n, 2)), np.full((len(clients), n), -1)
        for row, (p, (_, y)) in enumerate(zip(ones, data)):
            probabilities[row, : len(y)] = np.stack([1 - p, p], 1)
            targets[row, : len(y)] = y
        return Predictions(probabilities, targets)

    def test(self, theta: Floats) -> Scores:
        accuracy, loss = _score(theta, *self._test)
        return Scores(np.array([accuracy]), np.array([loss]))


def _score(theta: Floats, x: Floats, y: Floats) -> tuple[float, float]:
    z = x @ theta
    loss = np.logaddexp(0, z) - y * z
    return float(((z > 0) == (y > 0)).mean()), float(loss.mean())


@dataclass
class NumpyApp:
    """What a federated app offers: a recipe, and this task at the server and at every silo."""

    recipe: Any
    silos: int = 3

    def server(self, config: Any) -> NumpyTask:
        return NumpyTask(self.silos)

    def silo(self, name: str, index: int, config: Any) -> NumpyTask:
        return NumpyTask(self.silos)


class Merged:
    """Several tasks as one, silo after silo; `seed` may differ from row to row."""

    def __init__(self, tasks: list[NumpyTask]) -> None:
        self._home = [(task, k) for task in tasks for k in range(len(task.silos))]
        self.silos = tuple(f"{i}" for i in range(len(self._home)))
        self.examples = np.concatenate([task.examples for task in tasks])
        self.parameters = self.size = DIMENSION
        self.calls: list[int] = []

    def train(self, theta, clients, spec, round, seed, anchor=None, drift=None, free=None):
        self.calls.append(len(clients))
        seeds = np.broadcast_to(seed, len(clients))
        out = []
        for row, i in enumerate(clients):
            task, k = self._home[i]
            pull = anchor[row] if anchor is not None else None
            slants = (None if x is None else x[row : row + 1] for x in (drift, free))
            out.append(task.train(theta[row : row + 1], np.array([k]), spec, round, int(seeds[row]), pull, *slants)[0])
        return np.array(out)

    def evaluate(self, theta, clients, split):
        parts = [
            self._home[i][0].evaluate(theta[r : r + 1], np.array([self._home[i][1]]), split)
            for r, i in enumerate(clients)
        ]
        return Scores(np.concatenate([p.accuracy for p in parts]), np.concatenate([p.loss for p in parts]))

    def predict(self, theta, clients, split):
        parts = [self._home[i][0].predict(theta[r : r + 1], [self._home[i][1]], split) for r, i in enumerate(clients)]
        n = max(p.targets.shape[1] for p in parts)
        probabilities, targets = np.zeros((len(parts), n, 2)), np.full((len(parts), n), -1)
        for row, p in enumerate(parts):
            probabilities[row, : p.targets.shape[1]], targets[row, : p.targets.shape[1]] = (
                p.probabilities[0],
                p.targets[0],
            )
        return Predictions(probabilities, targets)

    def along(self, start, end, places, clients, split):
        return NumpyTask.along(self, start, end, places, clients, split)  # type: ignore[arg-type]
