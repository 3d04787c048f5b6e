"""IncFL / MaxFL: weigh most the clients that are on the fence about the global model.

Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi. "To Federate or Not To Federate: Incentivizing Client
Participation in Federated Learning." 2022 (later "Maximizing Global Model Appeal in Federated Learning"). The number of
clients to whom the global model appeals, `F_k(theta) < rho_k`, is relaxed with a sigmoid; its gradient weighs client k
by

    q_k = sigma(x_k) (1 - sigma(x_k)),   x_k = (F_k(theta) - rho_k) / temperature,
    theta <- theta - eta_g / (sum_j q_j + eps) * sum_k q_k Delta_k.

`F_k` is the training loss at the received model before training, `rho_k` the training loss of a model the client
trained alone. Weights sum to sum(q) / (sum(q) + eps) * eta_g, not to one; q is not multiplied by data size. Not
verified against the authors' code: the length of the warm-up that yields rho, eps and eta_g. All are options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from feduca.client.personal import Prepared
from feduca.client.requests import Evaluate, Steps, Train
from feduca.core.arrays import repeat, select
from feduca.errors import ConfigError
from feduca.mechanisms.losses import filled, losses
from feduca.types import Allocation, Announcements, ClientMemory, Floats, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class IncFL:
    rho: Literal["solo", "own"] = "solo"  # loss of a model trained alone before round 1; or of the current own model
    warmup: int = 10  # epochs of that solo training
    eps: float = 1e-8
    temperature: float = 1.0
    eta_g: float = 1.0

    needs = Needs(train_loss=True)
    schedule = "fresh"
    scaled = True  # eta_g and eps

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise ConfigError(f"mechanism.warmup must be at least 1 epoch, got {self.warmup}; 10 is the default")
        for name in ("temperature", "eta_g"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"mechanism.{name} must be above 0, got {getattr(self, name)}; 1 is the default")
        if not self.eps >= 0:
            raise ConfigError(f"mechanism.eps must be 0 or more, got {self.eps}; 1e-8 is the default")

    @property
    def personal(self) -> SoloLoss:
        return SoloLoss(self.rho, self.warmup)

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(np.full(len(examples), self.eta_g / len(examples)), "initial")

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        told = round.told.get("rho", np.full(len(round.examples), np.nan))
        rho = filled(told, f"round {round.round}: no silo reported its solo loss")
        q = appeal(losses(round) - rho, self.temperature)
        return None, Allocation(self.eta_g * q / (q.sum() + self.eps), "weighed")


def appeal(excess: Floats, temperature: float = 1.0) -> Floats:
    """`sigma(x) (1 - sigma(x))`, the slope of the relaxed count; even in x, so no sign of x overflows."""
    e = np.exp(-np.abs(excess / temperature))
    return e / (1 + e) ** 2


@dataclass(frozen=True)
class SoloLoss:
    """The client part: measure rho once, before the first round, or every round at the current own model."""

    source: str
    epochs: int

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        clients, shared = asked.clients, repeat(asked.theta, len(asked.clients))
        if self.source == "own":
            own = select(memory.trained, memory.own, shared)  # before its first round a client's model is theta: x = 0
            return Prepared(told={"rho": (yield Evaluate(own, clients, "train")).loss})
        rho = memory.extra.get("rho", np.full(len(clients), np.nan))
        new = ~memory.trained
        if new.any():
            spec = replace(asked.local, epochs=self.epochs)
            alone = yield Train(shared, clients, spec, 0, seed, anchor=asked.theta)  # round 0: a stream of its own
            rho = np.where(new, (yield Evaluate(alone, clients, "train")).loss, rho)
        return Prepared(extra={"rho": rho}, told={"rho": rho})
