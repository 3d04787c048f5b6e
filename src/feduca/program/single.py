"""One strategy, solved exactly: what the interior point does not finish when weights have to differ by orders of magnitude.

With n_s = 1 the program is `min sum_k f_k(r_k)` over `sum r = 1, r >= 0` with `f_k = t_k^2 / 2` (or t_k) and
`t_k = max(demand_k - u_k, 0)`, and only the multiplier of the sum couples the clients. When everybody's weights that cost
nothing beyond what is unavoidable, `[lo_k, hi_k]` (the peak, where no weight satisfies), can sum to 1, the multiplier is 0 and
every such point is optimal; `selection` then chooses. Otherwise the marginals `f_k' = -t_k u_k'` are equal where r_k > 0, and
bisection finds their common value (squared only: linear marginals jump).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from feduca.core.utility import peaks
from feduca.program.certificate import dual_bound, primal_value
from feduca.program.maximum import fill
from feduca.program.problem import Problem
from feduca.program.solution import Solution
from feduca.types import Bools, Floats

HALVINGS = 60  # of intervals inside [0, 1], down to rounding
PRICES = 70.0  # asinh of the largest price of weight that is looked at, 1e30
EDGE = 1e-14  # how near to its ends an accepted interval is searched


def _crossing(above: Callable[[Floats], Bools], left: Floats, right: Floats) -> Floats:
    """Where each client's increasing function passes from not `above` to above, in [left, right]."""
    for _ in range(HALVINGS):
        middle = (left + right) / 2
        over = above(middle)
        left, right = np.where(over, left, middle), np.where(over, middle, right)
    return (left + right) / 2


def _level(weights: Callable[[float], Floats], low: float, high: float) -> Floats:
    """`weights(level)`, which increase with the level, where they sum to 1."""
    from scipy.optimize import root_scalar  # here: importing it costs more than most solves

    if weights(low).sum() >= 1:
        return weights(low)
    if weights(high).sum() <= 1:
        return weights(high)
    found = root_scalar(
        lambda level: weights(level).sum() - 1, bracket=(low, high), method="brentq", xtol=1e-15 * (high - low)
    )
    return weights(found.root)


def _accepted(problem: Problem, peak: Floats, margin: float = 0.0) -> tuple[Floats, Floats, Bools]:
    """The weights that cost least, `[lo, hi]`, with demands raised by `margin`, and whom they satisfy."""
    lo, hi = problem.family.interval(problem.zeta, problem.demand + margin)
    soft = ~np.isnan(lo)
    return np.where(soft, lo, peak), np.where(soft, hi, peak), soft


def solve(problem: Problem, objective: str, selection: str) -> Solution | None:
    """The exact optimum for n_s = 1; None for a linear objective that needs a multiplier."""
    peak = peaks(problem.family, problem.zeta)
    lo, hi, soft = _accepted(problem, peak)
    if lo.sum() <= 1 <= hi.sum():
        choose = {"centre": _centre, "closest": _closest, "margin": _margin}[selection]
        r = choose(problem, peak, lo, hi, soft)
    elif objective == "squared":
        r = _marginal(problem, lo.sum() > 1, lo, hi)
    else:
        return None
    R = (r / r.sum())[None, :]
    slack = problem.slack(R)
    xi = (slack > 0) * 1.0 if objective == "linear" else slack
    bound = max(dual_bound(problem, R, each, np.zeros(1), objective) for each in (xi, np.where(soft, 0.0, xi)))
    return Solution(R, min(bound, primal_value(slack, objective)), 0)


def _marginal(problem: Problem, scarce: bool, lo: Floats, hi: Floats) -> Floats:
    """The weights of equal marginal cost: below `lo` where weight is scarce, beyond `hi` where there is too much."""
    ends = (np.zeros(problem.n), lo) if scarce else (hi, np.ones(problem.n))

    def marginal(r: Floats) -> Floats:
        short = np.maximum(problem.demand - problem.family.value(problem.zeta, r), 0.0)
        return -short * problem.family.slope(problem.zeta, r)

    steepest = float(np.abs([marginal(end) for end in ends]).max())
    span = (-steepest, 0.0) if scarce else (0.0, steepest)
    return _level(lambda level: _crossing(lambda r: marginal(r) > level, *ends), *span)


def _closest(problem: Problem, peak: Floats, lo: Floats, hi: Floats, soft: Bools) -> Floats:
    return fill(problem.beta, lo, hi)


def _margin(problem: Problem, peak: Floats, lo: Floats, hi: Floats, soft: Bools) -> Floats:
    """The largest margin on all satisfiable demands at which the accepted weights can still sum to 1."""
    asks = soft & (problem.demand > -np.inf)
    if not asks.any():
        return fill(problem.beta, lo, hi)
    least, most = 0.0, float((problem.family.value(problem.zeta, peak) - problem.demand)[asks].min())
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        low, high, still = _accepted(problem, peak, middle)
        if still[asks].all() and low.sum() <= 1 <= high.sum():
            least, lo, hi = middle, low, high
        else:
            most = middle
    return fill(problem.beta, lo, hi)


def _centre(problem: Problem, peak: Floats, lo: Floats, hi: Floats, soft: Bools) -> Floats:
    """The analytic centre: `max sum log r_k + sum log(u_k - demand_k)` over the satisfiable, at equal derivatives."""
    active = soft & ~problem.free()
    width = hi - lo
    left, right = lo + EDGE * width, hi - EDGE * width

    def falling(r: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            surplus = problem.family.value(problem.zeta, r) - problem.demand
            pull = np.where(active, problem.family.slope(problem.zeta, r) / np.maximum(surplus, 1e-300), 0.0)
        return 1 / np.maximum(r, 1e-300) + pull

    # The derivative falls from infinity to minus infinity (to that at r = 1 for those without a demand). Its level is
    # searched on a logarithmic scale, as it spans many orders of magnitude.
    def weights(level: float) -> Floats:
        price = -np.sinh(level)
        return np.where(soft & (width > 0), _crossing(lambda r: falling(r) < price, left, right), lo)

    return fill(_level(weights, -PRICES, PRICES), lo, hi)
