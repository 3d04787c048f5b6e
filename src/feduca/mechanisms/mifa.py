"""MIFA: the latest update of everybody, equally weighted, however old.

X. Gu, K. Huang, J. Zhang, L. Huang. "Fast Federated Learning in the Presence of Arbitrary Device Unavailability."
NeurIPS 2021. `theta <- theta - eta_s * mean_k y_k`, where y_k is client k's last update: this round's if it took part.
With `memory.kind = "update"` that is what FedAvg does here too (FedUCA's aggregation is its weighted form), and a test
holds the two equal. They part with `memory.kind = "none"`: FedAvg then renormalises over the participants, MIFA does
not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feduca.types import Allocation, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class MIFA:
    needs = Needs()
    schedule = "fresh"

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(np.full(len(examples), 1 / len(examples)), "fixed")

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        n = len(round.examples)
        alpha = np.full(n, 1 / n)
        fresh = np.where(round.joined, alpha, 0.0)
        return None, Allocation(alpha, "fixed", fresh=fresh, stored=alpha - fresh)
