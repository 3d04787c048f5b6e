"""The paper's analysis as functions of measured or assumed numbers; docs/theory.md says what holds and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from feduca.types import Floats, UtilityFamily
from feduca.utility import family as family_of


def jensen_gaps(family: str | UtilityFamily, zeta: Any, R: Floats, s: Floats) -> Floats:
    """`J_k(s) = u_k(sum_i s_i r_k^i) - sum_i s_i u_k(r_k^i) >= 0` for every client (paper, Eq. 8), `[N]`."""
    curves = family_of(family)
    zeta, R, s = np.asarray(zeta, float), np.atleast_2d(np.asarray(R, float)), np.asarray(s, float)
    return curves.value(zeta, s @ R) - s @ curves.value(zeta, R)


def discrepancy(alpha: Any, beta: Any = None) -> float:
    """`||alpha - beta||^2`, with beta uniform by default."""
    alpha = np.asarray(alpha, float)
    target = np.full(len(alpha), 1 / len(alpha)) if beta is None else np.asarray(beta, float)
    return float(((alpha - target) ** 2).sum())


def discrepancy_bounds(n_s: int, N: int, delta: float, s: Any = None, beta: Any = None) -> tuple[float, float]:
    """Bounds on the discrepancy: in expectation over `s ~ Dir(delta 1)`, and for this very `s`.

    With column sums n_s beta, `alpha - beta = R^T (s - 1/n_s)` and `||R||_2^2 <= ||R||_1 ||R||_inf = n_s max(beta)`, for any
    feasible R, also one that depends on s. Hence `n_s max(beta) ||s - 1/n_s||^2` for a given s (at most the paper's
    `(n_s - 1)/N` for uniform beta), and `max(beta) (n_s - 1)/(n_s delta + 1)` in expectation. Without `s` the second number
    is the worst case over s. For n_s = 1 there are no column sums and nothing better than the simplex's own diameter holds.
    """
    target = np.full(N, 1 / N) if beta is None else np.asarray(beta, float)
    if n_s == 1:
        trivial = float(1 - 2 * target.min() + target @ target)
        return trivial, trivial
    top = float(target.max())
    spread = 1 - 1 / n_s if s is None else float(((np.asarray(s, float) - 1 / n_s) ** 2).sum())
    return top * (n_s - 1) / (n_s * delta + 1), n_s * top * spread
