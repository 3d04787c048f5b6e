"""What a silo does beside deciding and reporting: its work, or something cheaper (free-riding).

honest     trains and sends what it trained
refuse     never takes an offer after the first round, however good
withhold   takes offers, trains, keeps the result to itself: it sends the shared model back, an update of nothing
echo       takes offers, trains, and sends its unchanged offer back
noise      takes offers, trains, and sends the shared model plus noise as large as its real update
idle       takes offers and does not train: what it has is what it was given, and that is what it sends back
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feduca.core.arrays import like, select
from feduca.core.rng import stream
from feduca.types import Array, Bools, Ints

KINDS = ("honest", "refuse", "withhold", "echo", "noise", "idle")


@dataclass(frozen=True)
class Conduct:
    """How some clients (None: all) go about their part."""

    kind: str = "honest"
    clients: tuple[int, ...] | None = None

    def _who(self, clients: Ints) -> Bools:
        return np.ones(len(clients), bool) if self.clients is None else np.isin(clients, self.clients)

    def willing(self, clients: Ints) -> Bools:
        """Who would take a good offer at all."""
        return ~self._who(clients) if self.kind == "refuse" else np.ones(len(clients), bool)

    def works(self, clients: Ints, given: Array, new: Array) -> Array:
        """The models clients have after training `[K, P]`."""
        return select(self._who(clients), given, new) if self.kind == "idle" else new

    def sends(self, clients: Ints, shared: Array, given: Array, new: Array, round: int, seed: int) -> Array:
        """The models participants send `[K, P]`."""
        if self.kind == "withhold":
            return select(self._who(clients), shared, new)
        if self.kind == "echo":
            return select(self._who(clients), given, new)
        if self.kind == "noise":
            draws = np.stack([stream(seed, "free-rider", round, int(k)).normal(size=new.shape[1]) for k in clients])
            noise = like(new, draws / np.linalg.norm(draws, axis=1, keepdims=True))
            step = new - shared
            size = (step * step).sum(1) ** 0.5
            return select(self._who(clients), shared + size[:, None] * noise, new)
        return new
