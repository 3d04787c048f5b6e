"""What to do when the program satisfies nobody (paper, "Fallback Mechanism", made coherent).

As printed, the drawn client gets the same weight in every strategy. Together with the column sums that forces the weight to
be beta_k, so the printed fallback cannot prioritise anybody without breaking a constraint of the program. In order:

    tilt    keep the column sums; move the drawn client's column towards the most (or least) probable strategies until it
            is satisfied, everybody else sharing what is left in proportion to beta
    relax   drop the column sums for this round and satisfy as many clients as possible
    keep    nobody can be satisfied by any weight: keep the previous weights
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from feduca.errors import InputError
from feduca.program.maximum import ALMOST, max_participation
from feduca.program.problem import check_beta, check_choice, check_curves
from feduca.program.scale import scale
from feduca.program.status import FALLBACK
from feduca.types import Allocation, Floats, UtilityFamily

KINDS = ("coherent", "printed", "literal")


def _extreme_column(s: Floats, total: float, *, most: bool) -> Floats:
    """The column with entries in [0, 1] and the given sum whose mean under `s` is largest (or smallest)."""
    order = np.argsort(-s if most else s, kind="stable")
    column = np.zeros(len(s))
    column[order] = np.clip(total - np.arange(len(s)), 0.0, 1.0)
    return column


def _around(column: Floats, k: int, beta: Floats) -> Floats:
    """`R` with that column for client `k`, the others sharing the rest of each row in proportion to beta.

    Row sums are 1 for any column; column sums are `n_s beta` exactly when this column's is.
    """
    rest = beta.copy()
    rest[k] = 0.0
    rest = rest / rest.sum() if len(beta) > 1 else rest
    R = np.outer(1 - column, rest)
    R[:, k] = column
    return R


def _judge(
    alpha: Floats, family: UtilityFamily, zeta: Floats, gamma: Floats, tolerance: Floats
) -> tuple[Floats, np.ndarray]:
    surplus = family.value(zeta, alpha) - gamma
    return np.maximum(-surplus, 0.0), surplus >= -tolerance


def _highest(family: UtilityFamily, curve: Floats) -> float:
    """The weight at which one concave curve is highest."""
    from scipy.optimize import minimize_scalar

    def value(r: float) -> float:
        return float(family.value(curve[None], np.array([r]))[0])

    found: Any = minimize_scalar(lambda r: -value(r), bounds=(0, 1), method="bounded", options={"xatol": 1e-9})
    return max((0.0, float(found.x), 1.0), key=value)


def fall_back(
    allocation: Allocation,
    zeta: Any,
    gamma: Any,
    *,
    family: str | UtilityFamily = "quadratic",
    previous: Allocation,
    rng: np.random.Generator,
    kind: str = "coherent",
    beta: Any = None,
    tolerance: float = 1e-6,
) -> Allocation:
    """`allocation` itself if it satisfies somebody; otherwise the fallback, tagged and with its reason.

    `kind="printed"` sets `r_k^i = r_k` for all strategies `i`, as the paper prints it. That contradicts the column sums
    (they would force `r_k = beta_k`), so it gives them up; it is here to compare with. The client is drawn uniformly from
    those whom the step at hand can satisfy; draws come from `rng`, one per call at most. `kind="literal"` is the same with
    the client drawn from all, to the letter; one whom no weight satisfies gets the weight at which its curve is highest.
    """
    check_choice("fallback", kind, KINDS)
    chosen, curves, thresholds = check_curves(zeta, gamma, family)
    if allocation.s is None:
        raise InputError("fall_back needs an allocation of the program, and this one has no strategies s")
    if len(allocation.alpha) != len(curves):
        raise InputError(
            f"the allocation has {len(allocation.alpha)} clients and zeta {len(curves)}; pass the same ones"
        )
    weights = check_beta(beta, len(curves))
    accuracy = tolerance * scale(chosen, curves, thresholds)
    satisfied = _judge(allocation.alpha, chosen, curves, thresholds, accuracy)[1]
    if satisfied.any():
        return replace(allocation, satisfied=satisfied)
    s = allocation.s
    lo, hi = chosen.interval(curves, thresholds - accuracy * ALMOST)
    can = ~np.isnan(lo)

    def result(R: Floats, tag: str, reason: str) -> Allocation:
        alpha = s @ R
        slack, happy = _judge(alpha, chosen, curves, thresholds, accuracy)
        return Allocation(alpha, FALLBACK, reason, R=R, s=s, slack=slack, satisfied=happy, fallback=tag)

    if kind == "literal":
        k = int(rng.integers(len(curves)))
        best = _highest(chosen, curves[k])
        r_k = float(np.clip(weights[k], lo[k], hi[k])) if can[k] else best
        short = "" if can[k] else ", which does not satisfy it, its curve's best"
        reason = f"The program satisfied nobody; client {k} of all was drawn and gets weight {r_k:.4g}{short}."
        return result(_around(np.full(len(s), r_k), k, weights), "literal", reason)
    if not can.any():
        slack, happy = _judge(previous.alpha, chosen, curves, thresholds, accuracy)
        return replace(
            previous,
            status=FALLBACK,
            reason="No weight between 0 and 1 satisfies any client, so the previous weights are kept; thresholds are "
            "above what the curves can give.",
            slack=slack,
            satisfied=happy,
            certificate=None,
            fallback="keep",
        )
    if kind == "printed":
        k = int(rng.choice(np.flatnonzero(can)))
        r_k = float(np.clip(weights[k], lo[k], hi[k]))
        reason = f"The program satisfied nobody; client {k} was drawn and gets weight {r_k:.4g} in every strategy."
        return result(_around(np.full(len(s), r_k), k, weights), "printed", reason)

    if len(s) > 1:
        total = len(s) * weights
        least = np.array([s @ _extreme_column(s, c, most=False) for c in total])
        most = np.array([s @ _extreme_column(s, c, most=True) for c in total])
        low, high = np.fmax(lo, least), np.fmin(hi, most)
        tiltable = np.flatnonzero(can & (low <= high))
        if len(tiltable):
            k = int(rng.choice(tiltable))
            target = float(np.clip(weights[k], low[k], high[k]))
            extreme = _extreme_column(s, total[k], most=target >= weights[k])
            reach = float(s @ extreme) - weights[k]
            step = 0.0 if reach == 0 else min((target - weights[k]) / reach, 1.0)
            column = (1 - step) * weights[k] + step * extreme
            reason = (
                f"The program satisfied nobody; client {k} was drawn and its column tilted to an expected weight of "
                f"{target:.4g}, column sums kept."
            )
            return result(_around(column, k, weights), "tilt", reason)

    best = max_participation(curves, thresholds, family=chosen, beta=weights, tolerance=tolerance)
    kept = int(np.asarray(best.satisfied).sum())
    why = "column sums relaxed for this round" if len(s) > 1 else "chosen by sorting"
    reason = f"The program satisfied nobody; {kept} of {len(curves)} clients are satisfied with {why}."
    return result(np.tile(best.alpha, (len(s), 1)), "relax", reason)
