"""Ditto: FedAvg for the shared model, and a personal model pulled towards it.

T. Li, S. Hu, A. Beirami, V. Smith. "Ditto: Fair and Robust Federated Learning Through Personalization." ICML 2021. The
shared model is FedAvg's. Beside it silo k keeps `v_k` and each round minimises `F_k(v) + (lambda/2) ||v - theta||^2`
from where it stands, theta being the model just received. The silo deploys v_k.

What Eq. 1 compares: v_k, refreshed against the theta just received, with the silo's own local model theta_k. The silo
trains v_k whether or not it ends up joining: the announcement reaches it either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from feduca.client.personal import Prepared
from feduca.client.requests import Steps, Train
from feduca.core.arrays import repeat, select
from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import Announcements, ClientMemory


@dataclass(frozen=True)
class Ditto(FixedWeights):
    lam: float = 0.1  # lambda: 0 is training alone, large is the shared model
    epochs: int = 0  # of the personal model; 0 = as many as the shared one
    beta: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise ConfigError(f"mechanism.lam must be 0 or more, got {self.lam}; 0.1 is the default")
        if self.epochs < 0:
            raise ConfigError(f"mechanism.epochs must be 0 or more, got {self.epochs}; 0 takes local.epochs")

    @property
    def personal(self) -> Pulled:
        return Pulled(self.lam, self.epochs)


@dataclass(frozen=True)
class Pulled:
    """The client part: a personal model with a proximal pull to theta. It starts as theta."""

    lam: float
    epochs: int
    deploys = True

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        shared = repeat(asked.theta, len(asked.clients))
        v = select(memory.trained, memory.extra.get("personal", shared), shared)
        spec = replace(asked.local, prox=self.lam, epochs=self.epochs or asked.local.epochs)
        v = yield Train(v, asked.clients, spec, asked.round, seed, anchor=asked.theta)
        return Prepared(model=v, extra={"personal": v})
