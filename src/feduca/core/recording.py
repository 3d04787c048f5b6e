"""What a finished round leaves in the record: the federation's line and its clients' columns (both described in records.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from feduca.core import roster, theory
from feduca.core.aggregation import target
from feduca.core.records import ClientRecord, RoundRecord, mean
from feduca.trust.gate import Admitted
from feduca.types import NOT_ASKED, Allocation, Bools, Floats, Ints, Reports, Scores, ServerState

if TYPE_CHECKING:
    from feduca.core.rounds import Server


@dataclass(frozen=True)
class Finished:
    """A round that is over: the state before and after, the weights just solved, and the reports as admitted."""

    server: Server
    before: ServerState
    after: ServerState
    solved: Allocation
    admitted: Admitted
    asked: Ints | None = None  # who was; None: everybody

    @property
    def reports(self) -> Reports:
        return self.admitted.reports

    @property
    def silos(self) -> int:
        return len(self.before.examples)

    @property
    def weights(self) -> Floats:
        """What formed the new model."""
        used = self.after.formed
        return used.alpha if used.applied is None else used.applied

    @cached_property
    def kept(self) -> Floats:
        """Realised minus promised utility, of those who answered."""
        seen = self.reports.measurements
        return seen.global_.metric(self.server.metric) - seen.promised

    @cached_property
    def staleness(self) -> Ints:
        """Rounds since the update in use was made."""
        joined = self.after.last_joined
        return np.where(joined > 0, self.before.round - joined, self.before.round)

    def spread(self, values: Floats | Sequence) -> Floats:
        """Columns of those who answered as columns of all silos."""
        full = np.full(self.silos, np.nan)
        full[self.reports.clients] = values
        return full

    def mask(self, chosen: Bools) -> Bools:
        """The same for a mask; False where nobody answered."""
        full = np.zeros(self.silos, bool)
        full[self.reports.clients[chosen]] = True
        return full

    def words(self, values: Sequence[str], otherwise: str, unasked: str = "") -> list[str]:
        """The same for words; whoever was asked and has none has another than whoever was not."""
        full = [otherwise] * self.silos
        if self.few is not None:
            full = [unasked] * self.silos
            for k in self.few.tolist():
                full[k] = otherwise
        for k, word in zip(self.reports.clients.tolist(), values):
            full[k] = word
        return full

    @property
    def few(self) -> Ints | None:
        """Who was asked, where that was not everybody."""
        return None if self.asked is None or len(self.asked) == self.silos else self.asked


def round_record(done: Finished, scores: Scores | None, seconds: Mapping[str, float]) -> RoundRecord:
    """The federation's line: `scores` of the new model, `seconds` the round took."""
    reports, solved, used = done.reports, done.solved, done.after.formed
    joined = reports.joined
    beta = target(done.before.examples, getattr(done.server.mechanism, "beta", "uniform"))
    expected, pointwise = _bounds(done, beta)
    n_s = 1 if used.s is None else len(used.s)
    down, up = _bytes(done, n_s)
    return RoundRecord(
        round=done.before.round,
        accuracy=None if scores is None else float(scores.accuracy[0]),
        loss=None if scores is None else float(scores.loss[0]),
        participation=float(int(joined.sum()) / (done.silos if done.asked is None else len(done.asked))),
        joined=int(joined.sum()),
        satisfied=None if solved.satisfied is None else int(solved.satisfied.sum()),
        status=solved.status,
        reason=solved.reason,
        fallback=solved.fallback,
        slack=None if solved.slack is None else float(solved.slack.sum()),
        gap=solved.gap,
        jensen=_jensen(done),
        discrepancy=float(theory.discrepancy(done.weights, beta)),
        discrepancy_bound=pointwise,
        discrepancy_bound_expected=expected,
        r2=mean(reports.measurements.r2),
        smallest_cohort=done.after.smallest_cohort,
        largest_staleness=int(done.staleness.max()),
        concession=mean(reports.measurements.concession[joined]),
        promise_kept=mean(done.kept),
        s=None if solved.s is None else solved.s.tolist(),
        bytes_down=down,
        bytes_up=up,
        seconds=seconds,
        members=done.silos - int(roster.departed(done.after).sum()),
        asked=None if done.server.cohort is None or done.asked is None else len(done.asked),
    )


def client_record(done: Finished) -> ClientRecord:
    """The clients' columns, in the server's order."""
    after, reports = done.after, done.reports
    seen = reports.measurements
    advice = done.words(done.admitted.advice, "")
    test = {name: done.spread(values) for name, values in seen.test.items()}
    return ClientRecord(
        round=done.before.round,
        status=done.words(reports.status, "absent", NOT_ASKED),
        reason=done.words(reports.reason, "no answer"),
        alpha=done.weights,
        announced=after.announced.alpha,
        slack=done.solved.slack,
        satisfied=done.solved.satisfied,
        zeta=after.zeta,
        gamma=after.gamma,
        eq1=done.mask(seen.eq1),
        eq2=done.spread(seen.eq2),
        global_accuracy=done.spread(seen.global_.accuracy),
        own_accuracy=done.spread(seen.own.accuracy),
        offered_accuracy=done.spread(seen.offered.accuracy),
        concession=done.spread(seen.concession),
        evaluations=done.spread(seen.evaluations),
        promised=done.spread(seen.promised),
        promise_kept=done.spread(done.kept),
        r2=done.spread(seen.r2),
        capped=done.mask(seen.capped),
        staleness=done.staleness,
        update_norm=done.spread(done.admitted.norms),
        test_deployed=test.get("deployed"),
        test_own=test.get("own"),
        test_global=test.get("global"),
        test_alone=test.get("alone"),
        paired={name.removeprefix("paired_"): test[name] for name in test if name.startswith("paired_")} or None,
        advice=advice if any(advice) else None,
        utility_points=_points(seen.points, reports.clients, done.silos),
        standing=None if done.server.standing is None else done.server.standing.standing(done.after.history),
        noted={name: done.spread(values) for name, values in seen.noted.items()} or None,
        asked=done.few,
    )


def _bounds(done: Finished, beta: Floats) -> tuple[float | None, float | None]:
    """The lemmas' bounds on the discrepancy, in expectation over s and given s.

    They hold where the column constraint does and the expectation is what is aggregated: nowhere else.
    """
    used = done.after.formed
    if used.s is None or used.R is None or len(used.s) < 2:
        return None, None
    columns = np.allclose(used.R.sum(0), len(used.s) * beta, atol=1e-6)
    if not (columns and np.allclose(done.weights, used.s @ used.R, atol=1e-9)):
        return None, None
    delta = getattr(done.server.mechanism, "delta", np.inf)
    return theory.discrepancy_bounds(len(used.s), done.silos, delta, used.s, beta)


def _jensen(done: Finished) -> float | None:
    """The sum of Jensen gaps under the weights just solved, over the silos whose curves are known."""
    solved, zeta = done.solved, done.after.zeta
    known = np.isfinite(zeta).all(1)
    if solved.R is None or solved.s is None or not known.any():
        return None
    return float(theory.jensen_gaps(done.server.family, zeta[known], solved.R[:, known], solved.s).sum())


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


def _bytes(done: Finished, n_s: int) -> tuple[int, int]:
    """What one message per silo and round carries: float32 models, float64 for the rest."""
    reports, share, curve = done.reports, done.server.share, done.server.family.size
    size = len(done.before.theta)
    beside = getattr(done.server.mechanism, "control", None)
    vectors = 1 if beside is None or beside(done.before.mechanism) is None else 2
    down = len(reports.clients) * (4 * size * vectors + 8 * (2 + n_s))
    model = 4 * (size if share is None else int(share.mask.sum()))
    curves = int(np.isfinite(reports.gamma).sum())
    seen = reports.measurements
    scalars = sum(int(np.isfinite(values).sum()) for values in (seen.train_loss, *seen.told.values()))
    return down, int(reports.joined.sum()) * model + curves * 8 * (1 + curve) + 8 * scalars
