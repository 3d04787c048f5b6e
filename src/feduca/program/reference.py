"""The same program through CVXPY and Clarabel: slow, general, and written with none of our algebra.

A development dependency; tests and `solver="reference"` use it. Curves that are not parabolas are replaced by the lower
envelope of tangents, refined at the solution; the certificate is computed with the true curves, so the error of that shows
in the gap.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from feduca.core.utility import Quadratic
from feduca.errors import InputError
from feduca.program.certificate import dual_bound
from feduca.program.problem import Problem
from feduca.program.solution import Solution
from feduca.types import Floats, Ints

TANGENTS = 17  # to begin with
ROUNDS = 12  # of tangents at the solution (Kelley's method)


def _cvxpy() -> Any:
    try:
        import clarabel  # noqa: F401
        import cvxpy
    except ImportError:
        raise InputError(
            "solver = 'reference' needs cvxpy and clarabel, which are not installed; pip install 'feduca[dev]'"
        ) from None
    return cvxpy


class _Model:
    """Variables, constraints and mixed utilities, in units of `X = N R` and `kappa` times utility."""

    def __init__(self, problem: Problem, bound: Ints):
        self.problem, self.cp = problem, _cvxpy()
        n, n_s = problem.n, problem.n_s
        slope = problem.family.slope(problem.zeta, problem.beta)
        self.kappa = n / max(float(np.median(np.abs(slope))), 1e-3 * problem.unit)
        self.X = self.cp.Variable((n_s, n), nonneg=True)
        self.rows = self.cp.sum(self.X, axis=1) == n
        self.sums = [self.rows]
        if problem.columns:
            self.sums.append(self.cp.sum(self.X, axis=0) == n_s * n * problem.beta)
        self.sums_and_curves = list(self.sums)
        self.bound, self.height = bound, None
        self.surplus = self._mixed() - self.kappa * problem.demand[self.bound]

    def _mixed(self) -> Any:
        """`kappa * sum_i s_i u_k(X_ik / N)` of the clients that can bind, as a concave expression."""
        problem, cp, k = self.problem, self.cp, self.bound
        zeta, X = problem.zeta[k], self.X[:, k]
        if isinstance(problem.family, Quadratic):
            a, b, c = (self.kappa * zeta / np.array([problem.n**2, problem.n, 1.0])).T
            square = problem.s @ cp.square(X)
            return -cp.multiply(a, square) + cp.multiply(b, problem.s @ X) + c
        self.height = cp.Variable(X.shape)
        for r in np.linspace(0.0, 1.0, TANGENTS):
            self._touch(np.full(X.shape, r))
        return problem.s @ self.height

    def _touch(self, R: Floats) -> None:
        """Bound the heights by the tangents at `R`, one per client and strategy."""
        family, zeta, n = self.problem.family, self.problem.zeta[self.bound], self.problem.n
        value, slope = self.kappa * family.value(zeta, R), self.kappa * family.slope(zeta, R) / n
        tangent = self.cp.multiply(slope, self.X[:, self.bound] - n * R) + value
        self.sums_and_curves.append(self.height <= tangent)

    def solve(self, objective: Any, constraints: list) -> Any:
        """Solve; curves that are not parabolas are touched again wherever the solution lies, a few times over."""
        program = self._solve(objective, constraints)
        if self.height is not None:
            for _ in range(ROUNDS):
                if self.X.value is None:
                    break
                self._touch(np.asarray(self.X.value, float)[:, self.bound] / self.problem.n)
                program = self._solve(objective, constraints)
        return program

    def _solve(self, objective: Any, constraints: list) -> Any:
        program = self.cp.Problem(objective, [*self.sums_and_curves, *constraints])
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # the certificate judges accuracy, not CVXPY
            warnings.simplefilter("ignore")
            program.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-11, tol_feas=1e-11, max_iter=200)
        return program

    def weights(self) -> Floats:
        """`R`, with the solver's last digits of negativity cut off and the sums repaired."""
        R = np.maximum(np.asarray(self.X.value, float), 0.0) / self.problem.n
        for _ in range(20):
            if self.problem.columns:
                R *= self.problem.n_s * self.problem.beta / np.maximum(R.sum(0), 1e-300)
            R /= R.sum(1, keepdims=True)
        return R


def solve(problem: Problem, objective: str, selection: str, tolerance: float) -> Solution:
    """Solve for the slack, then select among the optimal weights; `bound` is proved from the first solve's multipliers."""
    # A margin concerns everybody with a demand; otherwise demands that cannot fail are left out, as they always hold.
    demanding = problem.demand > -np.inf if selection == "margin" else ~problem.free()
    model = _Model(problem, np.flatnonzero(demanding))
    cp, n, bound = model.cp, problem.n, model.bound
    if len(bound) == 0:
        return _select(model, Solution(problem.start(), 0.0, 0), selection, tolerance)
    t = cp.Variable(len(bound), nonneg=True)
    demands = model.surplus + t >= 0
    cost = cp.sum(t) if objective == "linear" else cp.sum_squares(t) / 2
    program = model.solve(cp.Minimize(cost), [demands])
    if model.X.value is None:
        return Solution(problem.start(), 0.0, 0, f"Clarabel gave up ({program.status})")
    R = model.weights()
    xi = np.zeros(n)
    scale = 1.0 if objective == "linear" else 1.0 / model.kappa
    xi[bound] = np.asarray(demands.dual_value, float).ravel() * scale
    candidates = [xi] if objective == "linear" else [xi, problem.slack(R)]  # xi = t at the optimum
    row = np.asarray(model.rows.dual_value, float).ravel() * (n / model.kappa * scale)
    lower = max(dual_bound(problem, R, each, row, objective) for each in candidates)
    iterations = int(program.solver_stats.num_iters or 0)

    return _select(model, Solution(R, lower, iterations), selection, tolerance)


def _select(model: _Model, first: Solution, selection: str, tolerance: float) -> Solution:
    """Among the optimal weights, those of the selection."""
    problem, cp, n, bound = model.problem, model.cp, model.problem.n, model.bound
    R, iterations = first.R, first.iterations
    # The optimal face: a client with slack has the same column in every optimum (strict concavity), so it is fixed; the
    # others need no slack.
    hard = np.flatnonzero(problem.slack(R) > tolerance)
    soft = np.flatnonzero(np.isin(bound, hard, invert=True))
    face = [model.X[:, hard] == n * R[:, hard]] if len(hard) else []
    if selection == "centre":
        rows = np.flatnonzero(1 - R[:, hard].sum(1) > 1e-6)  # others are filled by the fixed columns
        free = np.setdiff1d(np.arange(n), hard)
        barrier = cp.sum(cp.log(model.X[np.ix_(rows, free)])) if len(rows) and len(free) else cp.Constant(0)
        goal = cp.Maximize(barrier + (cp.sum(cp.log(model.surplus[soft])) if len(soft) else 0))
    elif selection == "closest":
        goal = cp.Minimize(cp.sum_squares(model.X - n * problem.start()))
        face += [model.surplus[soft] >= 0] if len(soft) else []
    else:
        if len(soft) == 0:
            return first
        least = cp.Variable()
        goal = cp.Maximize(least)
        face.append(model.surplus[soft] >= least)
    try:
        second = model.solve(goal, face)
    except cp.error.SolverError:
        return first  # a face without interior: the first solve's point is optimal as well
    iterations += int(second.solver_stats.num_iters or 0)
    if second.value is not None and np.isfinite(second.value):
        chosen = model.weights()
        if problem.slack(chosen).max() <= problem.slack(first.R).max() + tolerance:
            R = chosen
    return Solution(R, first.bound, iterations)
