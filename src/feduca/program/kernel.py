"""The compiled part of the structured solver: a primal-dual interior-point method in O(N n_s^2) per iteration.

Scaled program (structured.py does the scaling), client-major, `X[k, i] = N R_ik`, all quantities in units of kappa * utility:

    minimise sum_k phi(t_k) + rho_k/2 ||X_k - start_k||^2
    s.t.     h_k(X_k) <= t_k for the active k,  sum_k X_ki = row_i,  sum_i X_ki = column_k,  X >= 0
    with     h_k(x) = G_k - sum_i s_i v_k(x_i),   v_k concave, v_k(0) = 0

With multipliers xi (demands), lambda (rows), nu (columns), z (signs), g = grad h, c = diag hess h, and w = t - h:

    xi g + lambda + nu - z + rho (x - start) = 0,   x z = mu,   xi w = mu,   and   t = xi          (squared)
                                                                         or  t eta = mu, eta = 1 - xi   (linear)

In both cases a Newton step moves `dt = off + q dxi`, with q = 1, off = 0 or q = t/eta, so t is eliminated client by
client (eta is carried along because 1 - xi would lose its digits as xi nears 1). With D = xi c + z/x + rho, E = 1/D,
den = w + q xi and theta = xi/den, the step of a client given dlambda is

    dx = P (r - dlambda),   P v = E (v - vbar) - e f (e.v),   vbar = sum(E v)/sum(E)
    e = E (g - gbar),       f = theta/(1 + theta sum e (g - gbar))

(centring by the weighted means is the elimination of nu; it also avoids the cancellation of the textbook formula), and the
row sums leave one n_s x n_s system (sum_k P_k) dlambda = sum_k P_k r_k. Without columns nothing is centred.

Why compiled loops: at N = 10 the whole solve is about as long as twenty numpy calls, and at N = 100 000 fused loops touch
memory a few times per iteration where array expressions touch it dozens of times. Loops are serial. A family
enters through `evaluate(curve, k, x)`, overloaded on the type of `curve` and inlined by the compiler.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

REACHED, EXHAUSTED, STALLED, BROKEN = 0, 1, 2, 3

# The overloads live in this file because numba's cache notices changes in this file only.


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


@njit(cache=True, error_model="numpy")
def _linearise(curve, s, G, active, X, h, g, c):
    """h[k], g[k, i], c[k, i] at X."""
    for k in range(X.shape[0]):
        total = 0.0
        for i in range(X.shape[1]):
            if active[k]:
                v, dv, ddv = evaluate(curve, k, X[k, i])
                total += s[i] * v
                g[k, i] = -s[i] * dv
                c[k, i] = max(-s[i] * ddv, 0.0)
            else:
                g[k, i] = 0.0
                c[k, i] = 0.0
        h[k] = G[k] - total if active[k] else -1.0


@njit(cache=True, error_model="numpy")
def _factor(M, L, keep):
    """Cholesky of a small positive semidefinite matrix, scaled to unit diagonal; a vanishing pivot freezes its direction."""
    n = M.shape[0]
    for j in range(n):
        keep[j] = 1.0 / np.sqrt(M[j, j]) if M[j, j] > 0 else 0.0
    for j in range(n):
        pivot = M[j, j] * keep[j] * keep[j]
        for m in range(j):
            pivot -= L[j, m] * L[j, m]
        if pivot > 1e-15:
            L[j, j] = np.sqrt(pivot)
            for i in range(j + 1, n):
                entry = M[i, j] * keep[i] * keep[j]
                for m in range(j):
                    entry -= L[i, m] * L[j, m]
                L[i, j] = entry / L[j, j]
        else:
            keep[j] = 0.0
            L[j, j] = 1.0
            for i in range(j + 1, n):
                L[i, j] = 0.0
            for m in range(j):
                L[j, m] = 0.0


@njit(cache=True, error_model="numpy")
def _backsolve(L, keep, b, x):
    n = L.shape[0]
    for i in range(n):
        entry = b[i] * keep[i]
        for m in range(i):
            entry -= L[i, m] * x[m]
        x[i] = entry / L[i, i]
    for i in range(n - 1, -1, -1):
        entry = x[i]
        for m in range(i + 1, n):
            entry -= L[m, i] * x[m]
        x[i] = entry / L[i, i]
    for i in range(n):
        x[i] *= keep[i]


@njit(cache=True, error_model="numpy")
def follow(
    curve,
    s,
    G,
    active,
    X,
    row,
    column,
    start,
    rho,
    columns,
    linear,
    centre,
    goal,
    relative_goal,
    mu_stop,
    careful,
    limit,
):
    """Follow the central path from X (feasible, positive, overwritten) until the gap meets its goal.

    Returns `X, xi, lambda, primal, gap, iterations, code` of the best point; `gap` is rigorous for the program with its
    rho term. With `centre`, stops only once mu <= mu_stop, and then removes what is left of unequal products.
    """
    N, n_s = X.shape
    regular = rho.max() > 0
    h, xi, eta, w, nu, t = np.empty(N), np.zeros(N), np.ones(N), np.ones(N), np.zeros(N), np.zeros(N)
    dxi, dw, dt, f, es = np.zeros(N), np.zeros(N), np.zeros(N), np.empty(N), np.empty(N)
    Z, dX, dZ = np.empty((N, n_s)), np.zeros((N, n_s)), np.zeros((N, n_s))
    g, c, E, e = np.empty((N, n_s)), np.empty((N, n_s)), np.empty((N, n_s)), np.empty((N, n_s))
    lam, dlam, rhs, rows, least = np.zeros(n_s), np.zeros(n_s), np.zeros(n_s), np.zeros(n_s), np.zeros(n_s)
    M, L, keep = np.zeros((n_s, n_s)), np.zeros((n_s, n_s)), np.zeros(n_s)
    best_X, best_xi, best_lam = X.copy(), xi.copy(), lam.copy()
    best_gap, best_primal, progress = np.inf, np.inf, np.inf

    _linearise(curve, s, G, active, X, h, g, c)

    # mu_0 has to balance xi (g - gbar), or the first steps are a crawl.
    mu = 1e-2
    for i in range(n_s):
        for k in range(N):
            least[i] += g[k, i] / N
    products = 0
    for k in range(N):
        products += n_s
        if active[k]:
            products += 2 if linear else 1
            mean = 0.0
            for i in range(n_s):
                mean += g[k, i] / n_s
            if h[k] > 0:
                for i in range(n_s):
                    size = (1.0 if linear else h[k]) * abs(g[k, i] - (mean if columns else least[i]))
                    mu = max(mu, (10.0 if careful else 1.0) * size)
    for k in range(N):
        if active[k]:
            if linear:
                root = np.sqrt(h[k] * h[k] + 4 * mu * mu)
                w[k] = 2 * mu * h[k] / (h[k] - 2 * mu + root) if h[k] > 2 * mu else (2 * mu - h[k] + root) / 2
                t[k] = w[k] + h[k]
                xi[k] = mu / w[k]
                eta[k] = mu / t[k]
            else:
                root = np.sqrt(h[k] * h[k] + 4 * mu)
                xi[k] = (h[k] + root) / 2 if h[k] > 0 else 2 * mu / (root - h[k])
                t[k] = xi[k]
                w[k] = t[k] - h[k]
        for i in range(n_s):
            Z[k, i] = mu / X[k, i]

    last_step = 1.0
    centring, since_progress, code, iterations = 0, 0, EXHAUSTED, 0
    target = 0.0
    for iteration in range(limit):
        iterations = iteration
        # --- Where we are: residuals, products, certificate, and the Schur complement ---------------------------------
        for i in range(n_s):
            rows[i], rhs[i], least[i] = 0.0, 0.0, np.inf
            for j in range(n_s):
                M[i, j] = 0.0
        if not columns:
            for k in range(N):
                for i in range(n_s):
                    least[i] = min(least[i], xi[k] * g[k, i] + rho[k] * (X[k, i] - start[k]))
        primal, gap, complementarity, smallest, largest = 0.0, 0.0, 0.0, np.inf, 0.0
        for k in range(N):
            low, total, es_k, eg = np.inf, 0.0, 0.0, 0.0
            for i in range(n_s):
                x = X[k, i]
                pull = xi[k] * g[k, i] + lam[i] + rho[k] * (x - start[k])
                low = min(low, pull)
                total += x
                rows[i] += x
                product = x * Z[k, i]
                complementarity += product
                smallest, largest = min(smallest, product), max(largest, product)
                E[k, i] = 1.0 / (xi[k] * c[k, i] + Z[k, i] / x + rho[k])
                es_k += E[k, i]
                eg += E[k, i] * g[k, i]
            es[k] = es_k
            for i in range(n_s):
                pull = xi[k] * g[k, i] + lam[i] + rho[k] * (X[k, i] - start[k])
                gap += X[k, i] * (pull - low if columns else pull - lam[i] - least[i])
            if columns:
                gap += low * (total - column[k])
            theta = 0.0
            if active[k]:
                excess = max(h[k], 0.0)
                if linear:
                    primal += excess
                    gap += excess - xi[k] * h[k]
                    product = t[k] * eta[k]
                    complementarity += product
                    smallest, largest = min(smallest, product), max(largest, product)
                    theta = xi[k] / (w[k] + xi[k] * t[k] / eta[k])
                else:
                    primal += excess * excess / 2
                    gap += (excess - xi[k]) * (excess + xi[k]) / 2 + xi[k] * (xi[k] - h[k])
                    theta = xi[k] / (w[k] + xi[k])
                product = xi[k] * w[k]
                complementarity += product
                smallest, largest = min(smallest, product), max(largest, product)
            gbar = eg / es_k if columns else 0.0
            gg = 0.0
            for i in range(n_s):
                e[k, i] = E[k, i] * (g[k, i] - gbar)
                gg += e[k, i] * (g[k, i] - gbar)
            f[k] = theta / (1 + theta * gg)
            for i in range(n_s):
                M[i, i] += E[k, i]
                for j in range(i + 1):
                    entry = e[k, i] * f[k] * e[k, j]
                    if columns:
                        entry += E[k, i] * E[k, j] / es_k
                    M[i, j] -= entry
        trace = 0.0
        for i in range(n_s):
            trace += M[i, i]
            gap -= (lam[i] if columns else -least[i]) * (rows[i] - row[i])
            for j in range(i):
                M[j, i] = M[i, j]
        if columns:  # singular along 1: shifting all lambda is undone by nu
            for i in range(n_s):
                for j in range(n_s):
                    M[i, j] += trace / n_s / n_s
        for i in range(n_s):
            M[i, i] += 1e-15 * trace
        mu = complementarity / products
        if not (np.isfinite(gap) and np.isfinite(trace)):
            code = BROKEN
            break
        proved = gap if regular else min(gap, primal)  # zero multipliers prove zero slack optimal
        good = proved <= max(goal, relative_goal * primal) and mu <= mu_stop
        if gap < best_gap or good:
            if gap < 0.9 * progress:  # not than a step ago: many small steps are progress, too
                progress, since_progress = gap, 0
            best_gap, best_primal = gap, primal
            best_X[:] = X
            best_xi[:] = xi
            best_lam[:] = lam
        since_progress += 1
        if good:
            if not centre or (centring > 0 and largest - smallest <= 1e-6 * mu) or centring >= 12:
                code = REACHED
                break
            if centring == 0:
                target = mu
            centring += 1
        elif centring > 0:  # rounding took over
            code = REACHED
            break
        if since_progress > 15 and iteration > 30:
            code = STALLED
            break

        # --- Predictor (pure Newton) and corrector (recentred, second order); while centring, one plain step ----------
        _factor(M, L, keep)
        short = last_step < 0.3
        sigma, second_order, step, tau = 0.0, 0.0, 1.0, 1.0
        for phase in range(2):
            if phase == 0 and centring > 0:
                continue
            if phase == 1:
                if centring > 0:
                    sigma = target / mu
                else:
                    after = 0.0
                    for k in range(N):
                        bend = 0.0
                        for i in range(n_s):
                            bend += c[k, i] * dX[k, i] * dX[k, i] / 2
                            after += (X[k, i] + step * dX[k, i]) * (Z[k, i] + step * dZ[k, i])
                        if active[k]:
                            after += (xi[k] + step * dxi[k]) * (w[k] + step * dw[k] - step * step * bend)
                            if linear:
                                after += (t[k] + step * dt[k]) * (eta[k] - step * dxi[k])
                    sigma = min(1.0, max(1e-6, (max(after, 0.0) / products / mu) ** 3))
                    if short:
                        sigma = max(sigma, 0.5)
                    if smallest < 1e-4 * mu:
                        sigma = max(sigma, 0.1)
                    second_order = 0.0 if (short or step < 0.1 or careful) else 1.0
                    if careful:
                        sigma = 0.2
                tau = 0.9 if careful else min(max(0.9, 1 - mu), 0.9995)
            # Right-hand sides; dX holds P r, dZ and dxi the complementarity residuals until the step is known.
            for i in range(n_s):
                rhs[i] = rows[i] - row[i]
            for k in range(N):
                q, off, bend = 1.0, 0.0, 0.0
                if phase == 1 and second_order > 0:
                    for i in range(n_s):
                        bend += c[k, i] * dX[k, i] * dX[k, i] / 2
                r2, scaled = 0.0, 0.0
                if active[k]:
                    r2 = sigma * mu - xi[k] * w[k] - second_order * (dxi[k] * dw[k] - xi[k] * bend)
                    if linear:
                        q = t[k] / eta[k]
                        off = (sigma * mu - t[k] * eta[k] + second_order * dxi[k] * dt[k]) / eta[k]
                        r2 -= xi[k] * off
                    scaled = r2 / (w[k] + q * xi[k])
                qe, qg, total = 0.0, 0.0, 0.0
                for i in range(n_s):
                    x, z = X[k, i], Z[k, i]
                    r1 = sigma * mu - x * z - second_order * dX[k, i] * dZ[k, i]
                    dual = xi[k] * g[k, i] + lam[i] + rho[k] * (x - start[k]) + nu[k] - z
                    r = r1 / x - dual - g[k, i] * scaled
                    dX[k, i] = r
                    dZ[k, i] = r1
                    qe += E[k, i] * r
                    qg += e[k, i] * r
                    total += x
                mean = qe / es[k] if columns else 0.0
                missing = (column[k] - total) / es[k] if columns else 0.0
                for i in range(n_s):
                    dX[k, i] = E[k, i] * (dX[k, i] - mean + missing) - e[k, i] * f[k] * qg
                    rhs[i] += dX[k, i]
                dxi[k] = r2
                dt[k] = off
            _backsolve(L, keep, rhs, dlam)
            if columns:
                mean = 0.0
                for i in range(n_s):
                    mean += dlam[i] / n_s
                for i in range(n_s):
                    dlam[i] -= mean
            # Directions and the longest step that keeps everything positive.
            step = 1.0
            for k in range(N):
                qe, qg = 0.0, 0.0
                for i in range(n_s):
                    qe += E[k, i] * dlam[i]
                    qg += e[k, i] * dlam[i]
                mean = qe / es[k] if columns else 0.0
                gdx, bend = 0.0, 0.0
                for i in range(n_s):
                    dx = dX[k, i] - E[k, i] * (dlam[i] - mean) + e[k, i] * f[k] * qg
                    dz = (dZ[k, i] - Z[k, i] * dx) / X[k, i]
                    dX[k, i] = dx
                    dZ[k, i] = dz
                    gdx += g[k, i] * dx
                    bend += c[k, i] * dx * dx / 2
                    if dx < 0:
                        step = min(step, -tau * X[k, i] / dx)
                    if dz < 0:
                        step = min(step, -tau * Z[k, i] / dz)
                if active[k]:
                    q = t[k] / eta[k] if linear else 1.0
                    dxi[k] = (dxi[k] + xi[k] * gdx) / (w[k] + q * xi[k])
                    dt[k] += q * dxi[k]
                    dw[k] = dt[k] - gdx
                    if dxi[k] < 0:
                        step = min(step, -tau * xi[k] / dxi[k])
                    if linear:
                        if dxi[k] > 0:
                            step = min(step, tau * eta[k] / dxi[k])
                        if dt[k] < 0:
                            step = min(step, -tau * t[k] / dt[k])
                    # w + step dw - step^2 bend >= (1 - tau) w, exact for a parabola
                    below = np.sqrt(dw[k] * dw[k] + 4 * bend * tau * w[k]) - dw[k]
                    if below > 0:
                        step = min(step, 2 * tau * w[k] / below)
        # --- Step. w = t - h is recomputed, not updated; curves that are not parabolas may call for a shorter step -----
        for k in range(N):
            xi[k] += step * dxi[k] if active[k] else 0.0
            if linear:
                eta[k] -= step * dxi[k]
                t[k] += step * dt[k]
            else:
                t[k] = xi[k]
            for i in range(n_s):
                X[k, i] += step * dX[k, i]
                Z[k, i] += step * dZ[k, i]
        for i in range(n_s):
            lam[i] += step * dlam[i]
        _linearise(curve, s, G, active, X, h, g, c)
        for _ in range(40):
            inside = True
            for k in range(N):
                if active[k] and not (t[k] - h[k] > 1e-3 * (1 - tau) * w[k]):
                    inside = False
                    break
            if inside:
                break
            step /= 2
            for k in range(N):
                if active[k]:
                    xi[k] -= step * dxi[k]
                    eta[k] += step * dxi[k]
                    t[k] = t[k] - step * dt[k] if linear else xi[k]
                for i in range(n_s):
                    X[k, i] -= step * dX[k, i]
                    Z[k, i] -= step * dZ[k, i]
            for i in range(n_s):
                lam[i] -= step * dlam[i]
            _linearise(curve, s, G, active, X, h, g, c)
        for k in range(N):
            if active[k]:
                w[k] = max(t[k] - h[k], 1e-300)
            if columns:  # the nu that leaves the least weighted residual
                pull, weight = 0.0, 0.0
                for i in range(n_s):
                    E_i = 1.0 / (xi[k] * c[k, i] + Z[k, i] / X[k, i] + rho[k])
                    pull += E_i * (xi[k] * g[k, i] + lam[i] + rho[k] * (X[k, i] - start[k]) - Z[k, i])
                    weight += E_i
                nu[k] = -pull / weight
        last_step = step
        if step < 1e-10:
            code = REACHED if centring > 0 else STALLED
            break
    return best_X, best_xi, best_lam, best_primal, best_gap, iterations, code
