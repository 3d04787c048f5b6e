"""Silos that misbehave, for tests and for the study in docs/robustness.md: a federation around another one.

Each round every chosen silo misbehaves with probability `rate`, in one of the ways named in `kinds`:

    absent    sends nothing
    nan       sends a model with numbers that are none
    stale     sends the model it sent some rounds ago, as if it were new
    inflated  sends its update `factor` times too long
    flipped   sends its update with the opposite sign
    reversed  both: the opposite sign and `factor` times as long (not by default: it is an attack, not an accident)

Who does what and when is a function of (seed, round, silo), so that a resumed run sees the same faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from feduca.core.arrays import like, put, select, take, zeros
from feduca.core.messages import models
from feduca.core.rng import stream
from feduca.errors import InputError
from feduca.types import ABSENT, Announcements, Array, Federation, Reports

KINDS = ("absent", "nan", "stale", "inflated", "flipped")  # by default
KNOWN = (*KINDS, "reversed")


class Faulty:
    """`federation` with the silos `who` misbehaving."""

    def __init__(
        self,
        federation: Federation,
        who: Sequence[int],
        seed: int,
        *,
        kinds: Sequence[str] = KINDS,
        rate: float = 1.0,
        factor: float = 10.0,
        lag: int = 10,
    ) -> None:
        if strangers := [kind for kind in kinds if kind not in KNOWN]:
            raise InputError(f"there is no fault {strangers[0]!r}: choose among {', '.join(KNOWN)}")
        self.silos = federation.silos
        self._federation = federation
        self._who = frozenset(who)
        self._seed, self._kinds, self._rate, self._factor, self._lag = seed, tuple(kinds), rate, factor, lag
        self._old: Array | None = None  # [N, P], the models of the last round divisible by `lag`

    def kind(self, round: int, client: int) -> str | None:
        """What this silo does wrong in this round; None = nothing."""
        if client not in self._who:
            return None
        rng = stream(self._seed, "fault", round, client)
        return self._kinds[rng.integers(len(self._kinds))] if rng.random() < self._rate else None

    def exchange(self, announcements: Announcements) -> Reports:
        reports = self._federation.exchange(announcements)
        clients, theta, here = reports.clients, reports.theta, models(announcements, reports.clients)
        if self._old is None:
            self._old = put(zeros(theta, len(self.silos), theta.shape[1]), clients, theta)
        old = take(self._old, clients)
        if announcements.round % self._lag == 0:
            self._old = put(self._old, clients, select(reports.joined, theta, old))
        faults = [self.kind(announcements.round, int(k)) for k in clients]
        joined = reports.joined

        def having(kind: str) -> np.ndarray:
            return joined & np.array([fault == kind for fault in faults])

        absent = np.array([fault == "absent" for fault in faults])
        scale = np.ones(len(clients))
        for kind, times in (("inflated", self._factor), ("flipped", -1.0), ("reversed", -self._factor)):
            scale[having(kind)] = times
        theta = select(scale != 1, here + like(here, scale)[:, None] * (theta - here), theta)
        theta = select(having("stale"), old, theta)
        theta = select(having("nan"), theta * float("nan"), theta)
        return replace(
            reports,
            theta=select(absent, zeros(theta, *theta.shape), theta),
            status=[ABSENT if gone else status for gone, status in zip(absent, reports.status)],
            reason=["no answer" if gone else reason for gone, reason in zip(absent, reports.reason)],
            gamma=np.where(absent, np.nan, reports.gamma),
            zeta=np.where(absent[:, None], np.nan, reports.zeta),
        )

    def snapshot(self) -> dict[str, Array]:
        inner = {f"inner.{name}": value for name, value in self._federation.snapshot().items()}
        return inner if self._old is None else {"old": self._old, **inner}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._old = arrays.get("old")
        self._federation.restore(
            {name.removeprefix("inner."): value for name, value in arrays.items() if name.startswith("inner.")}
        )


class DropsOut:
    """Silos that stop answering in the middle of a session of secure aggregation (masked.py), each with probability `rate`.

    Half of them before they have sent their masked change, half right afterwards.
    """

    def __init__(self, seed: int, rate: float) -> None:
        self._seed, self._rate = seed, rate

    def __call__(self, round: int, client: int) -> str | None:
        rng = stream(self._seed, "drops-out", round, client)
        if rng.random() >= self._rate:
            return None
        return "masking" if rng.random() < 0.5 else "signing"
