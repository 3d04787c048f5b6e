"""How much of a bound rounding may have made up, compiled: running error bounds of the dual and of the primal value.

A sum of terms of which each has gone through a few operations is off by at most `gamma sum |term|`, gamma = (n_s + 32) u, with
u the unit roundoff: n_s for the sum over strategies, 32 for scaling the data, evaluating a curve and the constants of
`size`. Sums over clients are compensated (Neumaier), so their length does not enter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from feduca.program.layout import evaluate

U = 2.0**-53
OPERATIONS = 32


class Data(NamedTuple):
    """What the rounding of slacks depends on, in the problem's units."""

    demand: np.ndarray  # [N]
    base: np.ndarray  # [N] u(0)
    first: np.ndarray  # [N] u'(0)
    last: np.ndarray  # [N] u'(1)
    s: np.ndarray  # [n_s]


@njit(cache=True, error_model="numpy")
def prove(curve, s, G, parts, active, row, column, columns, linear, X, xi, lam):
    """A lower bound on the value of the scaled program (kernel.py) and a bound on its rounding, at any X >= 0, xi and lambda.

    `parts` are the moduli of what G is the difference of, added.

    That of certificate.py with z put in: `sum_k [xi_k h_k - phi*(xi_k) - xi_k g_k.x_k - nu_k column_k] - lambda.row`.
    """
    N, n_s = X.shape
    gamma = (n_s + OPERATIONS) * U
    least, off = np.full(n_s, np.inf), np.zeros(n_s)
    bound, carry, rounding = 0.0, 0.0, 0.0
    for k in range(N):
        held = min(xi[k], 1.0) if linear else xi[k]
        if not active[k]:
            held = 0.0
        low, worst, term, first = np.inf, 0.0, 0.0, 0.0
        if held > 0:
            term = held * G[k] if linear else held * (G[k] - held / 2)
            rounding += gamma * held * (parts[k] + abs(G[k]) + held)
            first = abs(evaluate(curve, k, 0.0)[1])
        for i in range(n_s):
            pull, wrong = 0.0, 0.0
            if held > 0:
                v, dv, _ = evaluate(curve, k, X[k, i])
                size = held * s[i] * (first + abs(dv))  # v, x v' and their parts are at most 2 x size / held
                pull, wrong = -held * s[i] * dv, gamma * size
                term -= held * s[i] * v + X[k, i] * pull
                rounding += 4 * X[k, i] * wrong
            if columns:
                pull += lam[i]
                wrong += gamma * abs(lam[i])
            low, worst = min(low, pull), max(worst, wrong)
            least[i], off[i] = min(least[i], pull), max(off[i], wrong)
        if columns:  # nu = -low; where pulls are off, z may be negative by that much
            term += low * column[k]
            rounding += (gamma * abs(low) + worst) * column[k]
        total = bound + term
        carry += (bound - total) + term if abs(bound) >= abs(term) else (term - total) + bound
        rounding += U * abs(term)
        bound = total
    bound += carry
    for i in range(n_s):
        multiplier = lam[i] if columns else -least[i]
        bound -= multiplier * row[i]
        rounding += (gamma * abs(multiplier) + (0.0 if columns else off[i])) * row[i]
    return bound, rounding + 2 * U * abs(bound)


@njit(cache=True, error_model="numpy")
def _primal_rounding(demand, base, first, last, s, R, sums, surplus, linear):
    n_s, N = R.shape
    gamma = (n_s + OPERATIONS) * U
    rows, rounding, residual = np.zeros(n_s), 0.0, 0.0
    for i in range(n_s):
        for k in range(N):
            rows[i] += R[i, k]
        residual = max(residual, abs(rows[i] - 1))
    for k in range(N):
        alpha, moved, column = 0.0, 0.0, 0.0
        for i in range(n_s):
            alpha += s[i] * R[i, k]
            moved += s[i] * R[i, k] * abs(rows[i] - 1)
            column += R[i, k]
        if n_s > 1:
            moved += abs(column - sums[k])
            residual = max(residual, abs(column - sums[k]))
        if demand[k] == -np.inf:
            continue
        slope = abs(first[k]) + abs(last[k])
        off = gamma * (abs(demand[k]) + abs(base[k]) + 4 * alpha * slope) + moved * slope
        slack = max(-surplus[k], 0.0)
        if surplus[k] < off:
            rounding += off if linear else off * (slack + off / 2)
    return rounding, residual


def primal_rounding(
    data: Data, R: np.ndarray, sums: np.ndarray, surplus: np.ndarray, linear: bool
) -> tuple[float, float]:
    """How far the objective at `R` may be above what was computed from `surplus[N]`, the mixed utilities less the demands;
    and how far the sums of `R` are off.

    Rounding of every slack, and what it takes to move R to where its sums (1, and `sums[N]`) are met exactly, to first order.
    Clients with a surplus beyond that have no slack and add nothing.
    """
    return _primal_rounding(*data, R, sums, surplus, linear)
