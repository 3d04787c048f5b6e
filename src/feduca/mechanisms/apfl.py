"""APFL: a personal mixture of a private model and the shared one.

Y. Deng, M. M. Kamani, M. Mahdavi. "Adaptive Personalized Federated Learning." 2020. Silo k deploys `m_k = a_k v_k + (1
- a_k) theta` and trains the private part through the mixture:

    v_k <- v_k - eta * a_k * grad F_k(m_k),   a_k <- a_k - eta_a * <v_k - theta, grad F_k(m_k)>, kept in [0, 1].

Here theta is held at the model just received while v_k is trained (the authors move their local copy of it in the same
mini-batches). Then a step of size eta in v is a step of size a^2 eta in m, so plain local training of m with that step
*is* APFL's mixed gradient, and v follows as (m - (1 - a) theta) / a. The slope in a is a central difference of the
training loss along the line from theta to v. Weight decay and clipping, where switched on, act on m.

What Eq. 1 compares: the mixture m_k, refreshed against the theta just received, with the silo's own local model
theta_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from feduca.client.personal import Prepared
from feduca.client.requests import Along, Steps, Train
from feduca.core.arrays import mix, repeat, select
from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import Announcements, ClientMemory, Scores

STEP = 0.01  # of the central difference in a
LEAST = 0.01  # a stays above: v is recovered from the mixture by dividing by a


@dataclass(frozen=True)
class APFL(FixedWeights):
    a: float = 0.5  # share of the private model, at first where it adapts
    adaptive: bool = True
    eta_a: float = 0.1  # step of the adaptation
    beta: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self) -> None:
        if not LEAST <= self.a <= 1:
            raise ConfigError(f"mechanism.a must lie in [{LEAST}, 1], got {self.a}; 0.5 is the default")
        if not self.eta_a >= 0:
            raise ConfigError(f"mechanism.eta_a must be 0 or more, got {self.eta_a}; 0.1 is the default")

    @property
    def personal(self) -> Mixture:
        return Mixture(self.a, self.eta_a if self.adaptive else 0.0)


@dataclass(frozen=True)
class Mixture:
    """The client part: `v[K, P]` and `a[K]`. v starts as theta."""

    a: float
    eta_a: float
    deploys = True

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        clients, k = asked.clients, len(asked.clients)
        shared = repeat(asked.theta, k)
        v = select(memory.trained, memory.extra.get("private", shared), shared)
        a = np.where(memory.trained, memory.extra.get("share", np.full(k, self.a)), self.a)
        if self.eta_a and memory.trained.any():
            low, high = np.maximum(a - STEP, 0), np.minimum(a + STEP, 1)
            at: Scores = yield Along(shared, v, np.stack([low, high], 1), clients, "train")
            slope = (at.loss[:, 1] - at.loss[:, 0]) / (high - low)
            a = np.where(memory.trained, np.clip(a - self.eta_a * slope, LEAST, 1), a)
        mixed = mix(shared, v, a)
        rates = asked.local.lr * a**2
        mixed = yield Train(mixed, clients, asked.local, asked.round, seed, anchor=asked.theta, rates=rates)
        v = mix(shared, mixed, 1 / a)  # (m - (1 - a) theta) / a = theta + (m - theta) / a
        return Prepared(model=mixed, extra={"private": v, "share": a})
