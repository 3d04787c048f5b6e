"""The client's step of one round (decide, train, estimate, report) for K clients along a leading axis.

    decide    look at the offer; the rule says yes or no        (decision.py)
    test      score what is deployed on data no decision sees
    train     from the offer, from the shared or from the own model
    estimate  fit utility, set the threshold                    (estimation.py)
    report    tell the server, remember

A coroutine: it yields the work it wants from its task (`requests.py`) and returns the clients' new memory and their reports. The
same code serves ten clients in one batched call, twenty-one federations in lockstep and one silo on its own machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from feduca.client import outside, paired
from feduca.client.behaviour import Behaviour
from feduca.client.conduct import Seen
from feduca.client.decision import Choice, decide, masked
from feduca.client.estimation import Estimate, estimate
from feduca.client.privacy import KEY
from feduca.client.reporting import quiet
from feduca.client.requests import Evaluate, Steps
from feduca.core.arrays import put, select, zeros
from feduca.types import (
    DECLINED,
    JOINED,
    LEFT,
    Announcements,
    Array,
    ClientMemory,
    Floats,
    Ints,
    Measurements,
    Private,
    Reports,
)


@dataclass(frozen=True)
class Trained:
    """A round's training, all `[K, ...]`."""

    given: Array  # what was accepted, or the own model
    new: Array  # the models after training
    loss: Floats  # training loss of the shared model before, where the mechanism needs it
    option: Array | None  # the outside option after its own training, where silos keep one
    alone: Array | None  # the models alone, likewise
    noted: dict[str, Floats]  # what it cost, where silos train more than one model
    acting: Seen  # what their conduct sees
    paid: dict[str, Floats] = field(default_factory=dict)  # what is spent of privacy, where examples are hidden


def step(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    parameters: int,
    examples: Ints,
    validation: Ints | None = None,
    initial: outside.Initial | None = None,
    look: Callable[[Choice], object] = lambda choice: None,
) -> Steps[tuple[ClientMemory, Reports]]:
    """One round of `asked.clients`, whose memory is `memory`, with `examples` to train on and `validation` to decide by.

    `initial` gives the run's first model, for the model alone of a silo that comes later; `look` is shown what was chosen.
    """
    told = asked.theta
    asked = completed(memory, asked, how)
    allowed = None
    if how.privacy is not None:
        allowed = how.privacy.allow(memory.extra, asked.local, examples, validation, memory.trained)
    choice = yield from decide(memory, asked, how, validation, initial, allowed)
    look(choice)
    tested = yield from test(memory, asked, how, choice)
    trained = yield from train(memory, asked, how, choice, examples, validation)
    found = yield from estimate(memory, asked, how, trained.new, parameters)
    if how.outside is not None and how.all_needs.curve:
        gamma = yield from how.outside.worth(asked, trained.option, trained.new, choice.own_scores, how.metric)
        found = replace(found, gamma=gamma)
    after, reports = report(memory, asked, how, examples, choice, tested, trained, found)
    reports = quiet(reports, how.decliners)
    return after, reports if how.share is None else how.share.sent(reports, told)


def completed(memory: ClientMemory, asked: Announcements, how: Behaviour) -> Announcements:
    """The announcements with, where only a part of a model travels, the rest from the silo."""
    if how.share is None:
        return asked
    return replace(asked, theta=how.share.completed(asked.theta, memory.own, memory.trained))


def test(memory: ClientMemory, asked: Announcements, how: Behaviour, choice: Choice) -> Steps[dict[str, Floats]]:
    """Scores on untouched data of what is deployed and of what it could have been instead."""
    scores: dict[str, Floats] = {}
    if not how.untouched:
        return scores
    scores["deployed"] = (yield from choice.score(asked.clients, "test")).accuracy
    for name, model in {"global": choice.shared, "own": choice.own}.items():
        if name != "own" or memory.trained.any():
            scores[name] = (yield Evaluate(model, asked.clients, "test")).accuracy
    scores["own"] = np.where(memory.trained, scores.get("own", np.nan), np.nan)
    if choice.solo is not None:
        scores["alone"] = (yield Evaluate(choice.solo, asked.clients, "test")).accuracy
        ours = yield from choice.answer(asked.clients, "test")
        pairs = yield from paired.against_alone(ours, choice.solo, asked.clients)
        scores |= {f"paired_{name}": values for name, values in pairs.items()}
    return scores


def train(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    choice: Choice,
    examples: Ints,
    validation: Ints | None = None,
) -> Steps[Trained]:
    """Local training: of what was accepted (or of the shared model) by who joins, of its own model by who does not."""
    given = select(choice.join, choice.offered.theta, choice.own)
    start = select(choice.join, choice.shared, choice.own) if how.train_from == "consensus" else given
    if choice.prepared.start is not None:
        start = select(choice.join, choice.prepared.start, choice.own)
    loss = np.full(len(asked.clients), np.nan)
    if how.all_needs.train_loss:
        loss = (yield Evaluate(choice.shared, asked.clients, "train")).loss
    option, spent = None, np.zeros(len(asked.clients))
    private = None
    if how.privacy is not None:
        private = how.privacy.training(asked.local, examples, validation)
    if how.outside is None:
        new = yield from train_one(start, asked, how, choice, private)
    else:
        new, option, spent = yield from train_both(start, asked, how, how.outside, choice, private)
    acting = seen(memory, asked, how, choice, given, new)
    new = how.conduct.works(acting)
    alone = option if how.outside is not None and how.outside.alone else None
    if choice.solo is not None and alone is None:
        alone, spent = (yield from outside.trained(choice.solo, asked, how.seed)), spent + 1
    noted = {} if how.outside is None else {"trainings": spent}
    paid = {}
    if how.privacy is not None and choice.allowed is not None:
        who = choice.allowed.trains if how.outside is None else choice.join
        paid = {KEY: choice.allowed.after(who, choice.allowed.decides)}
        noted["epsilon"] = how.privacy.spent(paid[KEY], choice.allowed.deltas)
    return Trained(given, new, loss, option, alone, noted, replace(acting, new=new), paid)


def seen(memory: ClientMemory, asked: Announcements, how: Behaviour, choice: Choice, given: Array, new: Array) -> Seen:
    """What conduct sees of a round."""
    who = how.conduct.who(asked.clients)
    return Seen(asked.round, how.seed, asked.clients, choice.shared, given, new, memory.trained, who, memory.extra)


def train_one(
    start: Array, asked: Announcements, how: Behaviour, choice: Choice, private: Private | None
) -> Steps[Array]:
    """The new models; those of silos that may not train any more stay as they are."""
    who = np.arange(len(asked.clients))
    if choice.allowed is not None:
        who = np.flatnonzero(choice.allowed.trains)
    if not len(who):
        return choice.own
    work = choice.prepared.joint(asked, start, choice.join, who, how.seed, how.share)
    return put(choice.own, who, (yield work.hiding(private, who)))


def train_both(
    start: Array, asked: Announcements, how: Behaviour, beside: outside.Outside, choice: Choice, private: Private | None
) -> Steps[tuple[Array, Array, Floats]]:
    """The new models, the outside options that are kept, and how many trainings each silo had.

    Who declines trains its outside option alone, which then is its own model, too.
    """
    joiners, who = np.flatnonzero(choice.join), beside.trains(asked.round, choice.join)
    own = yield from outside.trained(choice.own, asked, how.seed, who)
    new = own
    if len(joiners):
        work = choice.prepared.joint(asked, start, choice.join, joiners, how.seed, how.share)
        some = yield work.hiding(private, joiners)
        new = put(own, joiners, some)
    spent = choice.join.astype(float) + np.isin(np.arange(len(choice.join)), who)
    return new, beside.after(choice.own, own, who), spent


def report(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    examples: Ints,
    choice: Choice,
    tested: dict[str, Floats],
    trained: Trained,
    found: Estimate,
) -> tuple[ClientMemory, Reports]:
    """What the clients remember of the round, and what they tell the server."""
    clients, k, join = asked.clients, len(asked.clients), choice.join
    gamma_reported, zeta_reported = how.reporting.report(found.gamma, found.zeta, clients, asked.round)
    status = [JOINED if yes else LEFT if gone else DECLINED for yes, gone in zip(join, choice.left)]
    shown = how.conduct.sends(trained.acting)
    sent = select(join, shown, zeros(trained.new, *trained.new.shape))  # a decliner's model stays at home
    measured = measure(memory, asked, how, examples, choice, tested, trained, found)
    reports = Reports(asked.round, clients, status, choice.reason, sent, gamma_reported, zeta_reported, measured)
    extra = {**choice.decision.extra, **found.extra, **trained.paid}
    if (learn := getattr(how.personal, "learn", None)) is not None:
        extra |= learn(memory, asked, join, trained.new, examples)
    if trained.option is not None and how.outside is not None:
        extra[how.outside.key] = trained.option
    if trained.alone is not None:
        extra["alone"] = trained.alone
    extra |= how.conduct.deed.keeps(trained.acting)
    after = replace(
        memory,
        trained=np.ones(k, bool),
        contributes=memory.contributes | join,
        own=trained.new,
        contributed=select(join, shown, memory.contributed),
        zeta=found.zeta,
        gamma=found.gamma,
        zeta_reported=zeta_reported,
        gamma_reported=gamma_reported,
        extra={**memory.extra, **choice.prepared.extra, **extra},
    )
    return after, reports


def measure(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    examples: Ints,
    choice: Choice,
    tested: dict[str, Floats],
    trained: Trained,
    found: Estimate,
) -> Measurements:
    """What the clients measured on the way; what was promised is judged by last round's curve."""
    family, announced, has_curve = how.family, asked.alpha_announced, np.isfinite(memory.gamma)
    reported = how.decide_by == "reported"
    zeta, gamma = (memory.zeta_reported, memory.gamma_reported) if reported else (memory.zeta, memory.gamma)
    utility = choice.judged.metric(how.metric) if how.realised else family.value(zeta, announced)
    kept = utility >= gamma - how.tolerance
    return Measurements(
        global_=choice.global_scores,
        own=choice.own_scores,
        offered=masked(choice.judged, ~choice.gone),
        train_loss=trained.loss,
        concession=np.where(choice.gone, np.nan, choice.offered.concession),
        evaluations=choice.offered.evaluations,
        examples=examples,
        promised=np.where(has_curve, family.value(memory.zeta, announced), np.nan),
        eq2=np.where(has_curve, kept.astype(float), np.nan),
        r2=found.r2,
        capped=found.capped,
        test=tested,
        told=choice.prepared.told,
        points=found.points,
        noted=trained.noted
        | {name: np.where(choice.gone, np.nan, value) for name, value in choice.offered.noted.items()},
    )
