"""The largest set of clients that one weight vector can satisfy, exactly, by sorting.

A client can be satisfied iff `{r in [0, 1] : u_k(r) >= gamma_k} = [lo_k, hi_k]` is not empty, and a set of clients by one
vector iff their `lo` sum to at most 1 and, when nobody else can take the rest, their `hi` to at least 1. Taking clients in
the order of `lo` keeps the most. When everybody fits but all together want less than 1, one client has to take more than it
wants: it is dropped. No mixture of strategies keeps more: by concavity whoever is satisfied by `R` and `s` is satisfied by
the single vector `R^T s`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feduca.program.problem import check_beta, check_curves
from feduca.program.scale import scale
from feduca.program.status import OPTIMAL
from feduca.types import Allocation, Bools, Certificate, Floats, UtilityFamily

ROUNDING = 1e-12  # on sums of weights: when everybody wants a little more, the lower ends sum to 1 to the last bit
ALMOST = 1 - 1e-4  # the rest of the tolerance is for rounding in alpha


def fill(target: Floats, lo: Floats, hi: Floats) -> Floats:
    """The point of `{lo <= x <= hi, sum x = 1}` closest to `target`: `clip(target + shift)` for the right shift.

    The sum grows with the shift and is piecewise linear, so the breakpoints are sorted and the right piece is solved.
    """
    breaks = np.sort(np.concatenate([lo - target, hi - target]))
    left, right = 0, len(breaks) - 1
    while right - left > 1:
        middle = (left + right) // 2
        if np.clip(target + breaks[middle], lo, hi).sum() > 1:
            right = middle
        else:
            left = middle
    below = np.clip(target + breaks[left], lo, hi)
    moving = (lo - target <= breaks[left]) & (breaks[left] < hi - target)
    missing = 1 - below.sum()
    if moving.any():
        below = np.where(moving, np.clip(below + missing / moving.sum(), lo, hi), below)
    return below / below.sum()  # the lower ends may sum to 1 and a rounding error


def largest_set(lo: Floats, hi: Floats) -> Bools:
    """Which clients to keep, given the intervals of weights they accept (NaN: none)."""
    can = ~np.isnan(lo)
    order = np.flatnonzero(can)[np.argsort(lo[can], kind="stable")]
    fits = np.cumsum(lo[order]) <= 1 + ROUNDING
    keep = np.zeros(len(lo), dtype=bool)
    keep[order[fits]] = True
    if keep.all() and hi.sum() < 1 - ROUNDING:
        keep[np.argmin(hi)] = False  # any one will do; who wants least gains least by staying
    return keep


def max_participation(
    zeta: Any,
    gamma: Any,
    *,
    family: str | UtilityFamily = "quadratic",
    beta: Any = None,
    tolerance: float = 1e-6,
) -> Allocation:
    """The weights that satisfy the most clients (`u_k(alpha_k) >= gamma_k - tolerance`, scaled as in scale.py), in O(N log N).

    What is left after everybody kept has enough is spread as close to `beta` as the accepted intervals allow. The
    certificate counts dissatisfied clients: its gap is 0 because the sorting argument is exact.
    """
    chosen, curves, thresholds = check_curves(zeta, gamma, family)
    weights = check_beta(beta, len(curves))
    accuracy = tolerance * scale(chosen, curves, thresholds)
    lo, hi = chosen.interval(curves, thresholds - accuracy * ALMOST)
    keep = largest_set(lo, hi)
    floor, ceiling = np.where(keep, lo, 0.0), np.where(keep, hi, 1.0)
    alpha = fill(weights, floor, ceiling)
    surplus = chosen.value(curves, alpha) - thresholds
    satisfied = surplus >= -accuracy
    missed = float(len(alpha) - satisfied.sum())
    out = np.flatnonzero(~satisfied)
    reason = (
        ""
        if len(out) == 0
        else f"{len(out)} of {len(alpha)} clients cannot be satisfied together with the others (the first is client "
        f"{out[0]}, who accepts weights {_accepted(float(lo[out[0]]), float(hi[out[0]]))}); no weights satisfy more"
    )
    return Allocation(
        alpha=alpha,
        status=OPTIMAL,
        reason=reason,
        R=alpha[None, :],
        s=np.ones(1),
        slack=np.maximum(-surplus, 0.0),
        satisfied=satisfied,
        certificate=Certificate(primal=missed, dual=missed, gap=0.0, slack_error=0.0, iterations=0),
    )


def _accepted(lo: float, hi: float) -> str:
    return "of no size" if np.isnan(lo) else f"from {lo:.4g} to {hi:.4g}"
