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

from feduca.types import Announcements, Array, ClientMemory, Floats
from feduca.work import Steps


@dataclass(frozen=True)
class Prepared:
    """What the client part has ready when the rule decides."""

    model: Array | None = None  # [K, P], the personal model a participant deploys; None: the offer itself
    extra: Mapping[str, Array] = field(default_factory=dict)  # kept in ClientMemory.extra, [K, ...] each
    told: Mapping[str, Floats] = field(default_factory=dict)  # reported to the server, [K] each, whoever joins


class Personal(Protocol):
    """A method's client part: a frozen value, its state in `memory.extra`."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        """A coroutine that may ask for training and evaluation (`work`)."""
        ...


@dataclass(frozen=True)
class Nothing:
    """No client part: what every method has that only chooses weights."""

    def prepare(self, memory: ClientMemory, asked: Announcements, seed: int) -> Steps[Prepared]:
        return Prepared()
        yield  # a coroutine that never asks
