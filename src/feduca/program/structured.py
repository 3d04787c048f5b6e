"""The structured solver around its compiled kernel: scaling, restarts, the proved bound, and repair of sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feduca.core.utility import Quadratic
from feduca.program.certificate import dual_bound
from feduca.program.problem import Problem
from feduca.types import Floats, Ints

RELATIVE = 1e-10  # aim an order below what is promised
MU_CENTRE = 1e-11  # the centre is the limit of the central path; this is close enough to see no difference
PIECES = 1_000_000  # of the piecewise cubics that stand in for a family without any, all clients together


def _scale(problem: Problem) -> float:
    """kappa: one over the median change of utility when a client's weight moves by 1/N."""
    change = np.abs(problem.ends[0]) / problem.n
    change += np.abs(problem.family.curvature(problem.zeta, problem.beta)) / problem.n**2
    return 1.0 / max(float(np.partition(change, problem.n // 2)[problem.n // 2]), 1e-100)


def _curve(problem: Problem, kappa: float) -> Any:
    """The clients' curves for the kernel: `kappa * (u_k(x / N) - u_k(0))`."""
    from feduca.program.layout import Cubic, Parabola

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
    broken: bool  # the arithmetic broke down and `R` is not to be used
    reached: bool = False  # the kernel met its goal


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
        from feduca.program import kernel, proof

        problem, n, kappa, s = self.problem, self.problem.n, self.kappa, self.problem.s
        linear = objective == "linear"
        start, curve, active = n * problem.beta, self.curve, self.active
        need = problem.demand
        if demand is not None:
            need, active = demand, demand > -np.inf
        G = kappa * (np.where(active, need, 0.0) - problem.base)
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
        pull = np.full(len(start), rho)
        program = kernel.Program(curve, s, G, active, row, column, start, pull, problem.columns, linear)
        relative, mu = 0.0 if rho > 0 else RELATIVE, MU_CENTRE if centre else np.inf
        aim = kernel.Aim(goal, relative, mu, centre, careful=False, limit=0)
        result = None
        iterations = 0
        for careful in (
            (False, True) if problem.columns or linear else (False,)
        ):  # one strategy has an exact method (single.py)
            with _interruptible():
                attempt = kernel.follow(program, aim._replace(careful=careful, limit=200 if careful else 80), X0.copy())
            iterations += attempt[5]
            if result is None or attempt[4] < result[4]:
                result = attempt
            if attempt[6] == kernel.REACHED or rho > 0:
                break
        assert result is not None
        X, xi, lam, _, gap, _, code = result
        if not (np.isfinite(gap) and np.isfinite(X).all()):
            return Path(problem.start(), 0.0, iterations, True)
        weights = np.ascontiguousarray(X.T) / n
        if part is not None:
            weights, block = part.R.copy(), weights
            weights[np.ix_(part.rows, part.clients)] = block
        bound = 0.0
        if self.exact and part is None and demand is None:
            parts = kappa * (np.abs(need) + np.abs(problem.base))
            bound, rounding = proof.prove(curve, s, G, parts, active, row, column, problem.columns, linear, X, xi, lam)
            bound = max((bound - rounding) / unit, 0.0)
        elif part is None and demand is None:
            scale = 1.0 if linear else 1.0 / kappa
            bound = dual_bound(problem, weights, xi * scale, lam * (n / kappa * scale), objective)
        return Path(weights, bound, iterations, False, code == kernel.REACHED)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C inside a Python helper that the compiled kernel calls comes out of it as a SystemError: it is one again."""
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise KeyboardInterrupt from None
        raise


def repair(problem: Problem, R: Floats) -> Floats:
    """`R` with its sums restored to the last digits, by Newton's method on `R_ik (1 + p_i + q_k)`.

    A nearly singular row system (a strategy without probability, a row that is full) can leave residuals of 1e-7.
    """
    if not problem.columns:
        return R / R.sum(1, keepdims=True)
    target = problem.n_s * problem.beta
    for _ in range(4):
        if problem.residual(R) < 1e-12:
            break
        row, column = R.sum(1), R.sum(0)
        q = (target - column) / column
        M = np.diag(row) - (R / column) @ R.T
        p = np.linalg.lstsq(M, 1 - row - R @ q, rcond=1e-14)[0]
        R = np.maximum(R * (1 + p[:, None] + q - (R.T @ p) / column), 0.0)
    return R
