"""AFL: weights that chase the worst mixture of clients.

M. Mohri, G. Sivek, A. T. Suresh. "Agnostic Federated Learning." ICML 2019. Minimise over theta the maximum over lambda
in the simplex of `sum_k lambda_k F_k(theta)`, descending in theta and ascending in lambda at the same time:

    theta <- theta - eta_s * sum_k lambda_k Delta_k,   lambda <- Proj( lambda + eta_lambda F(theta) ).

Round t aggregates with the lambda of before its own ascent step, as in the paper's Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from feduca.core.aggregation import target
from feduca.errors import ConfigError
from feduca.mechanisms.losses import losses
from feduca.types import Allocation, Floats, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class AFL:
    eta_lambda: float = 0.1  # step of the ascent
    beta: Literal["uniform", "examples"] = "uniform"  # where lambda starts

    needs = Needs(train_loss=True)
    schedule = "fresh"
    per_silo = "weights"  # lambda

    def __post_init__(self) -> None:
        if not self.eta_lambda >= 0:
            raise ConfigError(f"mechanism.eta_lambda must be 0 or more, got {self.eta_lambda}; 0.1 is the default")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[Floats, Allocation]:
        start = target(examples, self.beta)
        return start, Allocation(start, "initial")

    def allocate(self, state: Floats, round: Round, seed: int) -> tuple[Floats, Allocation]:
        return onto_simplex(state + self.eta_lambda * losses(round)), Allocation(state, "ascended")


def onto_simplex(x: Floats) -> Floats:
    """The nearest point of the simplex: subtract what makes the positive part sum to one (sorting finds it)."""
    down = np.sort(x)[::-1]
    over = (np.cumsum(down) - 1) / np.arange(1, len(x) + 1)
    shift = over[np.flatnonzero(down > over)[-1]]
    return np.maximum(x - shift, 0.0)
