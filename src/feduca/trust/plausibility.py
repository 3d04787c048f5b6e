"""Does a silo's reported curve fit what it then experiences? Advice for the operator, not a proof of bad faith.

Two questions per client and round, from what the server has anyway:

- *Demand.* A truthful threshold is the curve's own value at the weight the client had, or at 1. One above it by
  more than `demand` asks for more than the client's own curve gives.
- *Curve.* The curve promised `u_k(alpha)`; a round later the client measures the model formed with that weight. The error of that
  promise, averaged over about `window` rounds, is compared with the other clients': far from their median (more than `tolerance`
  and `spread` times their median deviation) means the curve does not describe this client's data.

Both rest on numbers that silos report themselves; a silo that lies consistently about all of them passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feduca.types import Announcements, Array, Bools, Floats, Reports, UtilityFamily


@dataclass(frozen=True)
class Plausibility:
    tolerance: float = 0.05  # of a curve's mean error: utility, on the metric's own scale
    demand: float = 0.01  # of a threshold, likewise; rounding and noise in honest reports must fit into it
    threshold: str = "previous-weight"  # or "local-baseline": what thresholds are meant to be; "outside": anything
    spread: float = 6.0  # median absolute deviations
    window: int = 10  # rounds an average rests on; before half of them have been seen nothing is said about curves
    exclude: bool = False  # refuse what is implausible instead of only saying so

    def judge(
        self,
        history: Mapping[str, Array],
        asked: Announcements,
        reports: Reports,
        zeta: Floats,
        family: UtilityFamily,
        metric: str,
    ) -> tuple[dict[str, Floats], list[str]]:
        """The new history and one sentence per report, "" where all is well. `zeta[N]` are the curves known so far."""
        n, clients = len(zeta), reports.clients
        error = np.array(history.get("error", np.zeros(n)))
        count = np.array(history.get("count", np.zeros(n)))
        formed = np.zeros(n)
        formed[asked.clients] = asked.alpha_formed

        realised = np.full(n, np.nan)
        realised[clients] = reports.measurements.global_.metric(metric)
        seen = realised - family.value(zeta, formed)  # NaN where there was no curve or no measurement
        new = np.isfinite(seen)
        count = count + new
        rate = 1 / np.clip(count, 1, self.window)  # a plain mean at first, then an exponential one
        error = np.where(new, error + rate * (np.where(new, seen, 0.0) - error), error)
        stray = self._stray(error, count >= max(2, self.window / 2))

        at_weight = formed[clients] if self.threshold == "previous-weight" else np.ones(len(clients))
        excess = reports.gamma - family.value(reports.zeta, at_weight)
        if self.threshold == "outside":  # a model that no curve knows
            excess = np.full(len(clients), -np.inf)
        said = []
        for row, k in enumerate(clients):
            if excess[row] > self.demand:
                said.append(f"asks for {reports.gamma[row]:.4f}, {excess[row]:.4f} more than its own curve gives")
            elif stray[k]:
                said.append(f"its curve is off by {error[k]:+.4f} on average, unlike the other silos'")
            else:
                said.append("")
        return {"error": error, "count": count}, said

    def _stray(self, error: Floats, ready: Bools) -> Bools:
        if ready.sum() < 3:  # nobody to compare with
            return np.zeros(len(error), bool)
        middle = np.median(error[ready])
        deviation = np.median(np.abs(error[ready] - middle))
        return ready & (np.abs(error - middle) > max(self.tolerance, self.spread * deviation))


def merged(advice: Sequence[str], more: Sequence[str]) -> list[str]:
    """Two columns of advice as one."""
    return ["; ".join(text for text in pair if text) for pair in zip(advice, more)]
