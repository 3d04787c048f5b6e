"""`allocate`: check, solve, certify, and say how far to trust the answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from feduca.errors import ProblemError, shown
from feduca.program.certificate import certify
from feduca.program.maximum import max_participation
from feduca.program.problem import LARGEST, OBJECTIVES, SELECTIONS, SOLVERS, Problem, check_choice, make_problem
from feduca.program.solution import Solution
from feduca.program.status import DEGENERATE, FAILED, INACCURATE, OPTIMAL, RELATIVE_GAP
from feduca.types import Allocation, Certificate, UtilityFamily

SUMS = 1e-9  # row and column sums are met to this or the answer is not certified


def allocate(
    zeta: Any,
    gamma: Any,
    s: Any,
    eps: float = 0.0,
    *,
    family: str | UtilityFamily = "quadratic",
    selection: str = "centre",
    objective: str = "squared",
    solver: str = "structured",
    beta: Any = None,
    tolerance: float = 1e-6,
) -> Allocation:
    """Aggregation weights from the participation program.

    zeta[N, .], gamma[N]  the clients' curves and thresholds (None or -inf: no demand); lists or arrays
    s[n_s]                probabilities of the strategies; n_s = 1 drops the column sums
    eps                   margin on every demand
    selection             which of the optimal R: `centre` (analytic centre of the optimal face), `closest` (to beta),
                          `margin` (largest smallest surplus)
    objective             `squared` or `linear` slack, or `participation` (the most clients; every strategy then holds the
                          same weights, without column sums)
    solver                `structured` (ours) or `reference` (CVXPY and Clarabel)
    beta[N]               target weights; column sums are n_s * beta; uniform by default
    tolerance             on slacks: `satisfied` means `u_k(alpha_k) >= gamma_k - tolerance`, and `optimal` that the slacks
                          are proved to be within it (or the objective within 1e-9 of the optimum); it scales with
                          utilities that are smaller than 0.01 or larger than 1000 (scale.py)
    """
    check_choice("selection", selection, SELECTIONS)
    check_choice("objective", objective, OBJECTIVES)
    check_choice("solver", solver, SOLVERS)
    if not (isinstance(tolerance, int | float | np.number) and 0 < tolerance <= LARGEST):
        raise ProblemError(f"tolerance = {shown(tolerance)} is not one; give a positive number such as 1e-6")
    problem = make_problem(zeta, gamma, s, eps, family, beta)
    if objective == "participation":
        best = max_participation(
            problem.zeta, problem.demand, family=problem.family, beta=problem.beta, tolerance=tolerance
        )
        satisfied = problem.family.value(problem.zeta, best.alpha) >= problem.gamma - tolerance * problem.scale
        R = np.tile(best.alpha, (problem.n_s, 1))
        return Allocation(best.alpha, best.status, best.reason, R, problem.s, best.slack, satisfied, best.certificate)
    if solver == "reference":
        from feduca.program.reference import solve
    else:
        from feduca.program.selection import solve
    accuracy = min(tolerance * problem.unit, LARGEST)
    solution = solve(problem, objective, selection, accuracy)
    return _judge(problem, solution, objective, accuracy, tolerance * problem.scale)


def _judge(problem: Problem, solution: Solution, objective: str, accuracy: float, tolerance: np.ndarray) -> Allocation:
    R = solution.R
    surplus = problem.mixed(R) - problem.demand
    slack = np.maximum(-surplus, 0.0)
    certificate, residual = certify(problem, R, solution.bound, objective, solution.iterations, surplus)
    alpha = problem.s @ R
    status, reason = _verdict(problem, R, residual, certificate, solution, accuracy)
    return Allocation(
        alpha=alpha,
        status=status,
        reason=reason,
        R=R,
        s=problem.s,
        slack=slack,
        satisfied=problem.family.value(problem.zeta, alpha) >= problem.gamma - tolerance,
        certificate=certificate,
    )


def _verdict(
    problem: Problem, R: np.ndarray, residual: float, certificate: Certificate, solution: Solution, tolerance: float
) -> tuple[str, str]:
    """The status and, when something is off, a sentence with cause and remedy."""
    certified = certificate.slack_error <= tolerance or certificate.gap <= RELATIVE_GAP * certificate.primal
    if certified and residual <= SUMS and R.min() >= 0 and not solution.trouble:
        return OPTIMAL, ""
    if solution.trouble.startswith("broke"):
        return (
            FAILED,
            f"The solver {solution.trouble}; beta is returned. Rescale the curves, or use solver='reference'.",
        )
    if certified and residual <= SUMS and R.min() >= 0:
        return OPTIMAL, solution.trouble
    found = (
        f"the gap is {certificate.gap:.2e}, the slacks are known to {certificate.slack_error:.2e}"
        if residual <= SUMS
        else f"row or column sums are off by {residual:.2e}"
    )
    tiny_s = float(problem.s.min())
    flat = float(-problem.family.curvature(problem.zeta, problem.beta).max())
    if tiny_s < 1e-8 or flat < 1e-7 * problem.unit:
        cause = f"a strategy has probability {tiny_s:.1e}" if tiny_s < 1e-8 else f"a curve has curvature {flat:.1e}"
        return DEGENERATE, f"Not certified to {tolerance:.0e}: {found}, because {cause}; drop it or raise its floor."
    hint = "raise the tolerance, or compare with solver='reference'"
    return INACCURATE, f"Not certified to {tolerance:.0e}: {found}; {hint}."
