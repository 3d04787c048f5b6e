"""The structured solver around its compiled kernel: scaling, selections, and the proved bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from feduca.program.certificate import dual_bound
from feduca.program.problem import Problem
from feduca.program.solution import Solution
from feduca.types import Floats, Ints
from feduca.utility import Quadratic, peaks

RELATIVE = 1e-10  # aim an order below what is promised
MU_CENTRE = 1e-11  # the centre is the limit of the central path; this is close enough to see no difference
RHO = (
    1e-6,
    1e-8,
    1e-10,
    1e-12,
)  # weight of the distance to beta in `closest`, smaller until the slack it costs is nothing
PIECES = 1_000_000  # of the piecewise cubics that stand in for a family without any, all clients together


def _scale(problem: Problem) -> float:
    """kappa: one over the median change of utility when a client's weight moves by 1/N."""
    zeros = np.zeros(problem.n)
    change = np.abs(problem.family.slope(problem.zeta, zeros)) / problem.n
    change += np.abs(problem.family.curvature(problem.zeta, problem.beta)) / problem.n**2
    return 1.0 / max(float(np.median(change)), 1e-12 / problem.n)


def _curve(problem: Problem, kappa: float) -> Any:
    """The clients' curves for the kernel: `kappa * (u_k(x / N) - u_k(0))`."""
    from feduca.program.kernel import Cubic, Parabola

    n = problem.n
    if isinstance(problem.family, Quadratic):
        return Parabola(problem.zeta[:, 0] * (kappa / n**2), problem.zeta[:, 1] * (kappa / n))
    pieces = getattr(problem.family, "pieces", None)
    knots, c = pieces(problem.zeta) if pieces is not None else _stand_in(problem)
    c = c * (kappa / float(n) ** np.arange(4))
    c[:, :, 0] -= c[:, :1, 0].copy()
    return Cubic(np.ascontiguousarray(knots * n), np.ascontiguousarray(c))


def _stand_in(problem: Problem) -> tuple[Floats, Floats]:
    """A piecewise cubic through any smooth family: its values and slopes, interpolated (cubic Hermite).

    Knots are dense where weights are. The certificate uses the true curves, so what is lost here is seen there.
    """
    top = float(min(1.0, (problem.n_s * problem.beta).max())) if problem.columns else 1.0
    pieces = int(np.clip(PIECES // problem.n, 64, 4096))
    knots = np.concatenate([top * np.linspace(0, 1, pieces + 1) ** 2, np.linspace(top, 1.0, 9)[1:] if top < 1 else []])
    at = np.broadcast_to(knots[:, None], (len(knots), problem.n))
    v, d = problem.family.value(problem.zeta, at).T, problem.family.slope(problem.zeta, at).T
    h = np.diff(knots)
    secant = np.diff(v, axis=1) / h
    square = (3 * secant - 2 * d[:, :-1] - d[:, 1:]) / h
    cube = (d[:, :-1] + d[:, 1:] - 2 * secant) / h**2
    return knots, np.stack([v[:, :-1], d[:, :-1], square, cube], axis=2)


@dataclass(frozen=True)
class Path:
    """What the kernel found, back in the problem's units."""

    R: Floats  # [n_s, N], the clients that were not part of it as they were
    bound: float  # proved lower bound on the optimal value of what was solved
    iterations: int
    code: int


class Part(NamedTuple):
    """The block of `R` that may still move on the optimal face."""

    R: Floats
    clients: Ints
    rows: Ints


class Scaled:
    """A problem in the kernel's units, from which it can be solved with some clients fixed and demands changed."""

    def __init__(self, problem: Problem, tolerance: float):
        self.problem, self.tolerance = problem, tolerance
        self.kappa = _scale(problem)
        self.curve = _curve(problem, self.kappa)
        self.exact = isinstance(problem.family, Quadratic) or hasattr(problem.family, "pieces")
        self.base = problem.family.value(problem.zeta, np.zeros(problem.n))
        self.active = ~problem.free()

    def follow(
        self,
        objective: str,
        *,
        centre: bool = False,
        rho: float = 0.0,
        demand: Floats | None = None,
        part: Part | None = None,
        tolerance: float | None = None,
    ) -> Path:
        """Run the kernel on the whole problem or, with `part`, on a block of `R`, the rest staying as it is."""
        from feduca.program import kernel

        problem, n, kappa, s = self.problem, self.problem.n, self.kappa, self.problem.s
        linear = objective == "linear"
        start, curve, active = n * problem.beta, self.curve, self.active
        need = problem.demand
        if demand is not None:
            need, active = demand, demand > -np.inf
        G = kappa * (np.where(active, need, 0.0) - self.base)
        row, column = np.full(len(s), float(n)), len(s) * start
        if part is not None:
            R, among, rows = part
            curve = type(curve)(*(a if name == "knots" else a[among] for name, a in zip(curve._fields, curve)))
            start, active, G, s = start[among], active[among], G[among], s[rows]
            inside = n * R[np.ix_(rows, among)]
            row, column = inside.sum(1), inside.sum(0)
        X0 = np.outer(column if problem.columns else start, row / (row if problem.columns else start).sum())
        unit = kappa if linear else kappa**2
        tolerance = self.tolerance if tolerance is None else tolerance
        goal = unit * (1e-3 * tolerance if linear else 0.05 * tolerance**2)
        if rho > 0:
            goal = 1e-11 * rho * len(start)
        result = None
        iterations = 0
        for careful in (False, True):
            attempt = kernel.follow(
                curve, s, G, active, X0.copy(), row, column, start, np.full(len(start), rho), problem.columns,
                linear, centre, goal, 0.0 if rho > 0 else RELATIVE, MU_CENTRE if centre else np.inf,
                careful, 200 if careful else 80,
            )  # fmt: skip
            iterations += attempt[5]
            if result is None or attempt[4] < result[4]:
                result = attempt
            if attempt[6] == kernel.REACHED or rho > 0:
                break
        assert result is not None
        X, xi, lam, primal, gap, _, code = result
        if not np.isfinite(X).all():
            code = kernel.BROKEN
        weights = np.ascontiguousarray(X.T) / n
        if part is not None:
            weights, block = part.R.copy(), weights
            weights[np.ix_(part.rows, part.clients)] = block
        bound = max((primal - gap) / unit, 0.0)
        if not self.exact and part is None:
            scale = 1.0 if linear else 1.0 / kappa
            bound = dual_bound(problem, weights, xi * scale, lam * (n / kappa * scale), objective)
        return Path(weights, bound, iterations, code)


def repair(problem: Problem, R: Floats) -> Floats:
    """`R` with its sums restored to the last digits, by Newton's method on `R_ik (1 + p_i + q_k)`.

    A nearly singular row system (a strategy without probability, a row that is full) can leave residuals of 1e-7.
    """
    target = problem.n_s * problem.beta
    for _ in range(4):
        row, column = R.sum(1), R.sum(0)
        if not problem.columns:
            return R / row[:, None]
        if max(np.abs(row - 1).max(), np.abs(column - target).max()) < 1e-13:
            break
        q = (target - column) / column
        M = np.diag(row) - (R / column) @ R.T
        p = np.linalg.lstsq(M, 1 - row - R @ q, rcond=1e-14)[0]
        R = np.maximum(R * (1 + p[:, None] + q - (R.T @ p) / column), 0.0)
    return R


def solve(problem: Problem, objective: str, selection: str, tolerance: float) -> Solution:
    """As `select`, with the sums of the chosen weights restored to the last digits."""
    solution = select(problem, objective, selection, tolerance)
    return replace(solution, R=repair(problem, solution.R))


def select(problem: Problem, objective: str, selection: str, tolerance: float) -> Solution:
    """The slack, the selection among the weights that reach it, and a proved lower bound on the optimal value."""
    from feduca.program.kernel import BROKEN

    start = problem.start()
    if problem.n == 1 or (selection == "closest" and not problem.slack(start).any()):
        exact = problem.slack(start)
        value = float(exact.sum()) if objective == "linear" else float(exact @ exact) / 2
        return Solution(start, value, 0)  # a single point, or nothing to gain
    scaled = Scaled(problem, tolerance)
    first = scaled.follow(objective, centre=selection == "centre")
    if first.code == BROKEN:
        return Solution(start, 0.0, first.iterations, "broke down (a number overflowed)")
    if selection == "centre":
        return Solution(first.R, first.bound, first.iterations)
    # Strict concavity gives a client with slack the same column in every optimum, and a row that such clients fill is
    # closed to the others: what is left to choose is a block of R.
    hard = problem.slack(first.R) > tolerance
    soft, rows = np.flatnonzero(~hard), np.flatnonzero(1 - first.R[:, hard].sum(1) > 1e-6)
    if len(soft) < 2 or len(rows) < min(2, problem.n_s):
        return Solution(first.R, first.bound, first.iterations)
    choose = _closest if selection == "closest" else _margin
    R, iterations = choose(scaled, Part(first.R, soft, rows))
    iterations += first.iterations
    if problem.slack(R)[soft].max() > tolerance / 2:
        trouble = (
            f"Selection {selection!r} could not be refined without giving up slack; other optimal weights are returned."
        )
        return Solution(first.R, first.bound, iterations, trouble)
    return Solution(R, first.bound, iterations)


def _closest(scaled: Scaled, part: Part) -> tuple[Floats, int]:
    """Among the optimal weights those closest to beta: the limit of a vanishing weight on the squared distance."""
    iterations, allowed = 0, 0.1 * scaled.tolerance / len(part.clients)
    path = None
    for rho in RHO:
        path = scaled.follow("squared", rho=rho, part=part)
        iterations += path.iterations
        if scaled.problem.slack(path.R)[part.clients].max() <= allowed:
            return path.R, iterations
    return part.R if path is None else path.R, iterations


def _margin(scaled: Scaled, part: Part) -> tuple[Floats, int]:
    """Among the optimal weights those with the largest smallest surplus over the soft clients.

    `phi(m) = min ||t||` with every demand raised by m is convex and zero up to the largest margin m*. Newton's method from
    above, `m - ||t||^2 / sum(t)`, never undershoots m* and reaches it in a few solves.
    """
    problem = scaled.problem
    bound = part.clients[problem.demand[part.clients] > -np.inf]
    if len(bound) == 0:
        path = scaled.follow("squared", centre=True, part=part)
        return path.R, path.iterations
    top = problem.family.value(problem.zeta, peaks(problem.family, problem.zeta))
    margin = float((top - problem.demand)[bound].min())
    iterations, best, best_margin = 0, part.R, float((problem.mixed(part.R) - problem.demand)[bound].min())
    accuracy = scaled.tolerance / 30
    for _ in range(30):
        demand = problem.demand.copy()
        demand[bound] += margin
        path = scaled.follow("squared", demand=demand, part=part, tolerance=accuracy)
        iterations += path.iterations
        surplus = (problem.mixed(path.R) - problem.demand)[bound]
        if surplus.min() > best_margin:
            best, best_margin = path.R, float(surplus.min())
        short = np.maximum(margin - surplus, 0.0)
        if short.max() <= accuracy:
            break
        margin -= float(short @ short / short.sum())
    return best, iterations
