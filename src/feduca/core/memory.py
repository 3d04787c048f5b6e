"""What the server remembers of a client that sits a round out.

A memory is a pair of functions on one array `remembered[N, P]`: what to store when a client joins, and which update
`Delta_k` to recall for it later. `none` recalls nothing and renormalises over the participants instead.

Where few of many silos are asked, `remembered` are Rows (rows.py), and what counts of them is a running sum (`Sum`): a round
reads the rows whose weights it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from feduca.core.arrays import cast, combine, double, repeat, select, take, zeros
from feduca.core.rows import Rows
from feduca.types import Allocation, Array, Bools, Floats, Ints


class Memory(Protocol):
    @property
    def kind(self) -> str: ...

    def store(self, remembered: Array, joined: Bools, theta: Array, delta: Array) -> Array:
        """`remembered` after a round whose participants sent `delta = theta - theta_k`."""
        ...

    def recall(self, remembered: Array, known: Bools, theta: Array) -> Array:
        """The update `[N, P]` that stands in for each client; 0 for one that never joined."""
        ...

    def put(self, remembered: Rows, who: Ints, theta: Array, delta: Array) -> Rows:
        """`store` where few are asked: `delta` has the rows of `who`, all of whom joined."""
        ...

    def total(self, weights: Floats, of_rows: Array, theta: Array) -> Array:
        """The sum of what is recalled with these weights (of silos that ever joined), where `of_rows` is that of the rows."""
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

    def put(self, remembered: Rows, who: Ints, theta: Array, delta: Array) -> Rows:
        return remembered.put(who, delta)

    def total(self, weights: Floats, of_rows: Array, theta: Array) -> Array:
        return of_rows

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

    def put(self, remembered: Rows, who: Ints, theta: Array, delta: Array) -> Rows:
        return remembered.put(who, theta - delta)

    def total(self, weights: Floats, of_rows: Array, theta: Array) -> Array:
        return float(weights.sum()) * double(theta) - of_rows

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

    def put(self, remembered: Rows, who: Ints, theta: Array, delta: Array) -> Rows:
        return remembered

    def total(self, weights: Floats, of_rows: Array, theta: Array) -> Array:
        return of_rows

    def weights(self, allocation: Allocation, joined: Bools) -> tuple[Floats, Floats]:
        fresh, _ = split(allocation, joined)
        if allocation.fresh is None:
            alpha = allocation.alpha if allocation.applied is None else allocation.applied
            present = fresh.sum()
            fresh = fresh * (alpha.sum() / present) if present > 0 else fresh
        return fresh, np.zeros_like(fresh)


memories: dict[str, Memory] = {m.kind: m for m in (UpdateMemory(), ModelMemory(), NoMemory())}


# Where few are asked -------------------------------------------------------------------------------------------------

Sum = Mapping[str, Array]  # "weights" [N] and, in double precision, "total" [P]: the rows' sum with these weights
NOTHING: Sum = MappingProxyType({})


def summed(before: Sum, remembered: Rows, weights: Floats, theta: Array) -> Sum:
    """The sum of the rows with other weights: from the last one by those that differ, or anew where that are most of them."""
    zero = double(zeros(theta, len(theta)))
    old = before.get("weights", np.zeros(len(weights)))
    changed = np.flatnonzero(weights != old)
    if 2 * len(changed) < np.count_nonzero(weights):
        total, step = before["total"], weights - old
    else:
        total, step, changed = zero, weights, np.flatnonzero(weights)
    for some in remembered.portions(changed):
        total = total + combine(step[some], double(take(remembered, some)))
    return {"weights": weights, "total": total}


def not_summed(before: Sum, remembered: Rows, who: Ints, theta: Array) -> Sum:
    """The sum without some rows, which are about to change."""
    if not before or not before["weights"][who].any():
        return before
    weights = np.array(before["weights"])
    weights[who] = 0.0
    return summed(before, remembered, weights, theta)


def standing_in(
    memory: Memory, before: Sum, remembered: Rows, known: Bools, stored: Floats, theta: Array, *, each: bool
) -> tuple[Floats, Array, Sum]:
    """Weights and updates `[M, P]` that stand in for those who did not join, and the sum to go on from.

    One update that is all of them, with weight 1; `each` of them by itself where the aggregation has to see them so.
    """
    if each:  # of those who never joined, too: an update of zeros, with a weight
        who = np.flatnonzero(stored)
        return stored[who], memory.recall(take(remembered, who), known[who], theta), NOTHING
    weights = np.where(known, stored, 0.0)
    if not (weights.any() or before):
        return np.zeros(0), zeros(theta, 0, len(theta)), NOTHING
    after = summed(before, remembered, weights, theta)
    return np.ones(1), cast(memory.total(weights, after["total"], theta), theta)[None], after
