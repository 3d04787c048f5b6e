"""FedProx: fixed weights, and a local term that keeps a client near the model it received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. "Federated Optimization in Heterogeneous Networks."
MLSys 2020. Local objective: `f_k(theta_k) + (mu/2) ||theta_k - theta||^2`. The FedUCA paper does not say which mu it
used; 1e-4 is what this line of work uses. With mu = 0 this is FedAvg to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import LocalSpec


@dataclass(frozen=True)
class FedProx(FixedWeights):
    mu: float = 1e-4  # strength of the pull
    beta: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ConfigError(f"mechanism.mu must be 0 or more, got {self.mu}; 1e-4 is usual, 0 is FedAvg")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return replace(spec, prox=self.mu)
