"""How far a point is from the optimum, rigorously, whoever computed it.

Weak duality. For any multipliers `xi >= 0` of the demands (`xi <= 1` for the linear objective) and any `lambda` of the row
sums, put `nu_k = -min_i (xi_k g_ik + lambda_i)` for the column sums, where `g_ik = -s_i u_k'(R_ik)`. Then
`z = xi g + lambda + nu >= 0`, and because the constraint functions `H_k(R) = demand_k - sum_i s_i u_k(R_ik)` are convex,

    D = sum_k [xi_k H_k(R) - phi*(xi_k)] - <R, z> + lambda.(R 1 - 1) + nu.(R^T 1 - n_s beta)

is at most the optimal value (the last two terms vanish where R meets its sums), with phi*(xi) = xi^2/2 (squared) or 0
(linear). Without columns, `lambda_i = -min_k xi_k g_ik` and `nu = 0`. Zero multipliers give D = 0, so a point without
slack is optimal without further proof.
"""

from __future__ import annotations

import numpy as np

from feduca.program.problem import Problem
from feduca.types import Certificate, Floats


def primal_value(slack: Floats, objective: str) -> float:
    """The objective at a slack vector."""
    return float(slack.sum()) if objective == "linear" else float(slack @ slack) / 2


def dual_bound(problem: Problem, R: Floats, xi: Floats, row: Floats, objective: str) -> float:
    """A lower bound on the program's optimal value from any multipliers `xi[N]`, `row[n_s]` taken at any `R`."""
    finite = problem.demand > -np.inf
    xi = np.where(finite, np.maximum(xi, 0.0), 0.0)
    if objective == "linear":
        xi = np.minimum(xi, 1.0)
    H = np.where(finite, problem.demand - problem.mixed(R), 0.0)
    g = -problem.s[:, None] * problem.family.slope(problem.zeta, R)
    if problem.columns:
        pull = xi * g + row[:, None]
        nu = -pull.min(axis=0)
        residual = row @ (R.sum(1) - 1) + nu @ (R.sum(0) - problem.n_s * problem.beta)
        z = pull + nu
    else:
        pull = xi * g
        row = -pull.min(axis=1)
        residual = row @ (R.sum(1) - 1)
        z = pull + row[:, None]
    conjugate = 0.0 if objective == "linear" else xi @ xi / 2
    bound = float(xi @ H - conjugate - (R * z).sum() + residual)
    return max(bound, 0.0) if np.isfinite(bound) else 0.0


def slack_error(gap: float, objective: str) -> float:
    """What a gap says about the slacks: `||t - t*|| <= sqrt(2 gap)` (squared), `sum t - sum t* <= gap` (linear)."""
    return gap if objective == "linear" else float(np.sqrt(2 * gap))


def certify(
    problem: Problem, R: Floats, bound: float, objective: str, iterations: int, slack: Floats | None = None
) -> Certificate:
    """The certificate of `R` given a proved lower bound on the optimum."""
    primal = primal_value(problem.slack(R) if slack is None else slack, objective)
    dual = min(bound, primal)  # rounding can put an exact bound a hair above
    gap = primal - dual
    return Certificate(primal, dual, gap, slack_error(gap, objective), iterations)
