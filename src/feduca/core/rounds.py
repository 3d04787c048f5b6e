"""The one round loop, as a coroutine.

    reports = yield announcements

Whoever drives it decides where the reports come from: a federation in this process, silos on other machines, a recording,
or many federations in lockstep. Nothing here knows which, and there is no other loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feduca.core import heard, roster, secure
from feduca.core.aggregation import Weighted, norms
from feduca.core.arrays import finite, put, repeat, select, take, zeros
from feduca.core.cohort import Cohort
from feduca.core.memory import Memory, not_summed, standing_in
from feduca.core.messages import models
from feduca.core.recording import Finished, client_record, round_record
from feduca.core.records import WITHOUT, ClientRecord, RoundRecord
from feduca.core.rows import Rows, Store
from feduca.core.share import Share
from feduca.core.weights import checked
from feduca.errors import RunError
from feduca.trust.gate import Admitted, Gate, refuse
from feduca.trust.outliers import Outliers
from feduca.trust.plausibility import Plausibility, merged
from feduca.trust.work import Work, kept, limited, sent_instead, set_aside
from feduca.types import (
    DECLINED,
    JOINED,
    Allocation,
    Announcements,
    Array,
    Bools,
    Federation,
    Floats,
    Ints,
    LocalSpec,
    Mechanism,
    Reports,
    Round,
    Scores,
    ServerState,
    UtilityFamily,
)


@dataclass(frozen=True)
class Server:
    """How the server runs a federation: everything of a recipe that is the server's business."""

    mechanism: Mechanism
    memory: Memory
    family: UtilityFamily
    local: LocalSpec
    rounds: int
    seed: int
    aggregation: Weighted = Weighted()
    lr_decay: float = 1.0
    parameters: int | None = None  # leading entries of theta that are trained; None = all
    metric: str = "accuracy"
    run: str = ""
    gate: Gate | None = Gate()  # None believes everything: only to see what that costs
    outliers: Outliers | None = None
    plausibility: Plausibility | None = None
    standing: Work | None = None  # whose updates come from work; None: nobody asks
    share: Share | None = None  # what of a model travels; None: everything
    patience: int = 0  # silent rounds after which a silo is left out of the program; 0 = never
    secure: bool = False  # the server sees sums of updates alone (core/secure.py)
    cohort: Cohort | None = None  # whom to ask in a round; None: everybody
    decliners: str = "all"  # what they tell; where it is less, the last losses heard of a silo stand

    def few(self, silos: int) -> bool:
        """Whether rounds ask fewer silos than there are: then what is kept of them lies in a store (rows.py)."""
        return self.cohort is not None and self.cohort.size < silos


@dataclass(frozen=True)
class Shared:
    """Reports from an exchange that several runs had at once, with this run's share of the time it took."""

    reports: Reports
    seconds: float


Rounds = Generator[Announcements, Reports | Shared, ServerState]
OnRound = Callable[[RoundRecord, ClientRecord, ServerState], None]
Evaluate = Callable[[Array], Scores | None]


def begin(server: Server, theta: Array, examples: Ints, store: Store | None = None) -> ServerState:
    """The state before round 1. The initial weights are announced, though nobody has gone into theta yet."""
    n = len(examples)
    few = server.few(n) and not server.secure
    state, first = checked(server.mechanism, server.mechanism.init(examples, server.seed), n, round=0)
    return ServerState(
        round=1,
        theta=theta,
        remembered=(store or Store()).rows("remembered", theta, n)
        if few
        else zeros(theta, n, 0 if server.secure else len(theta)),
        last_joined=np.zeros(n, int),
        smallest_cohort=n,
        formed=first,
        announced=first,
        pending=first,
        mechanism=state,
        gamma=np.full(n, np.nan),
        zeta=np.full((n, server.family.size), np.nan),
        examples=np.asarray(examples),
        absences=np.zeros(n, int),
    )


def announce(server: Server, state: ServerState) -> Announcements:
    """Step 1: the model, the weight it was formed with, the weight to judge, and s."""
    clients = np.arange(len(state.examples))
    if server.cohort is not None:
        clients = server.cohort.asked(state.round, ~roster.departed(state), server.seed)
    s = state.announced.s
    # With one weight a round (Algorithm 2) silos take the one they judge for the one their model went in with, too.
    formed = state.announced if server.mechanism.schedule == "one-alpha" else state.formed
    return Announcements(
        run=server.run,
        round=state.round,
        clients=clients,
        theta=state.theta,
        alpha_formed=formed.alpha[clients],
        alpha_announced=state.announced.alpha[clients],
        s=np.ones(1) if s is None else s,
        local=_local(server, state.round),
        control=_told_beside(server.mechanism, state.mechanism),
        older=sent_instead(state.history, state.past, state.round),
        weights=secure.weights(state) if server.secure else None,
    )


def _local(server: Server, round: int) -> LocalSpec:
    """The local training that clients are asked for."""
    spec = server.mechanism.local(server.local)
    return replace(spec, lr=spec.lr * server.lr_decay ** (round - 1))


def _told_beside(mechanism: Mechanism, state: Any) -> Array | None:
    """The vector that a method tells clients beside the model, where it has one."""
    control = getattr(mechanism, "control", None)
    return None if control is None else control(state)


def admit(server: Server, state: ServerState, asked: Announcements, reports: Reports) -> tuple[ServerState, Admitted]:
    """The gate between the exchange and everything else; returns the state with what it learnt about the silos.

    Whoever has left for good cannot join again. What a silo without standing sends is looked at and not counted.
    """
    state, admitted = _believed(server, state, asked, reports)
    if server.secure:
        return state, secure.unseen(admitted, reports)
    if server.standing is None:
        return state, admitted
    without = limited(state.history, len(state.examples)) > 0  # when they were asked
    travels = None if server.share is None else server.share.mask
    claimed = np.isin(admitted.reports.clients, reports.clients[reports.joined])
    history = server.standing.judge(
        state.history, asked, admitted.reports, claimed, server.seed, travels, server.parameters
    )
    state = replace(state, history={**state.history, **history})
    why = server.standing.reasons(history)
    said = [
        f"{WITHOUT}{why[k]}" if without[k] and sent else ""
        for k, sent in zip(admitted.reports.clients, admitted.reports.joined)
    ]
    counted = set_aside(admitted.reports, said)
    lost = [why[k] and f"{WITHOUT}{why[k]}" for k in counted.clients]
    return state, Admitted(counted, admitted.norms, merged(admitted.advice, lost))


def _believed(
    server: Server, state: ServerState, asked: Announcements, reports: Reports
) -> tuple[ServerState, Admitted]:
    """What the gate and the checks behind it let through."""
    gone = np.isin(reports.clients, np.flatnonzero(roster.departed(state))) & reports.joined
    if gone.any():
        reports = refuse(asked, reports, ["has left for good" if out else "" for out in gone])
    if server.gate is None:
        lengths = norms(models(asked, reports.clients) - reports.theta)
        admitted = Admitted(reports, np.where(reports.joined, lengths, np.nan), [""] * len(reports.clients))
    else:
        admitted = server.gate.admit(asked, reports, server.family, server.mechanism.needs, server.metric)
    if server.outliers is not None:
        lengths, shortened, said = server.outliers.shorten(
            state.history, state.examples, asked, admitted.reports, admitted.norms
        )
        state = replace(state, history={**state.history, **lengths})
        admitted = Admitted(shortened, admitted.norms, merged(admitted.advice, said))
    if server.plausibility is None:
        return state, admitted
    history, said = server.plausibility.judge(
        state.history, asked, admitted.reports, state.zeta, server.family, server.metric
    )
    cleaned = admitted.reports
    if server.plausibility.exclude:
        cleaned = refuse(asked, cleaned, [f"implausible: {text}" if text else "" for text in said])
    return replace(state, history={**state.history, **history}), Admitted(
        cleaned, admitted.norms, merged(admitted.advice, said)
    )


def advance(
    server: Server, state: ServerState, reports: Reports, left: Bools | None = None, asked: Ints | None = None
) -> tuple[ServerState, Allocation]:
    """Steps 7 and 8: aggregate and allocate, in the order the schedule says. Returns the weights just solved, too.

    Silos that have left for good, or have been silent for longer than the server's patience, are left out of the program; `left`
    are those whose operators said so. Nothing of a silo that has left is aggregated any more. `asked` is everybody unless it says
    who.
    """
    n = len(state.examples)
    who = reports.clients if isinstance(state.remembered, Rows) else np.arange(n)  # whose updates are looked at
    joined = np.zeros(n, bool)
    joined[reports.clients] = reports.joined
    gone = roster.departed(state, reports, left)
    fitted = np.isfinite(reports.gamma)
    gamma, zeta = state.gamma.copy(), state.zeta.copy()
    gamma[reports.clients[fitted]], zeta[reports.clients[fitted]] = reports.gamma[fitted], reports.zeta[fitted]
    history, told = heard.of_round(state.history, reports, n, lasting=server.decliners != "all")

    delta = _delta(server, state, reports, who, joined[who])

    mechanism = server.mechanism
    absences = roster.absences(state.absences, reports, asked)
    seen = Round(
        round=state.round,
        joined=joined,
        active=roster.active(absences, gone, server.patience),
        gamma=gamma,
        zeta=zeta,
        examples=state.examples,
        train_loss=told.pop(heard.LOSS),
        delta=delta if len(who) == n else lambda: put(zeros(delta, n, len(state.theta)), who, delta),
        previous=state.pending,
        told=told,
        local=_local(server, state.round),
        validation_loss=heard.validation_loss(reports, n, server.decliners == "all"),
    )
    if any(status in (JOINED, DECLINED) for status in reports.status):
        inner, solved = roster.allocate(mechanism, state.mechanism, seen, server.seed)
    else:
        reason = "No silo answered this round, so the weights stay as they were; see why the silos are silent."
        inner, solved = state.mechanism, replace(state.pending, status="unknown", reason=reason, fallback=None)
    # When weights are used (docs/readings.md). Silos that mask their updates weigh them first: with what is known by then.
    used = solved if mechanism.schedule == "fresh" and not server.secure else state.pending
    announced = used if mechanism.schedule == "lagged" else solved

    parameters = len(state.theta) if server.parameters is None else server.parameters
    shift = getattr(mechanism, "shift", None)
    beside = None if shift is None else shift(inner, joined)
    if server.secure:
        sums = secure.gathered(state, reports, used, server.memory.kind, parameters)
        solved, joined = replace(solved, reason=f"{sums.why} {solved.reason}".strip()), sums.counted
        theta, moments = server.aggregation.next(*sums.step, parameters, state.moments, beside)
        formed, remembered, history = sums.formed, state.remembered, {**history, **sums.history}
        recalled = {}
    else:
        sums = None
        fresh, stored = without(gone, *server.memory.weights(used, joined))
        theta, moments, remembered, recalled = _combined(
            server, state, fresh, stored, delta, who, joined, parameters, beside
        )
        # Without a memory the participants' weights were renormalised: those are what went into theta (step 1).
        formed = replace(used, alpha=fresh + stored) if server.memory.kind == "none" else used
    if not finite(theta):
        raise RunError(
            f"round {state.round}: the global model is no longer finite; lower local.lr, set local.clip, or use an offer"
            " that stays closer to the shared model"
        )
    after = ServerState(
        round=state.round + 1,
        theta=theta,
        remembered=remembered,
        last_joined=np.where(joined, state.round, state.last_joined),
        smallest_cohort=min(state.smallest_cohort, int(joined.sum())),
        formed=formed,
        announced=announced,
        pending=solved,
        mechanism=inner,
        gamma=gamma,
        zeta=zeta,
        examples=state.examples,
        absences=absences,
        history=history,
        left=gone if gone.any() else None,
        moments=moments,
        past={} if server.standing is None else kept(state.history, state.past, state.round, state.theta),
        contributed=None if sums is None else sums.contributed,
        recalled=recalled,
    )
    return after, solved


def _delta(server: Server, state: ServerState, reports: Reports, who: Ints, joined: Bools) -> Array:
    """The updates of `who`, 0 where there is none; of silos that mask theirs no number is known."""
    n, theta = len(who), state.theta
    if server.secure:
        return zeros(theta, len(state.examples), 1) * float("nan")
    models = reports.theta if who is reports.clients else put(repeat(theta, n), reports.clients, reports.theta)
    delta = select(joined, repeat(theta, n) - models, zeros(theta, n, len(theta)))
    return server.aggregation.clipped(delta, joined)


def _combined(
    server: Server,
    state: ServerState,
    fresh: Floats,
    stored: Floats,
    delta: Array,
    who: Ints,
    joined: Bools,
    parameters: int,
    shift: Array | None,
) -> tuple[Array, Mapping[str, Array], Array, Mapping[str, Array]]:
    """The next model, the optimiser's state, what is remembered now, and its running sum where that are Rows."""
    memory, aggregation, before, known = server.memory, server.aggregation, state.remembered, state.last_joined > 0
    if not isinstance(before, Rows):
        recalled = memory.recall(before, known, state.theta)
        theta, moments = aggregation.next(
            state.theta, fresh, delta, stored, recalled, joined, parameters, state.moments, shift
        )
        return theta, moments, memory.store(before, joined, state.theta, delta), {}
    each = aggregation.kind != "mean"
    weights, updates, total = standing_in(memory, state.recalled, before, known, stored, state.theta, each=each)
    theta, moments = aggregation.next(
        state.theta, fresh[who], delta, weights, updates, joined[who], parameters, state.moments, shift
    )
    rows = np.flatnonzero(joined[who])
    total = not_summed(total, before, who[rows], state.theta)
    return theta, moments, memory.put(before, who[rows], state.theta, take(delta, rows)), total


def without(gone: Bools, fresh: Floats, stored: Floats) -> tuple[Floats, Floats]:
    """Weights without silos that have left for good: theirs are spread over the others in proportion."""
    if not gone.any():
        return fresh, stored
    total = fresh.sum() + stored.sum()
    fresh, stored = np.where(gone, 0.0, fresh), np.where(gone, 0.0, stored)
    rest = fresh.sum() + stored.sum()
    scale = total / rest if rest > 0 else 0.0
    return fresh * scale, stored * scale


def rounds(
    server: Server,
    theta: Array,
    examples: Ints,
    *,
    evaluate: Evaluate = lambda theta: None,
    on_round: OnRound = lambda record, clients, state: None,
    state: ServerState | None = None,
    census: roster.TakeCensus | None = None,
    store: Store | None = None,
) -> Rounds:
    """The loop. `state` continues an earlier one; `evaluate` scores the new global model after each round.

    Where few of many silos are asked, what is remembered of them lies in `store` (None: in main memory).

    `census` is for federations that silos may join or leave: it is asked before every round.
    """
    state = state or begin(server, theta, examples, store)
    left = None
    while state.round <= server.rounds:
        if census is not None:
            known = census()
            state, left = roster.grow(state, known, server.mechanism, server.seed), known.left
            state = roster.erase(state, known.erased)
        started = time.perf_counter()
        asked = announce(server, state)
        answer = yield asked
        exchanged = time.perf_counter()
        exchange = exchanged - started
        if isinstance(answer, Shared):
            answer, exchange = answer.reports, answer.seconds
        before, admitted = admit(server, state, asked, answer)
        state, solved = advance(server, before, admitted.reports, left, asked.clients)
        allocated = time.perf_counter()
        scores = None if server.share else evaluate(state.theta)  # the server's model alone is nobody's
        done = time.perf_counter()
        seconds = {
            "exchange": exchange,
            "allocate": allocated - exchanged,
            "evaluate": done - allocated,
            "round": exchange + (done - exchanged),
        }
        ended = Finished(server, before, state, solved, admitted, asked.clients)
        on_round(round_record(ended, scores, seconds), client_record(ended), state)
    return state


def play(loop: Rounds, federation: Federation) -> ServerState:
    """Drive a loop with one federation to its end."""
    try:
        asked = next(loop)
        while True:
            asked = loop.send(federation.exchange(asked))
    except StopIteration as stop:
        return stop.value


def steps(
    server: Server,
    theta: Array,
    examples: Ints,
    federation: Federation,
    *,
    evaluate: Evaluate = lambda theta: None,
    state: ServerState | None = None,
    store: Store | None = None,
) -> Iterator[tuple[RoundRecord, ClientRecord, ServerState]]:
    """The loop as a generator for users: one item per finished round."""
    finished: list[tuple[RoundRecord, ClientRecord, ServerState]] = []
    loop = rounds(
        server,
        theta,
        examples,
        evaluate=evaluate,
        on_round=lambda *item: finished.append(item),
        state=state,
        store=store,
    )
    asked = next(loop, None)
    while asked is not None:
        try:
            asked = loop.send(federation.exchange(asked))
        except StopIteration:
            asked = None
        yield from finished
        finished.clear()
