"""What clients keep between rounds: blank at first, taken and written row by row."""

from __future__ import annotations

import numpy as np

from feduca.core.arrays import put, take, zeros
from feduca.core.rows import Rows, Store
from feduca.types import Array, ClientMemory, Ints, UtilityFamily


def blank(theta: Array, clients: int, family: UtilityFamily, store: Store | None = None) -> ClientMemory:
    """The memory of clients that have never been asked; their models lie in a `store`, where there is one."""
    nothing, curve = np.full(clients, np.nan), np.full((clients, family.size), np.nan)
    never = np.zeros(clients, bool)
    if store is None:
        own = contributed = zeros(theta, clients, len(theta))
    else:
        own, contributed = (store.rows(name, theta, clients) for name in ("own", "contributed"))
    return ClientMemory(never, never, own, contributed, curve, nothing, curve, nothing)


def rows(memory: ClientMemory, index: Ints) -> ClientMemory:
    """The memory of some clients."""
    arrays = {name: take(value, index) for name, value in vars(memory).items() if name != "extra"}
    return ClientMemory(**arrays, extra={name: take(value, index) for name, value in memory.extra.items()})


def written(memory: ClientMemory, index: Ints, part: ClientMemory, store: Store | None = None) -> ClientMemory:
    """`memory` with the rows of some clients replaced."""
    new = vars(part)

    def fresh(name: str, value: Array) -> Array | Rows:
        """Nothing yet of what clients keep from now on; in the store where it is as long as a model."""
        if store is not None and value.shape[1:] == memory.own.shape[1:]:
            return store.rows(f"extra.{name}", value[0], len(memory.trained))
        return zeros(value, len(memory.trained), *value.shape[1:])

    arrays = {name: put(value, index, new[name]) for name, value in vars(memory).items() if name != "extra"}
    extra = {
        name: put(memory.extra[name] if name in memory.extra else fresh(name, value), index, value)
        for name, value in part.extra.items()
    }
    return ClientMemory(**arrays, extra={**memory.extra, **extra})
