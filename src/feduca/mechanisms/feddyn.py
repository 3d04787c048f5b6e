"""FedDyn: a local penalty that moves, so that local and shared optima agree in the end.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. "Federated Learning Based on Dynamic
Regularization." ICLR 2021, Algorithm 1. Participants S of N silos minimise, and the server follows with

    theta_k = argmin f_k(x) - <g_k, x> + (alpha/2) ||x - theta||^2,   g_k <- g_k - alpha (theta_k - theta)
    h <- h - (alpha/N) sum_{k in S} (theta_k - theta),   theta <- mean_{k in S} theta_k - h / alpha

Here l_k = g_k / alpha and H = h / alpha, in units of models. Then the local problem is a proximal term to `theta + l_k`,
l_k <- l_k + Delta_k with Delta_k = theta - theta_k, H <- H + (1/N) sum_S Delta_k, and the server's step is the mean of Delta_k
over S, plus H. Who sits out counts through H, not through what is remembered of it. Who declines trains on by itself with the
proximal term alone, and keeps its l_k. A round in which nobody joins changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from feduca.client.personal import Prepared
from feduca.client.requests import Steps
from feduca.core.arrays import combine, repeat, select, zeros
from feduca.errors import ConfigError
from feduca.types import Allocation, Announcements, Array, Bools, ClientMemory, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class FedDyn:
    alpha: float = 0.1  # strength of the penalty

    needs = Needs()
    schedule = "fresh"

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(
                f"mechanism.alpha must be above 0, got {self.alpha}; 0.1 is the default, 0.01 is usual, too"
            )

    @property
    def personal(self) -> Dynamic:
        return Dynamic()

    def local(self, spec: LocalSpec) -> LocalSpec:
        return replace(spec, prox=self.alpha)

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(np.full(len(examples), 1 / len(examples)), "fixed")

    def allocate(self, state: Array | None, round: Round, seed: int) -> tuple[Array | None, Allocation]:
        n, present = len(round.examples), max(int(round.joined.sum()), 1)
        if round.joined.any():
            moved = combine(round.joined / n, round.delta)
            state = moved if state is None else state + moved
        alpha, fresh = np.full(n, 1 / n), round.joined / present
        return state, Allocation(alpha, "fixed", fresh=fresh, stored=np.zeros(n))

    def shift(self, state: Array | None, joined: Bools) -> Array | None:
        """H, which the server adds to the mean update."""
        return state if joined.any() else None


@dataclass(frozen=True)
class Dynamic:
    """The client part: `l_k`, the updates it has sent so far; the proximal term pulls to `theta + l_k`."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        return Prepared(anchor=repeat(asked.theta, len(asked.clients)) + _kept(memory))
        yield  # a coroutine that never asks

    def learn(
        self, memory: ClientMemory, asked: Announcements, join: Bools, new: Array, examples: Ints
    ) -> Mapping[str, Array]:
        before = _kept(memory)
        return {"penalty": select(join, before + (repeat(asked.theta, len(join)) - new), before)}


def _kept(memory: ClientMemory) -> Array:
    return memory.extra.get("penalty", zeros(memory.own, *memory.own.shape))
