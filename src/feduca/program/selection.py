"""Which of the optimal weights: `centre`, `closest`, `margin`.

With zero slack in reach many R are optimal. `centre` is the analytic centre of the optimal face, the limit of the central
path, where the kernel ends anyway. The other two are second solves over the block of R that is still free on that face.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feduca.core.utility import peaks
from feduca.program import single
from feduca.program.certificate import primal_value
from feduca.program.problem import Problem
from feduca.program.solution import Solution
from feduca.program.structured import Part, Scaled, repair
from feduca.types import Floats

# Weights of the distance to beta in `closest`, tried in turn until the slack that the distance costs is nothing.
RHO = (1e-6, 1e-8, 1e-10, 1e-12)


def solve(problem: Problem, objective: str, selection: str, tolerance: float) -> Solution:
    """As `select`, with the sums of the chosen weights restored to the last digits."""
    solution = select(problem, objective, selection, tolerance)
    return replace(solution, R=repair(problem, solution.R))


def select(problem: Problem, objective: str, selection: str, tolerance: float) -> Solution:
    """The slack, the selection among the weights that reach it, and a proved lower bound on the optimal value."""
    if problem.n == 1 or (selection == "closest" and not problem.slack(problem.start()).any()):
        start = problem.start()
        return Solution(start, primal_value(problem.slack(start), objective), 0)  # a single point, or nothing to gain
    scaled = Scaled(problem, tolerance)
    first = scaled.follow(objective, centre=selection == "centre")
    if not problem.columns and not first.reached:
        exact = single.solve(problem, objective, selection)
        if exact is not None:
            return replace(exact, iterations=first.iterations)
    if first.broken:
        return Solution(problem.start(), 0.0, first.iterations, "broke down (a number overflowed)")
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
    if problem.slack(R)[soft].sum() > problem.slack(first.R)[soft].sum() + tolerance / 2:
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
