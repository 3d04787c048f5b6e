"""Weights that never move: what FedAvg has in common with the methods that change only the clients' work."""

from __future__ import annotations

from typing import Literal

from feduca.core.aggregation import target
from feduca.types import Allocation, Ints, LocalSpec, Needs, Round


class FixedWeights:
    """The server's part of a mechanism whose weights are `beta`, every round. A subclass declares `beta` as its option."""

    beta: Literal["uniform", "examples"]

    needs = Needs()
    schedule = "fresh"

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(target(examples, self.beta), "fixed")

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(target(round.examples, self.beta), "fixed")
