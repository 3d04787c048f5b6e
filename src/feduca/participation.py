"""Participation rules: does the client take the offer? (SPEC section 6.)

A rule sees a `Situation` and answers yes or no with a reason, for all clients of a call at once. Whoever has no model of its
own yet joins under every rule; the client step sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feduca.types import Bools, Floats, Needs, Scores, UtilityFamily


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides. All arrays `[K]`."""

    round: int
    own: Scores  # its own model, validation data
    offered: Scores  # the offered model, validation data
    place: Floats  # the offer's place r on the client's utility path
    zeta: Floats  # its last curve [K, size]
    gamma: Floats  # the threshold it decides by
    family: UtilityFamily


@dataclass(frozen=True)
class Decision:
    join: Bools
    reason: Sequence[str]


class ParticipationRule(Protocol):
    @property
    def needs(self) -> Needs: ...

    def decide(self, situation: Situation) -> Decision: ...


def beats(offered: Scores, own: Scores, ties: str = "strict", margin: float = 0.0, metric: str = "accuracy") -> Bools:
    """Is the offered model better than the own one by more than `margin`?

    Strict comparison of the metric; with `ties = "loss"` equal metrics are decided by the lower validation loss, which keeps
    silos whose own model is already perfect on their few examples.
    """
    gain = offered.metric(metric) - own.metric(metric)
    better = gain > margin
    if ties == "loss":
        better |= (np.abs(gain - margin) <= 1e-12) & (offered.loss < own.loss)
    return better


@dataclass(frozen=True)
class Always:
    """Everybody in: what ordinary federated learning assumes, and the ceiling to compare with."""

    needs = Needs()

    def decide(self, situation: Situation) -> Decision:
        n = len(situation.gamma)
        return Decision(np.ones(n, bool), ["joins always"] * n)


@dataclass(frozen=True)
class AccuracyImproves:
    """Eq. 1: the offered model must be strictly more accurate on the client's validation data than its own."""

    ties: str = "strict"  # or "loss"
    needs = Needs()

    def decide(self, situation: Situation) -> Decision:
        join = beats(situation.offered, situation.own, self.ties)
        reasons = [
            f"offered {offered:.4f} {'beats' if yes else 'does not beat'} own {own:.4f}"
            for yes, offered, own in zip(join, situation.offered.accuracy, situation.own.accuracy)
        ]
        return Decision(join, reasons)


@dataclass(frozen=True)
class UtilityThreshold:
    """Eq. 2: `u_k(r; zeta_k) >= gamma_k`, up to a tolerance that keeps solver noise from deciding (reading 8)."""

    tolerance: float = 1e-6
    needs = Needs(curve=True)

    def decide(self, situation: Situation) -> Decision:
        utility = situation.family.value(situation.zeta, situation.place)
        join = utility >= situation.gamma - self.tolerance
        reasons = [
            f"u({r:.4f}) = {u:.4f} {'meets' if yes else 'is below'} gamma = {gamma:.4f}"
            for yes, r, u, gamma in zip(join, situation.place, utility, situation.gamma)
        ]
        return Decision(join, reasons)


@dataclass(frozen=True)
class WarmStart:
    """Everybody joins for the first `rounds` rounds; then `rule` decides (FedAvg-WS: five rounds, then Eq. 1)."""

    rounds: int
    rule: ParticipationRule

    @property
    def needs(self) -> Needs:
        return self.rule.needs

    def decide(self, situation: Situation) -> Decision:
        if situation.round <= self.rounds:
            n = len(situation.gamma)
            return Decision(np.ones(n, bool), [f"warm start until round {self.rounds}"] * n)
        return self.rule.decide(situation)
