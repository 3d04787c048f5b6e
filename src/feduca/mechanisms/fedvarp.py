"""FedVARP: remembered updates as a control variate against the noise of who happens to take part.

D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi. "FedVARP: Tackling the Variance Due to Partial Client Participation
in Federated Learning." UAI 2022. With participants S and remembered updates y:

    theta <- theta - eta_s * ( mean_k y_k + mean_{k in S} (Delta_k - y_k) ),   then y_k <- Delta_k for k in S.

That puts weight 1/|S| on a new update and 1/N - [k in S]/|S| on a remembered one. The correction is unbiased when S is
drawn at random. Rational silos are not: here S is who likes the model, and the docs page shows what that does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feduca.types import Allocation, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class FedVARP:
    needs = Needs()
    schedule = "fresh"

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(np.full(len(examples), 1 / len(examples)), "fixed")

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        n, present = len(round.examples), max(int(round.joined.sum()), 1)
        alpha, fresh = np.full(n, 1 / n), round.joined / present
        return None, Allocation(alpha, "fixed", fresh=fresh, stored=alpha - fresh)
