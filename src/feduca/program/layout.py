"""What the compiled kernel works on, as named tuples of arrays (the symbols are those of kernel.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

# Options of numba for code in loops: references to arrays are not counted in it (`_nrt`), which would take a fifth of a small
# solve. Such code allocates nothing.
LOOP: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


class Parabola(NamedTuple):
    """`v_k(x) = (b_k - a_k x) x`."""

    a: np.ndarray
    b: np.ndarray


class Cubic(NamedTuple):
    """Piecewise cubic on common knots: `v_k(x) = sum_p c[k, j, p] (x - knots[j])^p` on piece j."""

    knots: np.ndarray
    c: np.ndarray


def evaluate(curve: Any, k: int, x: float) -> tuple[float, float, float]:
    """`v_k, v_k', v_k''` at x; overloaded for compiled code on the type of `curve`."""
    raise NotImplementedError


@overload(evaluate)
def _evaluate(curve, k, x):
    if curve.instance_class is Parabola:

        def parabola(curve, k, x):
            a, b = curve.a[k], curve.b[k]
            return (b - a * x) * x, b - 2 * a * x, -2 * a

        return parabola

    def cubic(curve, k, x):
        left, right = 0, curve.knots.shape[0] - 1
        while right - left > 1:
            middle = (left + right) // 2
            if curve.knots[middle] <= x:
                left = middle
            else:
                right = middle
        d = x - curve.knots[left]
        p0, p1, p2, p3 = curve.c[k, left, 0], curve.c[k, left, 1], curve.c[k, left, 2], curve.c[k, left, 3]
        return p0 + d * (p1 + d * (p2 + d * p3)), p1 + d * (2 * p2 + 3 * d * p3), 2 * p2 + 6 * d * p3

    return cubic


class Program(NamedTuple):
    """What is solved: the scaled program above."""

    curve: Any  # Parabola or Cubic
    s: np.ndarray  # [n_s]
    G: np.ndarray  # [N] demands
    active: np.ndarray  # [N] who has one
    row: np.ndarray  # [n_s] sums over clients
    column: np.ndarray  # [N] sums over strategies
    start: np.ndarray  # [N] what rho pulls towards
    rho: np.ndarray  # [N]
    columns: bool  # whether the column sums are constrained
    linear: bool  # phi(t) = t instead of t^2 / 2


class Aim(NamedTuple):
    """When to stop, and how boldly to go."""

    goal: float  # gap to reach ...
    relative: float  # ... or this share of the objective
    mu: float  # and a complementarity of at most this
    centre: bool  # stop at the centre only: remove what is left of unequal products
    careful: bool  # short steps, no second order
    limit: int  # iterations


class Point(NamedTuple):
    """Where the path is: primal and dual variables."""

    X: np.ndarray  # [N, n_s]
    Z: np.ndarray  # [N, n_s] multipliers of X >= 0
    xi: np.ndarray  # [N] multipliers of the demands
    eta: np.ndarray  # [N] 1 - xi (linear)
    t: np.ndarray  # [N] slack
    w: np.ndarray  # [N] t - h
    nu: np.ndarray  # [N] multipliers of the columns
    lam: np.ndarray  # [n_s] multipliers of the rows


class Best(NamedTuple):
    """The best point so far."""

    X: np.ndarray
    xi: np.ndarray
    lam: np.ndarray


class Step(NamedTuple):
    """A direction; while it is being computed `dX`, `dZ`, `dxi`, `dt` hold its right-hand sides."""

    dX: np.ndarray
    dZ: np.ndarray
    dxi: np.ndarray
    dt: np.ndarray
    dw: np.ndarray
    dlam: np.ndarray


class Local(NamedTuple):
    """The curves at a point and the blocks of the Newton system that are the clients' own."""

    h: np.ndarray  # [N]
    g: np.ndarray  # [N, n_s] gradient of h
    c: np.ndarray  # [N, n_s] its curvature
    E: np.ndarray  # [N, n_s] 1 / D
    e: np.ndarray  # [N, n_s] E (g - gbar)
    f: np.ndarray  # [N]
    total: np.ndarray  # [N] sums of E


class Rows(NamedTuple):
    """The system of the row sums, which couples the clients."""

    M: np.ndarray  # [n_s, n_s]
    L: np.ndarray  # its factor
    keep: np.ndarray  # [n_s] scales; 0 freezes a direction
    rhs: np.ndarray  # [n_s]
    sums: np.ndarray  # [n_s] of X over clients
    least: np.ndarray  # [n_s] smallest pulls, the multipliers without columns
