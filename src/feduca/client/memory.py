"""What clients keep between rounds: blank at first, taken and written row by row."""

from __future__ import annotations

import numpy as np

from feduca.core.arrays import put, take, zeros
from feduca.types import Array, ClientMemory, Ints, UtilityFamily


def blank(theta: Array, clients: int, family: UtilityFamily) -> ClientMemory:
    """The memory of clients that have never been asked."""
    nothing, curve = np.full(clients, np.nan), np.full((clients, family.size), np.nan)
    empty = zeros(theta, clients, len(theta))
    never = np.zeros(clients, bool)
    return ClientMemory(never, never, empty, empty, curve, nothing, curve, nothing)


def rows(memory: ClientMemory, index: Ints) -> ClientMemory:
    """The memory of some clients."""
    arrays = {name: take(value, index) for name, value in vars(memory).items() if name != "extra"}
    return ClientMemory(**arrays, extra={name: take(value, index) for name, value in memory.extra.items()})


def written(memory: ClientMemory, index: Ints, part: ClientMemory) -> ClientMemory:
    """`memory` with the rows of some clients replaced."""
    new = vars(part)
    arrays = {name: put(value, index, new[name]) for name, value in vars(memory).items() if name != "extra"}
    extra = {
        name: put(memory.extra.get(name, zeros(value, len(memory.trained), *value.shape[1:])), index, value)
        for name, value in part.extra.items()
    }
    return ClientMemory(**arrays, extra={**memory.extra, **extra})
