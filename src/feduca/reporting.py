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


def _shares(share: float | tuple[float, ...], liars: tuple[int, ...] | None, clients: Ints) -> Floats:
    """By how much each of `clients[K]` misreports; 0 for the honest ones. A tuple has one share per silo."""
    each = np.asarray(share, dtype=float)
    each = each[clients] if each.ndim else np.full(len(clients), float(each))
    return each if liars is None else np.where(np.isin(clients, liars), each, 0.0)


@dataclass(frozen=True)
class Inflate:
    """Ask for more: `gamma + share * |gamma|`, all clients or only those named."""

    share: float | tuple[float, ...]
    clients: tuple[int, ...] | None = None

    def report(self, gamma: Floats, zeta: Floats, clients: Ints) -> tuple[Floats, Floats]:
        return gamma + _shares(self.share, self.clients, clients) * np.abs(gamma), zeta


@dataclass(frozen=True)
class Understate:
    """Claim a lower curve and keep the true threshold: `u - share * |u|`, so that it takes more to be satisfied.

    Every family here is linear in zeta, so scaling zeta scales the curve and keeps it concave. The sign is that of gamma:
    utilities are accuracies (positive) or negative losses.
    """

    share: float | tuple[float, ...]
    clients: tuple[int, ...] | None = None

    def report(self, gamma: Floats, zeta: Floats, clients: Ints) -> tuple[Floats, Floats]:
        lower = _shares(self.share, self.clients, clients) * np.where(gamma < 0, -1.0, 1.0)
        return gamma, zeta * (1 - lower)[:, None]
