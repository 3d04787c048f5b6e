"""Weights of a mixture of predictions: the point of the simplex with the highest likelihood, with a certificate.

    minimise over w >= 0, sum w = 1:   L(w) = - sum_i a_i log(sum_m p_im w_m),   sum_i a_i = 1

L is convex. Because g_m(w) = sum_i a_i p_im / (p_i w) satisfies w g = 1 everywhere, adding sum w in place of the constraint
has the same minimum, and a primal-dual interior-point method then needs one M x M system per step (M is two to four here). For
any w on the simplex L(w) - L* <= log max_m g_m: that is the certificate, and the iteration ends when it says 1e-9.
"""

from __future__ import annotations

import numpy as np

from feduca.types import Floats

GAP = 1e-9  # of the mean log-likelihood
STEPS = 100  # about 15 are taken


def likeliest(p: Floats, a: Floats) -> tuple[Floats, Floats]:
    """For B problems at once: weights `[B, M]` of likelihoods `p[B, n, M]`, and certificates `[B]`.

    `a[B, n]` are the examples' own weights; padding has 0. A model whose column is 0 throughout gets no weight.
    """
    b, _, m = p.shape
    a = a / np.maximum(a.sum(1, keepdims=True), 1e-300)
    top = p.max(2, keepdims=True)
    p = np.where((a[:, :, None] > 0) & (top > 0), p / np.where(top > 0, top, 1.0), 1.0)  # scales of rows do not matter
    w, z = np.full((b, m), 1 / m), np.ones((b, m))
    best, gap = w, _gap(p, a, w)
    for _ in range(STEPS):
        if (gap <= GAP).all():
            break
        mu = 0.1 * (w * z).sum(1, keepdims=True) / m
        ratio = p / (p @ w[:, :, None])  # [B, n, M]
        slope = 1 - (a[:, None] @ ratio)[:, 0]
        curvature = np.swapaxes(ratio * a[:, :, None], 1, 2) @ ratio
        step = np.linalg.solve(curvature + (z / w)[:, :, None] * np.eye(m), (mu / w - slope)[:, :, None])[:, :, 0]
        dual = mu / w - z - z / w * step
        w, z = w + _length(w, step) * step, z + _length(z, dual) * dual
        found = np.where(gap > GAP, _gap(p, a, w), np.inf)  # whoever is done waits for the others and stays as it is
        best, gap = np.where((found < gap)[:, None], w, best), np.minimum(found, gap)
    return best / best.sum(1, keepdims=True), gap


def _length(at: Floats, step: Floats) -> Floats:
    """How far each problem may go and stay inside."""
    room = np.where(step < 0, -at / np.where(step < 0, step, -1.0), np.inf).min(1, keepdims=True)
    return np.minimum(1.0, 0.99 * room)


def _gap(p: Floats, a: Floats, w: Floats) -> Floats:
    w = w / w.sum(1, keepdims=True)
    return np.log(np.maximum((a[:, None] @ (p / (p @ w[:, :, None])))[:, 0].max(1), 1.0))
