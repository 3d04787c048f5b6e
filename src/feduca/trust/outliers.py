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

from feduca.core.aggregation import middle
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
        usual = np.zeros(n)
        for k in np.flatnonzero((past > 0).any(1)):  # of thousands of silos few may ever have been asked
            usual[k] = middle(past[k][past[k] > 0])
        now = np.zeros(n)
        now[clients] = np.where(reports.joined, lengths, 0.0)
        right = self.right(np.maximum(usual, now), np.maximum(np.asarray(examples, float), 1.0), now > 0)
        taken = np.where(now > self.factor * right, right, now)
        sent = now > 0
        past[sent] = np.column_stack([past[sent, 1:], taken[sent]])
        told = [self._said(float(now[k]), float(usual[k]), float(taken[k])) for k in clients]
        scale = (taken / np.where(sent, now, 1.0))[clients]
        long = sent[clients] & (scale < 1)
        if long.any():
            shared = models(asked, clients)
            shorter = shared - like(reports.theta, scale)[:, None] * (shared - reports.theta)
            reports = replace(reports, theta=select(long, shorter, reports.theta))
        return {"lengths": past}, reports, told

    def right(self, level: Floats, counts: Floats, sent: Bools) -> Floats:
        """How long an update of each silo may be called usual; infinite where there is nobody to compare with."""
        right = np.full(len(level), np.inf)
        for k in np.flatnonzero(sent):
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
