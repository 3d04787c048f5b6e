"""Real accuracy curves without a GPU: federated averaging of small networks on scikit-learn's digits.

Ten silos in two groups of five classes each, Dirichlet(0.5) within the group; per round every silo trains from the shared
model, and its curve is the validation accuracy along the path from the leave-one-out average to its new model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

SILOS, HIDDEN, EPOCHS, BATCH, RATE = 10, 32, 5, 10, 0.1


def _split(rng: np.random.Generator) -> list[tuple]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    silos = []
    for k in range(SILOS):
        classes = np.arange(5) + 5 * (k % 2)
        parts = []
        for alpha, size in ((0.5, 90), (1.0, 60)):
            counts = rng.multinomial(size, rng.dirichlet(np.full(5, alpha)))
            parts.append(np.concatenate([rng.choice(np.flatnonzero(labels == c), n) for c, n in zip(classes, counts)]))
        train, held = parts
        held = held[~np.isin(held, train)]  # validation examples are never trained on
        silos.append((images[train], labels[train], images[held], labels[held]))
    return silos


def _unpack(theta):
    cut = np.cumsum([64 * HIDDEN, HIDDEN, HIDDEN * 10])
    w1, b1, w2, b2 = np.split(theta, cut)
    return w1.reshape(64, HIDDEN), b1, w2.reshape(HIDDEN, 10), b2


def _accuracy(theta, images, labels) -> float:
    w1, b1, w2, b2 = _unpack(theta)
    return float((np.argmax(np.maximum(images @ w1 + b1, 0) @ w2 + b2, axis=1) == labels).mean())


def _train(theta, images, labels, rng):
    theta = theta.copy()
    w1, b1, w2, b2 = _unpack(theta)  # views
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            hidden = np.maximum(images[batch] @ w1 + b1, 0)
            scores = hidden @ w2 + b2
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(batch)), labels[batch]] -= 1
            p /= len(batch)
            back = (p @ w2.T) * (hidden > 0)
            w2 -= RATE * hidden.T @ p
            b2 -= RATE * p.sum(0)
            w1 -= RATE * images[batch].T @ back
            b1 -= RATE * back.sum(0)
    return theta


def digits_curves(rounds: int, places: list, seed: int = 0) -> Iterator[list]:
    """Per round a list with the accuracies `[silos, M]` at each of the given sets of places on the path."""
    rng = np.random.default_rng(seed)
    silos = _split(rng)
    theta = np.concatenate(
        [rng.normal(0, 0.15, 64 * HIDDEN), np.zeros(HIDDEN), rng.normal(0, 0.2, HIDDEN * 10), np.zeros(10)]
    )
    previous = None
    for _ in range(rounds):
        models = np.stack([_train(theta, images, labels, rng) for images, labels, _, _ in silos])
        if previous is not None:
            a = 1 / SILOS
            curves = [np.empty((SILOS, len(r))) for r in places]
            for k, (_, _, images, labels) in enumerate(silos):
                without = (theta - a * previous[k]) / (1 - a)
                for r, out in zip(places, curves):
                    out[k] = [_accuracy((1 - x) * without + x * models[k], images, labels) for x in r]
            yield curves
        previous, theta = models, models.mean(0)
