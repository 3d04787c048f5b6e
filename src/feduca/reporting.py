"""What a client tells the server about its curve and threshold: the truth, or not (SPEC section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feduca.types import Floats, Ints


class ReportingPolicy(Protocol):
    def report(self, gamma: Floats, zeta: Floats, clients: Ints) -> tuple[Floats, Floats]:
        """The reported threshold and curve of `clients[K]`."""
        ...


@dataclass(frozen=True)
class Truthful:
    """As measured."""

    def report(self, gamma: Floats, zeta: Floats, clients: Ints) -> tuple[Floats, Floats]:
        return gamma, zeta


@dataclass(frozen=True)
class Inflate:
    """Ask for more: `gamma + share * |gamma|`, all clients or only those named."""

    share: float
    clients: tuple[int, ...] | None = None

    def report(self, gamma: Floats, zeta: Floats, clients: Ints) -> tuple[Floats, Floats]:
        liar = np.ones(len(clients), bool) if self.clients is None else np.isin(clients, self.clients)
        return np.where(liar, gamma + self.share * np.abs(gamma), gamma), zeta
