"""Weights of a mixture of predictions: the point of the simplex with the highest likelihood, with a certificate.

    minimise over w >= 0, sum w = 1:   L(w) = - sum_i a_i log(sum_m p_im w_m),   sum_i a_i = 1

L is convex. Because g_m(w) = sum_i a_i p_im / (p_i w) satisfies w g = 1 everywhere, adding sum w in place of the constraint
has the same minimum, and a primal-dual interior-point method then needs one M x M system per step (M is two to four here). For
any w on the simplex L(w) - L* <= log max_m g_m: that is the certificate, and the iteration ends when it says 1e-9. As g scales
with 1/w, one pass over the examples gives the certificate of a step and what the next one needs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from feduca.types import Floats

GAP = 1e-9  # of the mean log-likelihood
STEPS = 100  # about 15 are taken


def likeliest(p: Floats, a: Floats) -> tuple[Floats, Floats]:
    """For B problems: weights `[B, M]` of likelihoods `p[B, n, M]`, and certificates `[B]`.

    `a[B, n]` are the examples' own weights; padding has 0 and leaves no trace. A model whose column is 0 gets no weight.
    """
    weights, gaps = np.empty((len(p), p.shape[2])), np.empty(len(p))
    _solve(np.ascontiguousarray(p, np.float64), np.ascontiguousarray(a, np.float64), weights, gaps)
    return weights, gaps


@njit(nogil=True, cache=True)
def _solve(p, a, weights, gaps):  # pragma: no cover (compiled)
    """All problems, one after another, into `weights` and `gaps`."""
    m = p.shape[2]
    g, system = np.empty(m), np.empty((m, m))
    for k in range(len(p)):
        rows, share = _scaled(p[k], a[k])
        w, z = np.full(m, 1 / m), np.ones(m)
        gaps[k] = np.inf
        for step in range(STEPS + 1):
            _pass(rows, share, w, g, system)
            gap = np.log(max(w.sum() * g.max(), 1.0))
            if gap < gaps[k]:
                gaps[k] = gap
                weights[k] = w
            if gaps[k] <= GAP or step == STEPS:
                break
            mu = 0.1 * (w * z).sum() / m
            for j in range(m):
                system[j, j] += z[j] / w[j]
            along = np.linalg.solve(system, mu / w - (1 - g))
            dual = mu / w - z - z / w * along
            w += _length(w, along) * along
            z += _length(z, dual) * dual
        weights[k] /= weights[k].sum()


@njit(nogil=True, cache=True)
def _scaled(p, a):  # pragma: no cover (compiled)
    """Examples that count `[M, n]`, each by its largest likelihood (scales do not matter), and their shares."""
    n, m = (a > 0).sum(), p.shape[1]
    rows, share = np.ones((m, n)), np.empty(n)
    at, total = 0, a.sum()
    for i in range(len(a)):
        if a[i] > 0:
            top = p[i].max()
            if top > 0:
                rows[:, at] = p[i] / top
            share[at] = a[i] / total
            at += 1
    return rows, share


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _pass(rows, share, w, g, curvature):  # pragma: no cover (compiled)
    """The sums over examples at w: `g` and the curvature of L. Loops run along examples, several in one instruction."""
    m, n = rows.shape
    inverse, ratio = np.zeros(n), np.empty((m, n))
    for j in range(m):
        for i in range(n):
            inverse[i] += rows[j, i] * w[j]
    for i in range(n):
        inverse[i] = 1 / inverse[i]
    for j in range(m):
        total = 0.0
        for i in range(n):
            ratio[j, i] = rows[j, i] * inverse[i]
            total += share[i] * ratio[j, i]
        g[j] = total
        for other in range(j + 1):
            total = 0.0
            for i in range(n):
                total += share[i] * ratio[j, i] * ratio[other, i]
            curvature[j, other] = curvature[other, j] = total


@njit(nogil=True, cache=True)
def _length(at, step):  # pragma: no cover (compiled)
    """How far one may go and stay inside."""
    length = 1.0
    for j in range(len(at)):
        if step[j] < 0:
            length = min(length, -0.99 * at[j] / step[j])
    return length
