"""From weights and updates to the next global model (SPEC step 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feduca.arrays import combine, repeat
from feduca.types import Array, Bools, Floats, Ints


def target(examples: Ints, beta: str) -> Floats:
    """The target weights beta (reading 14): uniform, or by number of examples."""
    examples = np.asarray(examples, dtype=float)
    return examples / examples.sum() if beta == "examples" else np.full(len(examples), 1 / len(examples))


@dataclass(frozen=True)
class Weighted:
    """`theta - eta_s * (fresh . Delta + stored . remembered)`; `eta_c` and `tau` cancel (reading 1).

    The tail of theta beyond `parameters` holds buffers (running statistics). A weighted or stale combination can make a
    variance negative, so buffers become the plain mean over the round's participants.
    """

    eta_s: float = 1.0

    def next(
        self,
        theta: Array,
        fresh: Floats,
        delta: Array,
        stored: Floats,
        recalled: Array,
        joined: Bools,
        parameters: int,
    ) -> Array:
        moved = theta - self.eta_s * (combine(fresh, delta) + combine(stored, recalled))
        if parameters < len(theta):
            moved[parameters:] = theta[parameters:]
            if joined.any():
                present = joined / joined.sum()
                moved[parameters:] = combine(present, (repeat(theta, len(joined)) - delta)[:, parameters:])
        return moved


def norms(delta: Array) -> Floats:
    """The length of each client's update."""
    squares = (delta * delta).sum(-1)
    return np.sqrt(np.asarray(squares.cpu() if hasattr(squares, "cpu") else squares, dtype=np.float64))
