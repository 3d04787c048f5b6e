"""How far a point is from the optimum, rigorously, whoever computed it.

Weak duality. For any multipliers `xi >= 0` of the demands (`xi <= 1` for the linear objective) and any `lambda` of the row
sums, put `nu_k = -min_i (xi_k g_ik + lambda_i)` for the column sums, where `g_ik = -s_i u_k'(R_ik)`. Then
`z = xi g + lambda + nu >= 0`, and because the constraint functions `H_k(R) = demand_k - sum_i s_i u_k(R_ik)` are convex,

    D = sum_k [xi_k H_k(R) - phi*(xi_k)] - <R, z> + lambda.(R 1 - 1) + nu.(R^T 1 - n_s beta)

is at most the optimal value (the last two terms vanish where R meets its sums), with phi*(xi) = xi^2/2 (squared) or 0
(linear). Without columns, `lambda_i = -min_k xi_k g_ik` and `nu = 0`. Zero multipliers give D = 0, so a point without
slack is optimal without further proof. Bounds are lowered by what rounding may have added to them (proof.py).
"""

from __future__ import annotations

import math

import numpy as np

from feduca.program.problem import Problem
from feduca.types import Certificate, Floats


def primal_value(slack: Floats, objective: str) -> float:
    """The objective at a slack vector."""
    return float(slack.sum()) if objective == "linear" else float(slack @ slack) / 2


def dual_bound(problem: Problem, R: Floats, xi: Floats, row: Floats, objective: str) -> float:
    """A lower bound on the program's optimal value from any multipliers `xi[N]`, `row[n_s]` taken at any `R`."""
    finite = problem.demand > -np.inf
    mixed, need = problem.mixed(R), np.where(finite, problem.demand, 0.0)
    xi = np.where(finite, np.maximum(xi, 0.0), 0.0)
    if objective == "linear":
        xi = np.minimum(xi, 1.0)
    H = np.where(finite, need - mixed, 0.0)
    slope, first = problem.family.slope(problem.zeta, R), np.abs(problem.ends[0])
    g, size = -problem.s[:, None] * slope, problem.s[:, None] * (np.abs(slope) + first)
    if problem.columns:
        pull = xi * g + row[:, None]
        nu = -pull.min(axis=0)
        total = problem.n_s * problem.beta
    else:
        pull = xi * g
        row = -pull.min(axis=1)
        nu = total = np.zeros(problem.n)
    conjugate = np.zeros(problem.n) if objective == "linear" else xi * xi / 2
    terms = (xi * H - conjugate - xi * (R * g).sum(0) - nu * total, -row)
    if not all(np.isfinite(each).all() for each in terms):
        return 0.0
    # Every term has gone through some 32 operations and a sum over strategies; `fsum` adds none. Where pulls are off,
    # z >= 0 may fail by as much, which costs that times what a client (or a row) can hold.
    gamma = (problem.n_s + 32) * 2.0**-53
    wrong = xi * size + np.abs(row)[:, None]
    held = wrong.max(axis=0) @ total if problem.columns else wrong.max()
    parts = xi * (np.abs(need) + np.abs(mixed) + np.abs(problem.base)) + 4 * xi * (R * size).sum(0)
    parts += conjugate + np.abs(nu) * total
    rounding = gamma * (math.fsum(parts) + float(np.abs(row).sum() + held))
    bound = math.fsum(np.concatenate(terms)) - rounding
    return max(bound, 0.0) if np.isfinite(bound) else 0.0


def slack_error(gap: float, objective: str) -> float:
    """What a gap says about the slacks: `||t - t*|| <= sqrt(2 gap)` (squared), `sum t - sum t* <= gap` (linear)."""
    return gap if objective == "linear" else float(np.sqrt(2 * gap))


def certify(
    problem: Problem, R: Floats, bound: float, objective: str, iterations: int, surplus: Floats
) -> tuple[Certificate, float]:
    """The certificate of `R` given a proved lower bound on the optimum and the computed surplus, `mixed - demand`;
    and how far the sums of `R` are off.

    The bound is lowered by what rounding and the last digits of the sums may hide in `primal`: the gap covers both.
    """
    from feduca.program.proof import Data, primal_rounding

    primal = primal_value(np.maximum(-surplus, 0.0), objective)
    data = Data(problem.demand, problem.base, *problem.ends, problem.s)
    hidden, residual = primal_rounding(data, R, problem.n_s * problem.beta, surplus, objective == "linear")
    dual = min(bound, primal) - hidden  # a bound can be above by what is hidden
    gap = primal - dual
    return Certificate(primal, dual, gap, slack_error(gap, objective), iterations), residual
