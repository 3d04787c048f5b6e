"""Who is asked: of many silos so many a round. Who is not asked neither joined nor declined, and nothing is known of it.

What the server remembers of a silo that is not asked counts as for one that does not answer: its last update as the memory says,
and its last curve. But it is no silent round of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feduca.core.rng import stream
from feduca.types import Bools, Ints


@dataclass(frozen=True)
class Cohort:
    """`size` silos a round, a function of (seed, round) alone.

    uniform       any of those who belong, all alike
    availability  any of those who are there; silo k is in a round with probability `availability` (one for all, or one each)
    round-robin   one after another, in their order

    At least one is asked, however few are there: the one that was nearest to being so.
    """

    size: int
    draw: str = "uniform"
    availability: float | Sequence[float] = 1.0

    def asked(self, round: int, belong: Bools, seed: int) -> Ints:
        """Who is, in the server's order. Where nobody belongs any more, of those who once did."""
        members = np.flatnonzero(belong) if belong.any() else np.arange(len(belong))
        if self.draw == "round-robin":
            size = min(self.size, len(members))
            return np.sort(members[((round - 1) * size + np.arange(size)) % len(members)])
        rng = stream(seed, "cohort", round)
        if self.draw == "availability":
            luck = rng.random(len(belong)) - self.chances(len(belong))  # silos that come later change no other's
            there = members[luck[members] < 0]
            members = there if len(there) else members[[np.argmin(luck[members])]]
        return np.sort(rng.choice(members, min(self.size, len(members)), replace=False))

    def chances(self, n: int) -> np.ndarray:
        """That each silo is there; one that came later than the list was written is."""
        if isinstance(self.availability, float | int):
            return np.full(n, float(self.availability))
        return np.concatenate([self.availability, np.ones(n)])[:n]
