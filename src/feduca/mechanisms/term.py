"""TERM: exponentially tilted weights.

T. Li, A. Beirami, M. Sanjabi, V. Smith. "Tilted Empirical Risk Minimization." ICLR 2021, applied across clients.
Minimise `(1/t) log sum_k beta_k e^{t F_k}`; its gradient weighs client k by `p_k ~ beta_k e^{t F_k(theta)}`. t > 0
leans to the clients with the largest loss, t < 0 away from them (robustness), t = 0 is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feduca.core.aggregation import target
from feduca.errors import ConfigError
from feduca.mechanisms.losses import losses
from feduca.types import Allocation, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class TERM:
    t: float = 1.0  # the tilt
    beta: Literal["uniform", "examples"] = "uniform"

    needs = Needs(train_loss=True)
    schedule = "fresh"

    def __post_init__(self) -> None:
        if not math.isfinite(self.t):
            raise ConfigError(f"mechanism.t must be a finite number, got {self.t}; 1 is the default, 0 is FedAvg")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(target(examples, self.beta), "initial")

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        tilt = self.t * losses(round)
        p = target(round.examples, self.beta) * np.exp(tilt - tilt.max())
        return None, Allocation(p / p.sum(), "weighed")
