"""The app's own model and data: nothing here knows of feduca."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits

CLASSES, PIXELS = 10, 64


def initial() -> ArrayRecord:
    return ArrayRecord([np.zeros((PIXELS, CLASSES)), np.zeros(CLASSES)])


def data(partition: int, partitions: int) -> tuple[np.ndarray, ...]:
    """Training and validation examples of one client, two thirds of them from a third of the classes."""
    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    rng = np.random.default_rng(0)
    favourite = (y * partitions) // CLASSES
    owner = np.where(rng.random(len(y)) < 0.67, favourite, rng.integers(partitions, size=len(y)))
    mine = rng.permutation(np.flatnonzero(owner == partition))
    cut = len(mine) * 2 // 3
    return x[mine[:cut]], y[mine[:cut]], x[mine[cut:]], y[mine[cut:]]


def probabilities(weights: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    z = x @ weights[0] + weights[1]
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def train(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray, epochs: int, lr: float) -> list[np.ndarray]:
    w, b = weights[0].copy(), weights[1].copy()
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(y)), max(1, len(y) // 16)):
            error = probabilities([w, b], x[batch]) - np.eye(CLASSES)[y[batch]]
            w -= lr * x[batch].T @ error / len(batch)
            b -= lr * error.mean(0)
    return [w, b]


def test(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss."""
    p = probabilities(weights, x)
    return float((p.argmax(1) == y).mean()), float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean())
