"""FedRep: a shared body under private heads, each trained while the other stands still.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. "Exploiting Shared Representations for Personalized Federated Learning." ICML
2021, Algorithm 1. phi is the shared body, h_k the head that silo k keeps (what `share` does not let travel):

    h_k <- local training of h from (phi, h_k) for `head_epochs`, phi fixed
    phi_k <- local training of phi from (phi, h_k) for `local.epochs`, h_k fixed
    phi <- sum_k alpha_k phi_k over whoever joined

A participant trains from phi whatever it was offered. Who declines trains on by itself, body and head together, and the head it
had tried on phi is gone. The paper has no memory of absent silos: `memory.kind = "none"`.

What Eq. 1 compares: (phi, h_k) with the head just trained, against the silo's own local model theta_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from feduca.client.personal import Prepared
from feduca.client.requests import Steps, Train
from feduca.core.arrays import columns, repeat, zeros
from feduca.core.share import Share
from feduca.errors import ConfigError
from feduca.mechanisms.fixed import FixedWeights
from feduca.types import Announcements, ClientMemory


@dataclass(frozen=True)
class FedRep(FixedWeights):
    head_epochs: int = 0  # of the head; 0 = as many as the body
    beta: Literal["uniform", "examples"] = "uniform"
    share: str | Sequence[str] = field(default="body", metadata={"wired": "share"})

    def __post_init__(self) -> None:
        if self.head_epochs < 0:
            raise ConfigError(f"mechanism.head_epochs must be 0 or more, got {self.head_epochs}; 0 takes local.epochs")
        if self.share == "all":
            raise _headless(self.share)

    @property
    def personal(self) -> Heads:
        return Heads(self.head_epochs, self.share)


@dataclass(frozen=True)
class Heads:
    """The client part: trains the head, then lets training move the body alone."""

    epochs: int
    wanted: str | Sequence[str]
    share: Share | None = None
    deploys = True

    def sharing(self, share: Share | None) -> Heads:
        """The same, knowing which entries of the task's models travel."""
        if share is None:
            raise _headless(self.wanted)
        return replace(self, share=share)

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        if self.share is None:
            raise _headless(self.wanted)
        shared, mask = repeat(asked.theta, len(asked.clients)), self.share.mask
        fixed = zeros(shared, *shared.shape)
        head, body = columns(mask, fixed, fixed + 1), columns(mask, fixed + 1, fixed)
        spec = replace(asked.local, epochs=self.epochs or asked.local.epochs)
        trained = yield Train(shared, asked.clients, spec, asked.round, seed, anchor=asked.theta, free=head)
        model = columns(mask, shared, trained)  # running statistics follow no gradient
        return Prepared(model=model, start=model, free=body)


def _headless(share: str | Sequence[str]) -> ConfigError:
    shown = share if isinstance(share, str) else list(share)
    return ConfigError(f"share is {shown!r}, and FedRep needs a private head: set share = 'body'")
