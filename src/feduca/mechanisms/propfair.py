"""PropFair: proportional fairness through the local objective.

G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu. "Proportional Fairness in Federated Learning." TMLR 2023. Every client
minimises `-log(1 - F/M)` per mini-batch instead of F, which steepens where the loss is large; M bounds the loss. Beyond
1 - F/M = 0.2 the objective goes on along its tangent, so that a loss above M still has a finite gradient. Weights are
fixed, as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import LocalSpec


@dataclass(frozen=True)
class PropFair(FixedWeights):
    M: float = 5.0  # bound on the loss
    beta: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        if not self.M > 0:
            raise ConfigError(f"mechanism.M must be above 0, got {self.M}; 5 is the default")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return replace(spec, objective="propfair", bound=self.M)
