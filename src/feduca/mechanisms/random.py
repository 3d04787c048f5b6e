"""The other control: weights drawn anew each round from a flat Dirichlet, blind to everything anybody reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.types import Allocation, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class RandomWeights:
    concentration: float = 1.0  # of the Dirichlet over silos

    needs = Needs()
    schedule = "fresh"

    def __post_init__(self) -> None:
        if not self.concentration > 0:
            raise ConfigError(f"mechanism.concentration must be above 0, got {self.concentration}; 1 is flat")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, self._draw(len(examples), seed, 0)

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        return None, self._draw(len(round.examples), seed, round.round)

    def _draw(self, n: int, seed: int, round: int) -> Allocation:
        return Allocation(stream(seed, "random-weights", round).dirichlet(np.full(n, self.concentration)), "drawn")
