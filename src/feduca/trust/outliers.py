"""No silo's update is far longer than updates are here: one silo, by mistake or on purpose, cannot destroy the model.

What silo k of n_k examples is measured by, from what the server has anyway:

    usual_j   the middle of silo j's last `window` updates
    level_j   the longer of usual_j and of what it sent this round
    right_k   the upper quartile, over the other silos j, of level_j times n_k / n_j where k has more examples (more of them
              are more steps), at most `MORE` times

An update longer than `factor` right_k is shortened to right_k, in its own direction, and counts as that from then on; the
record's advice says so. Long or short ones of a few others do not move an upper quartile much: with three silos a tiny one
binds nobody, and with ten two that conspire do not vouch for each other. An update that is as much longer than its own silo's
usual alone is pointed out, no more: a silo that comes back after rounds of its own has come far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from feduca.core.arrays import like, select
from feduca.core.messages import models
from feduca.types import Announcements, Array, Bools, Floats, Ints, Reports

MORE = 30.0  # how many examples it has, a silo says itself


@dataclass(frozen=True)
class Outliers:
    factor: float = 5.0
    window: int = 5  # updates

    def shorten(
        self, history: Mapping[str, Array], examples: Ints, asked: Announcements, reports: Reports, lengths: Floats
    ) -> tuple[dict[str, Floats], Reports, list[str]]:
        """The new history, the reports, and one sentence per report, "" where all is well; `lengths` are the updates' [K]."""
        n, clients = len(examples), reports.clients
        past = np.array(history.get("lengths", np.zeros((n, self.window))))  # 0: none yet
        usual = np.array(history["usual"]) if "usual" in history else middles(past)
        now = np.zeros(n)
        now[clients] = np.where(reports.joined, lengths, 0.0)
        level = np.maximum(usual, now)
        right = self.right(level, np.maximum(np.asarray(examples, float), 1.0), now > self.factor * _least(level))
        taken = np.where(now > self.factor * right, right, now)
        sent = now > 0
        told = [self._said(float(now[k]), float(usual[k]), float(taken[k])) for k in clients]
        scale = (taken / np.where(sent, now, 1.0))[clients]
        long = sent[clients] & (scale < 1)
        if long.any():
            shared = models(asked, clients)
            shorter = shared - like(reports.theta, scale)[:, None] * (shared - reports.theta)
            reports = replace(reports, theta=select(long, shorter, reports.theta))
        past[sent] = np.column_stack([past[sent, 1:], taken[sent]])
        usual[sent] = middles(past[sent])
        return {"lengths": past, "usual": usual}, reports, told

    def right(self, level: Floats, counts: Floats, who: Bools) -> Floats:
        """How long an update of each of `who` may be called usual; infinite where there is nobody to compare with."""
        right = np.full(len(level), np.inf)
        for k in np.flatnonzero(who):
            known = level > 0
            known[k] = False
            others = np.sort(level[known] * np.clip(counts[k] / counts[known], 1.0, MORE))
            if len(others):
                right[k] = others[3 * len(others) // 4]
        return right

    def _said(self, length: float, usual: float, taken: float) -> str:
        text = f"its update is {length / usual:.3g} times as long as its own usual" if usual else ""
        if taken == length:
            return text if 0 < self.factor * usual < length else ""
        text = text or f"its update is {length / taken:.3g} times as long as the others'"
        return f"{text}; it was shortened to {taken:.3g}, as long as the others' (gate.outlier)"


def middles(past: Floats) -> Floats:
    """The middle of each row's updates, as `aggregation.middle` has it; 0 where there are none."""
    count, each = (past > 0).sum(1), np.arange(len(past))
    ordered = np.sort(np.where(past > 0, past, np.inf), 1)
    low, high = ordered[each, np.maximum(count - 1, 0) // 2], ordered[each, np.minimum(count // 2, past.shape[1] - 1)]
    return np.where(count == 0, 0.0, np.where(count == 2, low, (low + high) / 2))


def _least(level: Floats) -> float:
    """What nobody's right length is below: the upper quartile of all levels as they are. It goes without a look at each silo.

    Without silo k, and each of the others times 1 or more, the quartile is no smaller.
    """
    known = level[level > 0]
    place = 3 * max(len(known) - 1, 0) // 4
    return float(np.partition(known, place)[place]) if len(known) > 1 else 0.0
