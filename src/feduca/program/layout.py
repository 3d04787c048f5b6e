"""What the compiled kernel works on, as named tuples of arrays (the symbols are those of kernel.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Parabola(NamedTuple):
    """`v_k(x) = (b_k - a_k x) x`."""

    a: np.ndarray
    b: np.ndarray


class Cubic(NamedTuple):
    """Piecewise cubic on common knots: `v_k(x) = sum_p c[k, j, p] (x - knots[j])^p` on piece j."""

    knots: np.ndarray
    c: np.ndarray


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
