"""What a client tells the server about its curve and threshold: the truth, or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from feduca.core.messages import silenced
from feduca.core.rng import stream
from feduca.types import Floats, Ints, Reports, UtilityFamily


class ReportingPolicy(Protocol):
    def report(self, gamma: Floats, zeta: Floats, clients: Ints, round: int = 0) -> tuple[Floats, Floats]:
        """The reported threshold and curve of `clients[K]`."""
        ...


@dataclass(frozen=True)
class Truthful:
    """As measured."""

    def report(self, gamma: Floats, zeta: Floats, clients: Ints, round: int = 0) -> tuple[Floats, Floats]:
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

    def report(self, gamma: Floats, zeta: Floats, clients: Ints, round: int = 0) -> tuple[Floats, Floats]:
        return gamma + _shares(self.share, self.clients, clients) * np.abs(gamma), zeta


@dataclass(frozen=True)
class Understate:
    """Claim a lower curve and keep the true threshold: `u - share * |u|`, so that it takes more to be satisfied.

    Every family here is linear in zeta, so scaling zeta scales the curve and keeps it concave. The sign is that of gamma:
    utilities are accuracies (positive) or negative losses.
    """

    share: float | tuple[float, ...]
    clients: tuple[int, ...] | None = None

    def report(self, gamma: Floats, zeta: Floats, clients: Ints, round: int = 0) -> tuple[Floats, Floats]:
        lower = _shares(self.share, self.clients, clients) * np.where(gamma < 0, -1.0, 1.0)
        return gamma, zeta * (1 - lower)[:, None]


@dataclass(frozen=True)
class Blurred:
    """Tell less: what `policy` would report, rounded to multiples of `step` and with Gaussian noise of deviation `noise`.

    The curve is blurred as three utilities, `u(0), u(1/2), u(1)`, and fitted anew, so that it stays a curve of the family.
    Noise is drawn afresh each round: a server that averages over many rounds gets much of the truth back.
    """

    policy: ReportingPolicy
    family: UtilityFamily
    seed: int
    step: float = 0.0
    noise: float = 0.0

    def report(self, gamma: Floats, zeta: Floats, clients: Ints, round: int = 0) -> tuple[Floats, Floats]:
        gamma, zeta = self.policy.report(gamma, zeta, clients, round)
        known = np.isfinite(gamma)
        if not known.any():
            return gamma, zeta
        places, weights = np.array([0.0, 0.5, 1.0]), np.full(3, 1 / 3)
        told = np.concatenate([self.family.value(zeta[known], places[:, None]).T, gamma[known, None]], axis=1)
        if self.noise:
            told = told + self.noise * np.stack(
                [stream(self.seed, "blur", round, int(k)).normal(size=4) for k in clients[known]]
            )
        if self.step:
            told = np.round(told / self.step) * self.step
        gamma, zeta = gamma.copy(), zeta.copy()
        zeta[known], gamma[known] = self.family.fit(places, told[:, :3], weights), told[:, 3]
        return gamma, zeta


def quiet(reports: Reports, decliners: str) -> Reports:
    """What of the reports is sent where decliners do not tell everything: "curve" and threshold besides, or "silent", the status.

    The paper's FedAvg client returns nothing when it declines, and Algorithm 1's its curve and threshold.
    """
    stays = ~reports.joined
    if decliners == "all" or not stays.any():
        return reports
    measured = silenced(reports.measurements, stays)
    if stays.all():  # then nobody tells a method's own numbers, or points: there are no columns of them
        measured = replace(measured, test={}, told={}, points={}, noted={})
    said = ["" if silent else why for silent, why in zip(stays, reports.reason)]
    reports = replace(reports, reason=said, measurements=measured)
    if decliners == "curve":
        return reports
    return replace(
        reports,
        gamma=np.where(stays, np.nan, reports.gamma),
        zeta=np.where(stays[:, None], np.nan, reports.zeta),
    )
