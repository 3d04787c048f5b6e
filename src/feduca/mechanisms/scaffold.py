"""SCAFFOLD: control variates that take the drift of local training out.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning." ICML 2020, Algorithm 1 with option II. Participants S of N silos, K_k steps of size eta each:

    y <- y - eta (g_k(y) - c_k + c),   c_k+ = c_k - c + (theta - y_k) / (K_k eta)
    theta <- theta - eta_s mean_{k in S} Delta_k,   c <- c + (1/N) sum_{k in S} (c_k+ - c_k),   Delta_k = theta - y_k

The change of a control, `Delta_k / (K_k eta) - c`, follows from the update, the number of examples and c: the server works it out
and no silo sends anything more. c travels to the silos beside the model, which doubles what is sent down. A participant trains
from the shared model whatever it was offered; who declines trains on by itself, uncorrected, and keeps its c_k. The paper has
no memory of absent silos: `memory.kind = "none"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from feduca.client.personal import Prepared
from feduca.client.requests import Steps
from feduca.core.aggregation import target
from feduca.core.arrays import combine, like, repeat, select, zeros
from feduca.errors import ConfigError
from feduca.types import Allocation, Announcements, Array, Bools, ClientMemory, Ints, LocalSpec, Needs, Round


@dataclass(frozen=True)
class Scaffold:
    beta: Literal["uniform", "examples"] = "uniform"
    optimiser: str = field(default="sgd", metadata={"wired": "local.optimiser"})
    momentum: float = field(default=0.0, metadata={"wired": "local.momentum"})

    needs = Needs()
    schedule = "fresh"

    def __post_init__(self) -> None:
        if self.optimiser != "sgd" or self.momentum:
            what = f"momentum {self.momentum:g}" if self.momentum else self.optimiser
            raise ConfigError(
                f"local.optimiser is sgd without momentum under scaffold, got {what}: a control is a mean of plain steps"
            )

    @property
    def personal(self) -> Controlled:
        return Controlled()

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        return None, Allocation(target(examples, self.beta), "fixed")

    def allocate(self, state: Array | None, round: Round, seed: int) -> tuple[Array, Allocation]:
        n = len(round.examples)
        reach = round.local.steps(round.examples) * round.local.lr  # K_k eta
        moved = combine(round.joined / (n * reach), round.delta)
        c = moved if state is None else state * (1 - float(round.joined.mean())) + moved
        return c, Allocation(target(round.examples, self.beta), "fixed")

    def control(self, state: Array | None) -> Array | None:
        """c, which every silo is told; 0 before the first round."""
        return state


@dataclass(frozen=True)
class Controlled:
    """The client part: the control `c_k`."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        return Prepared(start=repeat(asked.theta, len(asked.clients)), drift=_told(memory, asked) - _kept(memory))
        yield  # a coroutine that never asks

    def learn(
        self, memory: ClientMemory, asked: Announcements, join: Bools, new: Array, examples: Ints
    ) -> Mapping[str, Array]:
        before, reach = _kept(memory), asked.local.steps(examples) * asked.local.lr
        mean = (repeat(asked.theta, len(join)) - new) / like(new, reach)[:, None]
        return {"control": select(join, before - _told(memory, asked) + mean, before)}


def _kept(memory: ClientMemory) -> Array:
    return memory.extra.get("control", zeros(memory.own, *memory.own.shape))


def _told(memory: ClientMemory, asked: Announcements) -> Array:
    nothing = zeros(memory.own, *memory.own.shape)
    return nothing if asked.control is None else nothing + asked.control
