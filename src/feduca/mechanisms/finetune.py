"""Fine-tuning: FedAvg for the shared model, and every silo deploys it after some training of its own.

The simplest personal model, and the yardstick for the others: T. Yu, E. Bagdasaryan, V. Shmatikov. "Salvaging Federated Learning
by Local Adaptation." 2020; G. Cheng, K. Chadha, J. Duchi. "Fine-tuning in Federated Learning: a Simple but Tough-to-Beat
Baseline." 2021. Nothing is kept between rounds:

    v_k = local training of theta, the model just received, for `epochs`

What Eq. 1 compares: v_k with the silo's own local model theta_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from feduca.client.personal import Prepared
from feduca.client.requests import Steps, Train
from feduca.core.arrays import repeat
from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import Announcements, ClientMemory


@dataclass(frozen=True)
class FineTune(FixedWeights):
    epochs: int = 0  # of the fine-tuning; 0 = as many as the shared training
    beta: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"mechanism.epochs must be 0 or more, got {self.epochs}; 0 takes local.epochs")

    @property
    def personal(self) -> Tuned:
        return Tuned(self.epochs)


@dataclass(frozen=True)
class Tuned:
    """The client part: the received model after training on the silo's own data."""

    epochs: int
    deploys = True

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        spec = replace(asked.local, epochs=self.epochs or asked.local.epochs)
        shared = repeat(asked.theta, len(asked.clients))
        return Prepared(model=(yield Train(shared, asked.clients, spec, asked.round, seed, anchor=asked.theta)))
