"""The one round loop (SPEC section 1), as a coroutine.

    reports = yield announcements

Whoever drives it decides where the reports come from: a federation in this process, silos on other machines, a recording,
or many federations in lockstep. Nothing here knows which, and there is no other loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feduca import roster, theory
from feduca.aggregation import Weighted, norms, target
from feduca.arrays import finite, put, repeat, select, zeros
from feduca.errors import RunError
from feduca.gate import Admitted, Gate, refuse
from feduca.memory import Memory
from feduca.plausibility import Plausibility, merged
from feduca.records import ClientRecord, RoundRecord, mean
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
from feduca.weights import checked


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
    plausibility: Plausibility | None = None
    patience: int = 0  # silent rounds after which a silo is left out of the program; 0 = never


@dataclass(frozen=True)
class Shared:
    """Reports from an exchange that several runs had at once, with this run's share of the time it took."""

    reports: Reports
    seconds: float


Rounds = Generator[Announcements, Reports | Shared, ServerState]
OnRound = Callable[[RoundRecord, ClientRecord, ServerState], None]
Evaluate = Callable[[Array], Scores | None]


def begin(server: Server, theta: Array, examples: Ints) -> ServerState:
    """The state before round 1. The initial weights are announced, though nobody has gone into theta yet."""
    n = len(examples)
    state, first = checked(server.mechanism, server.mechanism.init(examples, server.seed), n, round=0)
    return ServerState(
        round=1,
        theta=theta,
        remembered=zeros(theta, n, len(theta)),
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
    spec = server.mechanism.local(server.local)
    n = len(state.examples)
    s = state.announced.s
    return Announcements(
        run=server.run,
        round=state.round,
        clients=np.arange(n),
        theta=state.theta,
        alpha_formed=state.formed.alpha,
        alpha_announced=state.announced.alpha,
        s=np.ones(1) if s is None else s,
        local=replace(spec, lr=spec.lr * server.lr_decay ** (state.round - 1)),
    )


def admit(server: Server, state: ServerState, asked: Announcements, reports: Reports) -> tuple[ServerState, Admitted]:
    """The gate between the exchange and everything else; returns the state with what it learnt about plausibility.

    Whoever has left for good cannot join again.
    """
    gone = roster.departed(state)[reports.clients] & reports.joined
    if gone.any():
        reports = refuse(asked, reports, ["has left for good" if out else "" for out in gone])
    if server.gate is None:
        lengths = norms(repeat(asked.theta, len(reports.clients)) - reports.theta)
        admitted = Admitted(reports, np.where(reports.joined, lengths, np.nan), [""] * len(reports.clients))
    else:
        admitted = server.gate.admit(asked, reports, server.family, server.mechanism.needs, server.metric)
    if server.plausibility is None:
        return state, admitted
    history, said = server.plausibility.judge(
        state.history, asked, admitted.reports, state.zeta, server.family, server.metric
    )
    cleaned = admitted.reports
    if server.plausibility.exclude:
        cleaned = refuse(asked, cleaned, [f"implausible: {text}" if text else "" for text in said])
    return replace(state, history=history), Admitted(cleaned, admitted.norms, merged(admitted.advice, said))


def advance(
    server: Server, state: ServerState, reports: Reports, left: Bools | None = None
) -> tuple[ServerState, Allocation]:
    """Steps 7 and 8: aggregate and allocate, in the order the schedule says. Returns the weights just solved, too.

    Silos that have left for good, or have been silent for longer than the server's patience, are left out of the program; `left`
    are those whose operators said so. Nothing of a silo that has left is aggregated any more.
    """
    n = len(state.examples)
    joined = np.zeros(n, bool)
    joined[reports.clients] = reports.joined
    gone = roster.departed(state, reports, left)
    heard = np.isfinite(reports.gamma)
    gamma, zeta = state.gamma.copy(), state.zeta.copy()
    gamma[reports.clients[heard]], zeta[reports.clients[heard]] = reports.gamma[heard], reports.zeta[heard]
    train_loss = np.full(n, np.nan)
    train_loss[reports.clients] = reports.measurements.train_loss
    told = {name: np.full(n, np.nan) for name in reports.measurements.told}
    for name, values in reports.measurements.told.items():
        told[name][reports.clients] = values

    models = put(repeat(state.theta, n), reports.clients, reports.theta)
    delta = select(joined, repeat(state.theta, n) - models, zeros(state.theta, n, len(state.theta)))
    delta = server.aggregation.clipped(delta, joined)

    mechanism = server.mechanism
    absences = roster.absences(state.absences, reports)
    seen = Round(
        round=state.round,
        joined=joined,
        active=roster.active(absences, gone, server.patience),
        gamma=gamma,
        zeta=zeta,
        examples=state.examples,
        train_loss=train_loss,
        delta=delta,
        previous=state.pending,
        told=told,
    )
    if any(status in (JOINED, DECLINED) for status in reports.status):
        inner, solved = roster.allocate(mechanism, state.mechanism, seen, server.seed)
    else:
        reason = "No silo answered this round, so the weights stay as they were; see why the silos are silent."
        inner, solved = state.mechanism, replace(state.pending, status="unknown", reason=reason, fallback=None)
    used = solved if mechanism.schedule == "fresh" else state.pending  # reading 2
    announced = used if mechanism.schedule == "lagged" else solved

    fresh, stored = without(gone, *server.memory.weights(used, joined))
    recalled = server.memory.recall(state.remembered, state.last_joined > 0, state.theta)
    parameters = len(state.theta) if server.parameters is None else server.parameters
    theta = server.aggregation.next(state.theta, fresh, delta, stored, recalled, joined, parameters)
    if not finite(theta):
        raise RunError(
            f"round {state.round}: the global model is no longer finite; lower local.lr, set local.clip, or use an offer"
            " that stays closer to the shared model"
        )
    after = ServerState(
        round=state.round + 1,
        theta=theta,
        remembered=server.memory.store(state.remembered, joined, state.theta, delta),
        last_joined=np.where(joined, state.round, state.last_joined),
        smallest_cohort=min(state.smallest_cohort, int(joined.sum())),
        # Without a memory the participants' weights were renormalised: those are what went into theta (step 1).
        formed=replace(used, alpha=fresh + stored) if server.memory.kind == "none" else used,
        announced=announced,
        pending=solved,
        mechanism=inner,
        gamma=gamma,
        zeta=zeta,
        examples=state.examples,
        absences=absences,
        history=state.history,
        left=gone if gone.any() else None,
    )
    return after, solved


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
) -> Rounds:
    """The loop. `state` continues an earlier one; `evaluate` scores the new global model after each round.

    `census` is for federations that silos may join or leave: it is asked before every round.
    """
    state = state or begin(server, theta, examples)
    left = None
    while state.round <= server.rounds:
        if census is not None:
            known = census()
            state, left = roster.grow(state, known, server.mechanism, server.seed), known.left
        started = time.perf_counter()
        asked = announce(server, state)
        answer = yield asked
        exchanged = time.perf_counter()
        exchange = exchanged - started
        if isinstance(answer, Shared):
            answer, exchange = answer.reports, answer.seconds
        before, admitted = admit(server, state, asked, answer)
        state, solved = advance(server, before, admitted.reports, left)
        allocated = time.perf_counter()
        scores = evaluate(state.theta)
        done = time.perf_counter()
        seconds = {
            "exchange": exchange,
            "allocate": allocated - exchanged,
            "evaluate": done - allocated,
            "round": exchange + (done - exchanged),
        }
        on_round(*_record(server, before, state, solved, admitted, scores, seconds), state)
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
) -> Iterator[tuple[RoundRecord, ClientRecord, ServerState]]:
    """The loop as a generator for users: one item per finished round."""
    finished: list[tuple[RoundRecord, ClientRecord, ServerState]] = []
    loop = rounds(server, theta, examples, evaluate=evaluate, on_round=lambda *item: finished.append(item), state=state)
    asked = next(loop, None)
    while asked is not None:
        try:
            asked = loop.send(federation.exchange(asked))
        except StopIteration:
            asked = None
        yield from finished
        finished.clear()


# ---------------------------------------------------------------------------------------------------------------------


def _record(
    server: Server,
    before: ServerState,
    after: ServerState,
    solved: Allocation,
    admitted: Admitted,
    scores: Scores | None,
    seconds: dict[str, float],
) -> tuple[RoundRecord, ClientRecord]:
    n = len(before.examples)
    reports = admitted.reports
    seen = reports.measurements
    joined = np.zeros(n, bool)
    joined[reports.clients] = reports.joined
    used = after.formed
    alpha = used.alpha if used.applied is None else used.applied
    beta = target(before.examples, getattr(server.mechanism, "beta", "uniform"))
    n_s = 1 if used.s is None else len(used.s)
    expected = pointwise = None
    if used.s is not None and used.R is not None and n_s > 1:
        # The lemmas hold where the column constraint does and the expectation is what is aggregated: nowhere else.
        columns = np.allclose(used.R.sum(0), n_s * beta, atol=1e-6)
        if columns and np.allclose(alpha, used.s @ used.R, atol=1e-9):
            delta = getattr(server.mechanism, "delta", np.inf)
            expected, pointwise = theory.discrepancy_bounds(n_s, n, delta, used.s, beta)
    gaps = None
    known = np.isfinite(after.zeta).all(1)
    if solved.R is not None and solved.s is not None and known.any():
        gaps = theory.jensen_gaps(server.family, after.zeta[known], solved.R[:, known], solved.s)
    kept = seen.global_.metric(server.metric) - seen.promised
    staleness = np.where(after.last_joined > 0, before.round - after.last_joined, before.round)
    down, up = _bytes(reports, len(before.theta), n_s, server.family.size)

    def spread(values: Floats | Sequence) -> Floats:
        full = np.full(n, np.nan)
        full[reports.clients] = values
        return full

    record = RoundRecord(
        round=before.round,
        accuracy=None if scores is None else float(scores.accuracy[0]),
        loss=None if scores is None else float(scores.loss[0]),
        participation=float(joined.mean()),
        joined=int(joined.sum()),
        satisfied=None if solved.satisfied is None else int(solved.satisfied.sum()),
        status=solved.status,
        reason=solved.reason,
        fallback=solved.fallback,
        slack=None if solved.slack is None else float(solved.slack.sum()),
        gap=solved.gap,
        jensen=None if gaps is None else float(gaps.sum()),
        discrepancy=float(theory.discrepancy(alpha, beta)),
        discrepancy_bound=pointwise,
        discrepancy_bound_expected=expected,
        r2=mean(seen.r2),
        smallest_cohort=after.smallest_cohort,
        largest_staleness=int(staleness.max()),
        concession=mean(seen.concession[reports.joined]),
        promise_kept=mean(kept),
        s=None if solved.s is None else solved.s.tolist(),
        bytes_down=down,
        bytes_up=up,
        seconds=seconds,
        members=n - int(roster.departed(after).sum()),
    )
    status, reason = ["absent"] * n, ["no answer"] * n
    for k, word, why in zip(reports.clients, reports.status, reports.reason):
        status[k], reason[k] = word, why
    advice = [""] * n
    for k, text in zip(reports.clients, admitted.advice):
        advice[k] = text
    test = {name: spread(values) for name, values in seen.test.items()}
    clients = ClientRecord(
        round=before.round,
        status=status,
        reason=reason,
        alpha=alpha,
        announced=after.announced.alpha,
        slack=solved.slack,
        satisfied=solved.satisfied,
        zeta=after.zeta,
        gamma=after.gamma,
        eq1=np.isin(np.arange(n), reports.clients[seen.eq1]),
        eq2=spread(seen.eq2),
        global_accuracy=spread(seen.global_.accuracy),
        own_accuracy=spread(seen.own.accuracy),
        offered_accuracy=spread(seen.offered.accuracy),
        concession=spread(seen.concession),
        evaluations=spread(seen.evaluations),
        promised=spread(seen.promised),
        promise_kept=spread(kept),
        r2=spread(seen.r2),
        capped=np.isin(np.arange(n), reports.clients[seen.capped]),
        staleness=staleness,
        update_norm=spread(admitted.norms),
        test_deployed=test.get("deployed"),
        test_own=test.get("own"),
        test_global=test.get("global"),
        test_alone=test.get("alone"),
        advice=advice if any(advice) else None,
        utility_points=_points(seen.points, reports.clients, n),
    )
    return record, clients


def _points(points: Mapping[str, Floats], clients: Ints, n: int) -> dict[str, Floats] | None:
    """The measured utilities behind the fits (and losses, where kept); all silos measure at the same places."""
    if not points:
        return None
    heard = np.flatnonzero(np.isfinite(points["places"]).all(1))
    if not len(heard):
        return None
    kept = {"places": points["places"][heard[0]]}
    for name in points.keys() - {"places"}:
        kept[name] = np.full((n, points[name].shape[1]), np.nan)
        kept[name][clients] = points[name]
    return kept


def _bytes(reports: Reports, size: int, n_s: int, curve: int) -> tuple[int, int]:
    """What one message per silo and round carries: float32 models, float64 for the rest."""
    k = len(reports.clients)
    model = 4 * size
    down = k * (model + 8 * (2 + n_s))
    curves = int(np.isfinite(reports.gamma).sum())
    seen = reports.measurements
    scalars = sum(int(np.isfinite(values).sum()) for values in (seen.train_loss, *seen.told.values()))
    return down, int(reports.joined.sum()) * model + curves * 8 * (1 + curve) + 8 * scalars
