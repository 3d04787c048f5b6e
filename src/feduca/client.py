"""The client's step of one round (SPEC section 1, steps 2 to 6), for K clients along a leading axis.

A coroutine: it yields the work it wants from its task (`work.py`) and returns the clients' new memory and their reports. The
same code serves ten clients in one batched call, twenty-one federations in lockstep and one silo on its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from feduca import alone
from feduca.arrays import mix, put, repeat, select, take, zeros
from feduca.conduct import Conduct
from feduca.offers import Asked, Offer
from feduca.participation import ParticipationRule, Quits, Situation
from feduca.personal import Nothing, Personal
from feduca.reporting import ReportingPolicy, Truthful
from feduca.types import (
    DECLINED,
    JOINED,
    LEFT,
    Announcements,
    Array,
    Bools,
    ClientMemory,
    Floats,
    Ints,
    Measurements,
    Needs,
    Reports,
    Scores,
    UtilityFamily,
)
from feduca.utility import nodes, r_squared
from feduca.work import Along, Evaluate, Steps, Train

CAP = 0.99  # largest alpha_formed for which (theta - a theta_k) / (1 - a) is still formed


@dataclass(frozen=True)
class Behaviour:
    """How clients behave: everything of a recipe that is the client's business."""

    rule: ParticipationRule
    offer: Offer
    family: UtilityFamily
    seed: int
    train_from: str = "offer"  # or "consensus": an accepted offer is deployed, training starts from the shared model
    reporting: ReportingPolicy = Truthful()
    decide_by: str = "reported"  # or "true": the threshold an inflating client decides by (reading 13)
    threshold: str = "previous-weight"  # or "local-baseline" (reading 3)
    metric: str = "accuracy"  # or "loss" (reading 9)
    nodes: int = 8  # forward passes a fit costs
    check: int = 21  # points of the denser grid that R^2 is computed on
    check_every: int = 1  # rounds between two such checks; 0 = never
    leave_out: str = "local"  # or "contributed": the own model taken out of theta (reading 5)
    tolerance: float = 1e-6
    needs: Needs = Needs()  # the mechanism's and the user's (diagnostics); the rule's and the offer's are added
    untouched: bool = False  # silos have a test part that no decision sees
    conduct: Conduct = Conduct()  # honest work, or some way of shirking it
    personal: Personal = Nothing()  # what the method keeps on the client beside the shared model
    record_points: bool = False  # send the measured utilities along with the fit, for the report
    keep_curves: bool = False  # in rounds with a check send them, and the losses at the same places

    @property
    def all_needs(self) -> Needs:
        return self.needs | self.rule.needs | self.offer.needs


def blank(theta: Array, clients: int, family: UtilityFamily) -> ClientMemory:
    """The memory of clients that have never been asked."""
    nothing, curve = np.full(clients, np.nan), np.full((clients, family.size), np.nan)
    empty = zeros(theta, clients, len(theta))
    never = np.zeros(clients, bool)
    return ClientMemory(never, never, empty, empty, curve, nothing, curve, nothing)


def rows(memory: ClientMemory, index: Ints) -> ClientMemory:
    """The memory of some clients."""
    arrays = {name: take(value, index) for name, value in vars(memory).items() if name != "extra"}
    return ClientMemory(**arrays, extra={name: take(value, index) for name, value in memory.extra.items()})


def written(memory: ClientMemory, index: Ints, part: ClientMemory) -> ClientMemory:
    """`memory` with the rows of some clients replaced."""
    new = vars(part)
    arrays = {name: put(value, index, new[name]) for name, value in vars(memory).items() if name != "extra"}
    extra = {
        name: put(memory.extra.get(name, zeros(value, len(memory.trained), *value.shape[1:])), index, value)
        for name, value in part.extra.items()
    }
    return ClientMemory(**arrays, extra={**memory.extra, **extra})


def leave_one_out(theta: Array, own: Array, alpha: Floats, known: Bools, parameters: int) -> tuple[Array, Bools]:
    """`theta_-k = (theta - a theta_k) / (1 - a)` (Eq. 3), theta itself where no own model is known; and who was capped.

    Buffers (the tail beyond `parameters`) stay theta's: extrapolated running statistics mean nothing.
    """
    a = np.minimum(alpha, CAP)
    without = mix(repeat(theta, len(alpha)), own, np.where(known, -a / (1 - a), 0.0))
    if parameters < len(theta):
        without[:, parameters:] = theta[parameters:]
    return without, known & (alpha > CAP)


def step(
    memory: ClientMemory,
    asked: Announcements,
    how: Behaviour,
    parameters: int,
    examples: Ints,
    validation: Ints | None = None,
    initial: alone.Initial | None = None,
) -> Steps[tuple[ClientMemory, Reports]]:
    """One round of `asked.clients`, whose memory is `memory`, with `examples` to train on and `validation` to decide by.

    `initial` gives the run's first model, for the model alone of a silo that comes later.
    """
    clients, k, theta = asked.clients, len(asked.clients), asked.theta
    family, needs = how.family, how.all_needs
    has_curve = np.isfinite(memory.gamma)
    shared = repeat(theta, k)

    # Decide (step 2): look at the offer, then the rule says yes or no.
    global_scores: Scores = yield Evaluate(shared, clients)
    own_scores: Scores = _nothing(k)
    if memory.trained.any():
        own_scores = _masked((yield Evaluate(memory.own, clients)), memory.trained)
    announced = asked.alpha_announced

    def place(concession: Floats) -> Floats:
        """theta = (1 - a) theta_-k + a theta_k, so offer(c) lies at r = a + c (1 - a) of the utility path."""
        return announced + concession * (1 - announced)

    def predict(concessions: Floats) -> Floats:
        """What last round's curves expect of offers."""
        return family.value(memory.zeta, place(concessions[:, None]))

    curves = predict if has_curve.any() else None
    gone = how.rule.gone(memory.extra, k) if isinstance(how.rule, Quits) else np.zeros(k, bool)
    offered = yield from how.offer.of(
        Asked(
            clients,
            theta,
            memory.own,
            memory.trained & ~gone,
            global_scores,
            own_scores,
            validation,
            curves,
            how.metric,
        )
    )
    prepared = yield from how.personal.prepare(memory, asked, how.seed)
    taken, judged = offered.theta, offered.scores  # what a participant deploys, and what it is worth to it
    if prepared.model is not None:
        taken, judged = prepared.model, (yield Evaluate(prepared.model, clients))
    reported = how.decide_by == "reported"
    zeta, gamma = (memory.zeta_reported, memory.gamma_reported) if reported else (memory.zeta, memory.gamma)
    solo = alone.current(memory, asked, initial) if needs.alone else None
    solo_scores = _nothing(k) if needs.alone else None
    if solo is not None:
        solo_scores = yield Evaluate(solo, clients)
    decision = how.rule.decide(
        Situation(
            asked.round,
            own_scores,
            judged,
            place(offered.concession),
            zeta,
            gamma,
            family,
            validation,
            solo_scores,
            memory.extra,
            offered.concession if prepared.model is None else None,
        )
    )
    join = decision.join & how.conduct.willing(clients) | ~memory.trained
    reason = [why if had else "no model of its own yet" for why, had in zip(decision.reason, memory.trained)]
    given = select(join, offered.theta, memory.own)
    start = select(join, shared, memory.own) if how.train_from == "consensus" else given
    promised = np.where(has_curve, family.value(memory.zeta, announced), np.nan)
    kept = family.value(zeta, announced) >= gamma - how.tolerance

    test = {}
    if how.untouched:
        for name, model in (("deployed", select(join, taken, memory.own)), ("global", shared), ("own", memory.own)):
            if name != "own" or memory.trained.any():
                test[name] = (yield Evaluate(model, clients, "test")).accuracy
        test["own"] = np.where(memory.trained, test.get("own", np.nan), np.nan)
        if solo is not None:
            test["alone"] = (yield Evaluate(solo, clients, "test")).accuracy

    # Train (step 3).
    train_loss = np.full(k, np.nan)
    if needs.train_loss:
        train_loss = (yield Evaluate(shared, clients, "train")).loss
    new = yield Train(start, clients, asked.local, asked.round, how.seed, anchor=theta)
    new = how.conduct.works(clients, given, new)
    extra = dict(decision.extra)
    if solo is not None:
        extra["alone"] = yield from alone.trained(solo, asked, how.seed)

    # Estimate utility, set the threshold (steps 4 and 5).
    r2, capped = np.full(k, np.nan), np.zeros(k, bool)
    zeta, gamma = np.full((k, family.size), np.nan), np.full(k, np.nan)
    points: dict[str, Floats] = {}
    if needs.curve:
        local = how.leave_out == "local"
        base, known = (memory.own, memory.trained) if local else (memory.contributed, memory.contributes)
        without, capped = leave_one_out(theta, base, asked.alpha_formed, known, parameters)
        r, weights = nodes(how.nodes)
        checking = how.check_every > 0 and (asked.round - 1) % how.check_every == 0
        grid = np.linspace(0, 1, how.check) if checking else np.empty(0)
        places = np.tile(np.concatenate([r, grid]), (k, 1))
        path: Scores = yield Along(without, new, places, clients)
        utility = path.metric(how.metric)
        keeping = checking and how.keep_curves
        if how.record_points or keeping:
            points = {"places": places, "values": utility} | ({"losses": path.loss} if keeping else {})
        zeta = family.fit(r, utility[:, : len(r)], weights)
        if checking:
            r2 = r_squared(family, zeta, grid, utility[:, len(r) :])
        at_weight = asked.alpha_formed if how.threshold == "previous-weight" else np.ones(k)
        gamma = family.value(zeta, at_weight)
    gamma_reported, zeta_reported = how.reporting.report(gamma, zeta, clients, asked.round)

    # Report (step 6).
    measurements = Measurements(
        global_=global_scores,
        own=own_scores,
        offered=_masked(judged, ~gone),
        train_loss=train_loss,
        concession=np.where(gone, np.nan, offered.concession),
        evaluations=offered.evaluations,
        examples=examples,
        promised=promised,
        eq2=np.where(has_curve, kept.astype(float), np.nan),
        r2=r2,
        capped=capped,
        test=test,
        told=prepared.told,
        points=points,
    )
    left = np.zeros(k, bool) if decision.left is None else decision.left & memory.trained
    status = [JOINED if yes else LEFT if gone else DECLINED for yes, gone in zip(join, left)]
    shown = how.conduct.sends(clients, shared, given, new, asked.round, how.seed)
    sent = select(join, shown, zeros(new, *new.shape))  # a decliner's model stays at home
    reports = Reports(asked.round, clients, status, reason, sent, gamma_reported, zeta_reported, measurements)
    after = replace(
        memory,
        trained=np.ones(k, bool),
        contributes=memory.contributes | join,
        own=new,
        contributed=select(join, shown, memory.contributed),
        zeta=zeta,
        gamma=gamma,
        zeta_reported=zeta_reported,
        gamma_reported=gamma_reported,
        extra={**memory.extra, **prepared.extra, **extra},
    )
    return after, reports


def _nothing(k: int) -> Scores:
    return Scores(np.full(k, np.nan), np.full(k, np.nan))


def _masked(scores: Scores, mask: Bools) -> Scores:
    return Scores(np.where(mask, scores.accuracy, np.nan), np.where(mask, scores.loss, np.nan))
