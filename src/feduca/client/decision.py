"""What a silo looks at before it trains, and whether it joins: the shared model, its own, the offer, the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from feduca.client import outside
from feduca.client.behaviour import Behaviour
from feduca.client.offers import Asked, Mixture, Offered, made
from feduca.client.participation import Decision, Quits, Situation, decided
from feduca.client.personal import Prepared
from feduca.client.privacy import SPENT, Allowance
from feduca.client.requests import Answers, Evaluate, Steps
from feduca.client.stack import Stack, mixed_answers, mixed_scores
from feduca.core.arrays import repeat, select
from feduca.errors import ConfigError
from feduca.types import Announcements, Answered, Array, Bools, ClientMemory, Floats, Ints, Scores


@dataclass(frozen=True)
class Choice:
    """What silos saw and what they chose; all `[K, ...]`."""

    join: Bools
    uses: Bools  # who deploys what it was offered: who joins, and whoever only says that it does not
    reason: list[str]
    left: Bools  # for good
    gone: Bools  # had left for good before this round: nothing was offered
    shared: Array  # the announced model
    offered: Offered
    taken: Array  # what a participant deploys: the offer, or the method's personal model
    judged: Scores  # what that is worth on validation data
    global_scores: Scores
    own: Array  # what a decliner deploys: its own model, or its outside option
    own_scores: Scores
    prepared: Prepared
    decision: Decision
    solo: Array | None = None  # the models alone, before this round's training
    allowed: Allowance | None = None  # what privacy still allows, where single examples are hidden

    @property
    def deployed(self) -> Array:
        """The models `[K, P]` that silos deploy in this round, where each deploys one."""
        return select(self.uses, self.taken, self.own)

    @property
    def mixture(self) -> Mixture | None:
        """What they deploy where outputs are mixed."""
        return None if self.offered.mixture is None else self.offered.mixture.for_who(self.uses)

    def score(self, clients: Ints, split: str) -> Steps[Scores]:
        """How well what silos deploy does on some of their data."""
        if self.mixture is not None:
            return (yield from mixed_scores(self.mixture, clients, split))
        return (yield Evaluate(self.deployed, clients, split))

    def answer(self, clients: Ints, split: str) -> Steps[Answered | None]:
        """How what silos deploy answers single examples; None where the task cannot say."""
        if self.mixture is not None:
            return (yield from mixed_answers(self.mixture, clients, split))
        return (yield Answers(self.deployed, clients, split))


def decide(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    validation: Ints | None = None,
    initial: outside.Initial | None = None,
    allowed: Allowance | None = None,
) -> Steps[Choice]:
    """Score the shared model, the own one and an offer on validation data; then the rule says yes or no."""
    clients, k = asked.clients, len(asked.clients)
    shared = repeat(asked.theta, k)
    global_scores: Scores = yield Evaluate(shared, clients)
    trained_scores = nothing(k)
    if memory.trained.any():
        trained_scores = masked((yield Evaluate(memory.own, clients)), memory.trained)
    own, own_scores, called = memory.own, trained_scores, "own"
    if how.outside is not None:
        own, scores = yield from how.outside.before(memory, asked, trained_scores, initial)
        own_scores, called = masked(scores, memory.trained), how.outside.name
    gone = how.rule.gone(memory.extra, k) if isinstance(how.rule, Quits) else np.zeros(k, bool)
    offered = yield from made(
        how.offer,
        Asked(
            clients,
            asked.theta,
            memory.own,
            memory.trained & ~gone,
            global_scores,
            trained_scores,
            validation,
            expectations(memory, asked, how),
            how.metric,
            own_scores,
            None if how.outside is None else own,
        ),
    )
    prepared = yield from how.personal.prepare(memory, asked, how.seed)
    taken, judged = offered.theta, offered.scores
    if prepared.model is not None:
        if isinstance(how.offer, Stack):  # of a method that does not say `deploys`
            raise ConfigError("a method that keeps a personal model deploys that, not a stack; use another offer.kind")
        taken, judged = prepared.model, (yield Evaluate(prepared.model, clients))
    solo, solo_scores = yield from without_others(memory, asked, how, own, own_scores, initial)
    reported = how.decide_by == "reported"
    situation = Situation(
        asked.round,
        own_scores,
        judged,
        place(asked.alpha_announced, offered.concession),
        memory.zeta_reported if reported else memory.zeta,
        memory.gamma_reported if reported else memory.gamma,
        how.family,
        validation,
        solo_scores,
        memory.extra,
        offered.concession if prepared.model is None and how.outside is None else None,
        called,
    )
    if how.privacy is not None and allowed is not None:
        situation = how.privacy.blurred(situation, clients, how.seed, allowed)
    decision = decided(how.rule, situation)
    join = decision.join & how.conduct.willing(clients) | ~memory.trained
    if allowed is not None:
        join = join & allowed.joins(memory.trained)
    uses = join
    join = join & ~(how.conduct.sly(clients) & memory.trained)
    said = [why if had else "no model of its own yet" for why, had in zip(decision.reason, memory.trained)]
    if allowed is not None:
        said = [why if may else SPENT for why, may in zip(said, allowed.joins(memory.trained))]
    if offered.why is not None:
        said = [
            why or rule if not yes and not out and rule != SPENT else rule
            for rule, why, yes, out in zip(said, offered.why, join, gone)
        ]
    return Choice(
        join=join,
        uses=uses,
        reason=said,
        left=np.zeros(k, bool) if decision.left is None else decision.left & memory.trained,
        gone=gone,
        shared=shared,
        offered=offered,
        taken=taken,
        judged=judged,
        global_scores=global_scores,
        own=own,
        own_scores=own_scores,
        prepared=prepared,
        decision=decision,
        solo=solo,
        allowed=allowed,
    )


def without_others(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    own: Array,
    own_scores: Scores,
    initial: outside.Initial | None,
) -> Steps[tuple[Array | None, Scores | None]]:
    """The models alone and their scores, where anything needs them; an outside option is compared with in their place."""
    alone = how.all_needs.alone
    if how.outside is not None:
        if how.outside.alone or not alone:
            return (own if alone else None), own_scores
        return outside.current(memory, asked, initial), own_scores
    solo = outside.current(memory, asked, initial) if alone else None
    scores = nothing(len(asked.clients)) if alone else None
    if solo is not None:
        scores = yield Evaluate(solo, asked.clients)
    return solo, scores


def place(announced: Floats, concession: Floats) -> Floats:
    """theta = (1 - a) theta_-k + a theta_k, so offer(c) lies at r = a + c (1 - a) of the utility path."""
    return announced + concession * (1 - announced)


def expectations(memory: ClientMemory, asked: Announcements, how: Behaviour) -> Callable[[Floats], Floats] | None:
    """What last round's curves expect of offers: utility `[M, K]` at concessions `[M]`; None where there are no curves."""
    if not np.isfinite(memory.gamma).any():
        return None

    def predict(concessions: Floats) -> Floats:
        return how.family.value(memory.zeta, place(asked.alpha_announced, concessions[:, None]))

    return predict


def nothing(k: int) -> Scores:
    """The scores of clients that have no such model."""
    return Scores(np.full(k, np.nan), np.full(k, np.nan))


def masked(scores: Scores, mask: Bools) -> Scores:
    """`scores` where the mask holds, NaN elsewhere."""
    return Scores(np.where(mask, scores.accuracy, np.nan), np.where(mask, scores.loss, np.nan))
