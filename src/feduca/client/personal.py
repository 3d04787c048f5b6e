"""What a method keeps on the client beside the shared model.

Most methods keep nothing. IncFL's clients measure themselves once against a model they trained alone; Ditto's and
APFL's keep a personal model that the silo deploys. A mechanism carries its client part as `personal`; the client step
runs it after it has seen the offer and before the rule decides, through the same work requests as everything else, so
it costs the same in every federation.

For a personalised method the thing a silo is offered *is* its personal model. Eq. 1 then compares the personal model,
refreshed against the theta just received, with the silo's own local model: joining means deploying the former,
declining the latter. Eq. 2 knows only curves along the path to the shared model and is not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from feduca.client.requests import Steps, Train
from feduca.core.arrays import columns, part, repeat, select, take, zeros
from feduca.core.share import Share
from feduca.types import Announcements, Array, Bools, ClientMemory, Floats, Ints


@dataclass(frozen=True)
class Prepared:
    """What the client part has ready when the rule decides."""

    model: Array | None = None  # [K, P], the personal model a participant deploys; None: the offer itself
    extra: Mapping[str, Array] = field(default_factory=dict)  # kept in ClientMemory.extra, [K, ...] each
    told: Mapping[str, Floats] = field(default_factory=dict)  # reported to the server, [K] each, whoever joins
    start: Array | None = None  # [K, P], where a participant starts to train; None: as the recipe says
    anchor: Array | None = None  # [K, P], what its proximal term pulls to; None: the shared model
    drift: Array | None = None  # [K, P], added to its gradients
    free: Array | None = None  # [K, P], 1 where its training moves the model

    def joint(
        self, asked: Announcements, start: Array, join: Bools, who: Ints, seed: int, share: Share | None
    ) -> Train:
        """The training of the silos `who` in this round. Only whoever joins, and what is shared, is pulled, shifted or held."""
        anchor, drift = asked.theta, None
        if self.anchor is not None:
            shared = repeat(asked.theta, len(join))
            anchor = select(join, _shared(share, self.anchor, shared), shared)
        if self.drift is not None:
            none = zeros(self.drift, *self.drift.shape)
            drift = take(select(join, _shared(share, self.drift, none), none), who)
        free = None if self.free is None else take(select(join, self.free, zeros(self.free, *self.free.shape) + 1), who)
        clients = asked.clients[who]
        return Train(take(start, who), clients, asked.local, asked.round, seed, part(anchor, who), None, drift, free)


def _shared(share: Share | None, yes: Array, no: Array) -> Array:
    return yes if share is None else columns(share.mask, yes, no)


class Personal(Protocol):
    """A method's client part: a frozen value, its state in `memory.extra`."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        """A coroutine that may ask for training and evaluation (`work`).

        A part that learns from the training itself also has `learn(memory, asked, join, new, examples)`: what it keeps in
        `memory.extra` once the models `new[K, P]` are trained. One that has to know which entries of a model travel has
        `sharing(share)`, which returns it knowing that. One that always prepares a `model` says so by `deploys = True`: recipes
        whose offer could then never be deployed are refused before anything runs.
        """
        ...


@dataclass(frozen=True)
class Nothing:
    """No client part: what every method has that only chooses weights."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        return Prepared()
        yield  # a coroutine that never asks
