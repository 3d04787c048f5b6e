"""What the server remembers of a client that sits a round out.

A memory is a pair of functions on one array `remembered[N, P]`: what to store when a client joins, and which update
`Delta_k` to recall for it later. `none` recalls nothing and renormalises over the participants instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feduca.core.arrays import repeat, select, zeros
from feduca.types import Allocation, Array, Bools, Floats


class Memory(Protocol):
    @property
    def kind(self) -> str: ...

    def store(self, remembered: Array, joined: Bools, theta: Array, delta: Array) -> Array:
        """`remembered` after a round whose participants sent `delta = theta - theta_k`."""
        ...

    def recall(self, remembered: Array, known: Bools, theta: Array) -> Array:
        """The update `[N, P]` that stands in for each client; 0 for one that never joined."""
        ...

    def weights(self, allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
        """Weights on this round's updates and on recalled ones."""
        ...


def split(allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
    """Participants count with their new update, the others with the remembered one; no renormalisation."""
    if allocation.fresh is not None and allocation.stored is not None:
        return allocation.fresh, allocation.stored
    alpha = allocation.alpha if allocation.applied is None else allocation.applied
    return np.where(joined, alpha, 0.0), np.where(joined, 0.0, alpha)


@dataclass(frozen=True)
class UpdateMemory:
    """Keep the last update `Delta_k` (Algorithm 1's `y_k`)."""

    kind: str = "update"

    def store(self, remembered: Array, joined: Bools, theta: Array, delta: Array) -> Array:
        return select(joined, delta, remembered)

    def recall(self, remembered: Array, known: Bools, theta: Array) -> Array:
        return remembered

    def weights(self, allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
        return split(allocation, joined)


@dataclass(frozen=True)
class ModelMemory:
    """Keep the last model `m_k`; its update is `theta - m_k` against today's theta (the appendix's FedAvg)."""

    kind: str = "model"

    def store(self, remembered: Array, joined: Bools, theta: Array, delta: Array) -> Array:
        return select(joined, theta - delta, remembered)

    def recall(self, remembered: Array, known: Bools, theta: Array) -> Array:
        return select(known, repeat(theta, len(known)) - remembered, zeros(remembered, *remembered.shape))

    def weights(self, allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
        return split(allocation, joined)


@dataclass(frozen=True)
class NoMemory:
    """Forget; the participants' weights are renormalised to the sum that all weights had."""

    kind: str = "none"

    def store(self, remembered: Array, joined: Bools, theta: Array, delta: Array) -> Array:
        return remembered

    def recall(self, remembered: Array, known: Bools, theta: Array) -> Array:
        return remembered

    def weights(self, allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
        fresh, _ = split(allocation, joined)
        if allocation.fresh is None:
            alpha = allocation.alpha if allocation.applied is None else allocation.applied
            present = fresh.sum()
            fresh = fresh * (alpha.sum() / present) if present > 0 else fresh
        return fresh, np.zeros_like(fresh)


memories: dict[str, Memory] = {m.kind: m for m in (UpdateMemory(), ModelMemory(), NoMemory())}
