"""Participation rules: does the client take the offer?

A rule sees a `Situation` and answers yes or no with a reason, for all clients of a call at once. Whoever has no model of its
own yet joins under every rule; the client step sees to that. "Better" means the same thing to the rule and to the search for an
offer: one `Comparison`, shared by both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from feduca.errors import RunError, shown
from feduca.types import Array, Bools, Floats, Ints, Needs, Scores, UtilityFamily


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides. All arrays `[K]`."""

    round: int
    own: Scores  # its own model or its outside option, whichever it deploys if it declines; validation data
    offered: Scores  # the offered model, validation data
    place: Floats  # the offer's place r on the client's utility path
    zeta: Floats  # its last curve [K, size]
    gamma: Floats  # the threshold it decides by
    family: UtilityFamily
    validation: Ints | None = None  # how many examples the scores rest on, where the task says
    alone: Scores | None = None  # the model it would have had alone, or its outside option, where the rule needs it
    extra: Mapping[str, Array] = field(default_factory=dict)  # what the rule kept last round (ClientMemory.extra)
    concession: Floats | None = None  # where the offer lies on the way to its own model (1); None: it is something else
    called: str = "own"  # what `own` is: the model it has now, or its outside option


@dataclass(frozen=True)
class Decision:
    join: Bools
    reason: Sequence[str]
    left: Bools | None = None  # who has left for good; None: nobody
    extra: Mapping[str, Array] = field(default_factory=dict)  # what the rule keeps for the next round


class ParticipationRule(Protocol):
    @property
    def needs(self) -> Needs: ...

    def decide(self, situation: Situation) -> Decision: ...


def decided(rule: ParticipationRule, situation: Situation) -> Decision:
    """What the rule decides, whoever wrote it: one answer and one reason for each silo of the call."""
    found, silos = rule.decide(situation), len(situation.gamma)
    where = f"the rule {type(rule).__name__} in round {situation.round}"
    if not isinstance(found, Decision):
        raise RunError(
            f"{where} returned {shown(found)}; its decide returns a feduca.client.participation.Decision(join, reasons)"
        )
    join = np.asarray(found.join)
    if join.shape != (silos,) or join.dtype != bool:
        raise RunError(
            f"{where} gave join of shape {join.shape} and type {join.dtype}; give a numpy array with True or False for each of"
            f" the {silos} silos it is asked about"
        )
    if isinstance(found.reason, str) or len(found.reason) != silos:
        seen = "one text" if isinstance(found.reason, str) else f"{len(found.reason)} reasons"
        raise RunError(f"{where} gave {seen}; give a list with one for each of the {silos} silos it is asked about")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# What "better" means


def certainly_more(right: Floats, bar: Floats, n: Ints, confidence: float) -> Bools:
    """Is `right` of `n` correct answers more than `bar`, beyond what chance explains at this confidence?

    The sign test on the examples where two models differ: b answered correctly by the first alone, c by the second alone; if
    neither is better, b is Bin(b + c, 1/2). Only b - c = right - bar is known here, not b + c; the p-value grows with b + c, so
    the largest possible b, `min(right, n - bar)`, is assumed. The test is therefore exact or conservative.
    """
    from scipy.special import betainc

    b = np.minimum(right, n - bar)
    c = b - (right - bar)
    ahead = (right > bar) & (c >= 0)
    b, c = np.where(ahead, b, 1), np.where(ahead, c, 0)
    return ahead & (betainc(b, c + 1, 0.5) <= 1 - confidence)  # P[Bin(b + c, 1/2) >= b]


@dataclass(frozen=True)
class Comparison:
    """When one model is better than another: three answers, better, worse or a tie, and `ties` says what a tie is worth.

    With `confidence` 0 any difference of the metric counts (Eq. 1) and only equal metrics tie. With a confidence of, say, 0.9 a
    difference counts if `certainly_more` says so at that level, and everything between is a tie. Ties are no improvement
    (`strict`), or the lower validation loss decides (`loss`), which keeps silos whose own model is perfect on its few examples.
    """

    ties: str = "strict"  # or "loss"
    confidence: float = 0.0
    metric: str = "accuracy"  # or "loss"; confidence is about accuracy

    def beats(self, new: Scores, old: Scores, n: Ints | None = None, margin: float | Floats = 0.0) -> Bools:
        """Is `new` better than `old` by more than `margin`? `n` examples each; needed only for a confidence."""
        better, tied = self._by_metric(new, old, n, margin)
        return better | (tied & (new.loss < old.loss)) if self.ties == "loss" else better

    def reasons(
        self, new: Scores, old: Scores, n: Ints | None = None, names: tuple[str, str] = ("offered", "own")
    ) -> list[str]:
        """Why `beats` says what it says of two models of every client, by what they are called, in few words."""
        better, tied = self._by_metric(new, old, n, 0.0)
        return [
            self._reason(names, *case)
            for case in zip(better, tied, new.metric(self.metric), old.metric(self.metric), new.loss, old.loss)
        ]

    def standing(self, accuracy: float, loss: float) -> str:
        """Why there is no offer for a silo whose own model, with these scores, no point on the way beat."""
        value = f"{accuracy:.4f}" if self.metric == "accuracy" else f"{-loss:.4f}"
        at = f", loss {loss:.4g}" if self.ties == "loss" else ""
        return f"no point on the way beat its own model: {self.metric} {value}{at}"

    def _reason(
        self, names: tuple[str, str], better: bool, tied: bool, value: float, bar: float, loss: float, old_loss: float
    ) -> str:
        new, old = _apart(value, bar, ".4f")
        if not tied:
            return f"{names[0]} {new} {'beats' if better else 'does not beat'} {names[1]} {old}"
        if self.confidence > 0 and abs(value - bar) > 1e-12:
            tie = f"{names[0]} {new} and {names[1]} {old} tie at confidence {self.confidence:g}"
        else:
            tie = f"equal {self.metric} {old}"
        if self.ties != "loss":
            return f"{tie}: no gain"
        sign = "<" if loss < old_loss else ">" if loss > old_loss else "="
        return f"{tie}, loss {f' {sign} '.join(_apart(loss, old_loss, '.4g'))}"

    def _by_metric(self, new: Scores, old: Scores, n: Ints | None, margin: float | Floats) -> tuple[Bools, Bools]:
        """Who is better, and who ties, before `ties` has its say."""
        value, bar = new.metric(self.metric), old.metric(self.metric) + margin
        known = np.isfinite(value) & np.isfinite(bar)
        if self.confidence > 0:
            better, worse = self._surely(value, bar, n)
        else:
            equal = np.abs(value - bar) <= 1e-12  # a margin such as 0.1 must not turn a tie into a gain by rounding
            better, worse = (value > bar) & ~equal, (value < bar) & ~equal
        return better & known, ~better & ~worse & known

    def _surely(self, value: Floats, bar: Floats, n: Ints | None) -> tuple[Bools, Bools]:
        if n is None:
            raise RunError(
                f"participation.confidence is {self.confidence}, but the task does not say on how many examples it scores;"
                " give it `validation_examples`, or set the confidence to 0"
            )
        known = np.isfinite(value) & np.isfinite(bar)
        right = np.round(np.where(known, value, 0) * n)
        needed = np.ceil(np.where(known, bar, 0) * n - 1e-9)
        better = certainly_more(right, needed, n, self.confidence)
        worse = certainly_more(needed, right, n, self.confidence) | (needed > n)
        return better & known, worse & known


def _apart(one: float, other: float, form: str) -> tuple[str, str]:
    """Two numbers as text, with all their digits where fewer would make them look equal."""
    texts = format(one, form), format(other, form)
    return texts if texts[0] != texts[1] or one == other else (repr(float(one)), repr(float(other)))


# ---------------------------------------------------------------------------------------------------------------------
# Rules


@dataclass(frozen=True)
class Always:
    """Everybody in: what ordinary federated learning assumes, and the ceiling to compare with."""

    needs = Needs()

    def decide(self, situation: Situation) -> Decision:
        n = len(situation.gamma)
        return Decision(np.ones(n, bool), ["joins always"] * n)


@dataclass(frozen=True)
class Never:
    """Nobody in after the first round: every silo trains alone, the floor to compare with (use it with memory `none`)."""

    needs = Needs()

    def decide(self, situation: Situation) -> Decision:
        n = len(situation.gamma)
        return Decision(np.zeros(n, bool), ["stays alone"] * n)


@dataclass(frozen=True)
class AccuracyImproves:
    """Eq. 1: the offered model must be strictly more accurate on the client's validation data than its own."""

    better: Comparison = Comparison()
    needs = Needs()

    def decide(self, situation: Situation) -> Decision:
        scores = situation.offered, situation.own, situation.validation
        reasons, ends = self.better.reasons(*scores, ("offered", situation.called)), situation.concession
        if ends is not None:  # a search that found nothing ends at the own model, which cannot beat itself
            theirs = [self.better.standing(*own) for own in zip(situation.own.accuracy, situation.own.loss)]
            reasons = [nothing if c == 1 else why for c, nothing, why in zip(ends, theirs, reasons)]
        return Decision(self.better.beats(*scores), reasons)


@dataclass(frozen=True)
class UtilityThreshold:
    """Eq. 2: `u_k(r; zeta_k) >= gamma_k`, up to a tolerance that keeps solver noise from deciding.

    `realised`: the utility of the offered model on the client's validation data stands in for what the last curve promises.
    """

    tolerance: float = 1e-6
    realised: bool = False
    metric: str = "accuracy"  # or "loss": what a realised utility is measured by
    needs = Needs(curve=True)

    def decide(self, situation: Situation) -> Decision:
        fitted = situation.family.value(situation.zeta, situation.place)
        utility = situation.offered.metric(self.metric) if self.realised else fitted
        join = utility >= situation.gamma - self.tolerance
        reasons = [
            f"{'realised utility' if self.realised else f'u({r:.4f})'} = {u:.4f}"
            f" {'meets' if yes else 'is below'} gamma = {gamma:.4f}"
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
        return decided(self.rule, situation)


@dataclass(frozen=True)
class Quits:
    """A silo whose deployed model did not beat the one it would have had alone for `rounds` rounds running leaves for good.

    What it deploys is the offer where it joins and its own model where not; both sides are judged on its validation data. Whoever
    has left trains on by itself and is never asked to decide again.
    """

    rounds: int
    rule: ParticipationRule
    better: Comparison = Comparison()

    @property
    def needs(self) -> Needs:
        return self.rule.needs | Needs(alone=True)

    def gone(self, extra: Mapping[str, Array], n: int) -> Bools:
        """Who of `n` silos had left before this round: nothing is offered to them."""
        return np.asarray(extra.get("behind", np.zeros(n))) >= self.rounds

    def decide(self, situation: Situation) -> Decision:
        alone = situation.alone
        if alone is None:
            raise RunError("a silo can only quit if it knows its model alone; the client step computes it where needed")
        n = len(situation.gamma)
        before = np.asarray(situation.extra.get("behind", np.zeros(n)))
        gone = self.gone(situation.extra, n)
        inner = decided(self.rule, situation)
        deployed = Scores(
            np.where(inner.join, situation.offered.accuracy, situation.own.accuracy),
            np.where(inner.join, situation.offered.loss, situation.own.loss),
        )
        gains = self.better.beats(deployed, alone, situation.validation)
        # In its first round a silo has nothing to judge yet; and one that cannot know its model alone never has.
        judged = np.isfinite(situation.own.accuracy) & np.isfinite(alone.accuracy) & ~gone
        behind = np.where(judged, np.where(gains, 0, before + 1), before)
        left = behind >= self.rounds
        against = "alone" if situation.called == "own" else situation.called
        model = "model alone" if against == "alone" else f"{against} model"
        said = f"left for good: {self.rounds} round{'s' * (self.rounds != 1)} without beating its {model}"
        reasons = [said if out else why for out, why in zip(left, inner.reason)]
        if (left & ~gone).any():  # the figures stand where they decided: in the round in which a silo leaves
            last = self.better.reasons(deployed, alone, situation.validation, ("deployed", against))
            for k in np.flatnonzero(left & ~gone):
                reasons[k] = f"{said}; at last {last[k]}"
        return Decision(inner.join & ~left, reasons, left, {**inner.extra, "behind": behind})
