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
enters through `evaluate(curve, k, x)` (layout.py), overloaded on the type of `curve` and inlined by the compiler.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from feduca.program.cholesky import backsolve, factor
from feduca.program.layout import LOOP, Aim, Best, Local, Point, Program, Rows, Step, evaluate

# A part of an iteration goes into the code that calls it: handing over its named tuples would take as long as a small solve.
_part = njit(forceinline=True, **LOOP)

REACHED, EXHAUSTED, STALLED, BROKEN = 0, 1, 2, 3

# numba's cache notices changes of this file only: touch it when layout.py or cholesky.py change.


@_part
def _linearise(p, X, local):
    """h[k], g[k, i], c[k, i] at X."""
    h, g, c = local.h, local.g, local.c
    curve, s, active = p.curve, p.s, p.active
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
        h[k] = p.G[k] - total if active[k] else -1.0


@_part
def _first_mu(p, local, least, careful):
    """The complementarity to begin with, and the number of products. It has to balance xi (g - gbar), or the path is a crawl."""
    N, n_s = local.g.shape
    mu = 1e-2
    for i in range(n_s):
        for k in range(N):
            least[i] += local.g[k, i] / N
    products = 0
    for k in range(N):
        products += n_s
        if p.active[k]:
            products += 2 if p.linear else 1
            mean = 0.0
            for i in range(n_s):
                mean += local.g[k, i] / n_s
            if local.h[k] > 0:
                for i in range(n_s):
                    size = (1.0 if p.linear else local.h[k]) * abs(local.g[k, i] - (mean if p.columns else least[i]))
                    mu = max(mu, (10.0 if careful else 1.0) * size)
    return mu, products


@_part
def _begin(p, at, h, mu):
    """Multipliers and slack on the central path at `mu`, for the X there is."""
    for k in range(at.X.shape[0]):
        if p.active[k]:
            if p.linear:
                root = np.sqrt(h[k] * h[k] + 4 * mu * mu)
                at.w[k] = 2 * mu * h[k] / (h[k] - 2 * mu + root) if h[k] > 2 * mu else (2 * mu - h[k] + root) / 2
                at.t[k] = at.w[k] + h[k]
                at.xi[k] = mu / at.w[k]
                at.eta[k] = mu / at.t[k]
            else:
                root = np.sqrt(h[k] * h[k] + 4 * mu)
                at.xi[k] = (h[k] + root) / 2 if h[k] > 0 else 2 * mu / (root - h[k])
                at.t[k] = at.xi[k]
                at.w[k] = at.t[k] - h[k]
        for i in range(at.X.shape[1]):
            at.Z[k, i] = mu / at.X[k, i]


@_part
def _assess(p, at, local, rows):
    """Objective, proved gap, products (sum, least, largest) and the trace of M, which is set up on the way."""
    X, Z, xi, eta, t, w, lam = at.X, at.Z, at.xi, at.eta, at.t, at.w, at.lam
    h, g, c, E, e, f = local.h, local.g, local.c, local.E, local.e, local.f
    M, sums, least = rows.M, rows.sums, rows.least
    rho, start, columns = p.rho, p.start, p.columns
    N, n_s = X.shape
    for i in range(n_s):
        sums[i], rows.rhs[i], least[i] = 0.0, 0.0, np.inf
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
            sums[i] += x
            product = x * Z[k, i]
            complementarity += product
            smallest, largest = min(smallest, product), max(largest, product)
            E[k, i] = 1.0 / (xi[k] * c[k, i] + Z[k, i] / x + rho[k])
            es_k += E[k, i]
            eg += E[k, i] * g[k, i]
        local.total[k] = es_k
        for i in range(n_s):
            pull = xi[k] * g[k, i] + lam[i] + rho[k] * (X[k, i] - start[k])
            gap += X[k, i] * (pull - low if columns else pull - lam[i] - least[i])
        if columns:
            gap += low * (total - p.column[k])
        theta = 0.0
        if p.active[k]:
            excess = max(h[k], 0.0)
            if p.linear:
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
        gap -= (lam[i] if columns else -least[i]) * (sums[i] - p.row[i])
        for j in range(i):
            M[j, i] = M[i, j]
    if columns:  # singular along 1: shifting all lambda is undone by nu
        for i in range(n_s):
            for j in range(n_s):
                M[i, j] += trace / n_s / n_s
    for i in range(n_s):
        M[i, i] += 1e-15 * trace
    return primal, gap, complementarity, smallest, largest, trace


@_part
def _after(p, at, c, d, step):
    """The sum of the products after a step of the predictor, w to second order."""
    X, Z, dX, dZ, after = at.X, at.Z, d.dX, d.dZ, 0.0
    for k in range(X.shape[0]):
        bend = 0.0
        for i in range(X.shape[1]):
            bend += c[k, i] * dX[k, i] * dX[k, i] / 2
            after += (X[k, i] + step * dX[k, i]) * (Z[k, i] + step * dZ[k, i])
        if p.active[k]:
            after += (at.xi[k] + step * d.dxi[k]) * (at.w[k] + step * d.dw[k] - step * step * bend)
            if p.linear:
                after += (at.t[k] + step * d.dt[k]) * (at.eta[k] - step * d.dxi[k])
    return after


@_part
def _right_hand_sides(p, at, local, rows, d, target, second_order):
    """P r into dX, the complementarity residuals for products of `target` into dZ and dxi, and the rows' right-hand side."""
    X, Z, xi, eta, t, w = at.X, at.Z, at.xi, at.eta, at.t, at.w
    g, c, E, e = local.g, local.c, local.E, local.e
    dX, dZ, dxi, dt = d.dX, d.dZ, d.dxi, d.dt
    lam, nu, rho, start, rhs = at.lam, at.nu, p.rho, p.start, rows.rhs
    N, n_s = X.shape
    for i in range(n_s):
        rhs[i] = rows.sums[i] - p.row[i]
    for k in range(N):
        q, off, bend = 1.0, 0.0, 0.0
        if second_order > 0:
            for i in range(n_s):
                bend += c[k, i] * dX[k, i] * dX[k, i] / 2
        r2, scaled = 0.0, 0.0
        if p.active[k]:
            r2 = target - xi[k] * w[k] - second_order * (dxi[k] * d.dw[k] - xi[k] * bend)
            if p.linear:
                q = t[k] / eta[k]
                off = (target - t[k] * eta[k] + second_order * dxi[k] * dt[k]) / eta[k]
                r2 -= xi[k] * off
            scaled = r2 / (w[k] + q * xi[k])
        qe, qg, total = 0.0, 0.0, 0.0
        for i in range(n_s):
            x, z = X[k, i], Z[k, i]
            r1 = target - x * z - second_order * dX[k, i] * dZ[k, i]
            dual = xi[k] * g[k, i] + lam[i] + rho[k] * (x - start[k]) + nu[k] - z
            r = r1 / x - dual - g[k, i] * scaled
            dX[k, i] = r
            dZ[k, i] = r1
            qe += E[k, i] * r
            qg += e[k, i] * r
            total += x
        mean = qe / local.total[k] if p.columns else 0.0
        missing = (p.column[k] - total) / local.total[k] if p.columns else 0.0
        for i in range(n_s):
            dX[k, i] = E[k, i] * (dX[k, i] - mean + missing) - e[k, i] * local.f[k] * qg
            rhs[i] += dX[k, i]
        dxi[k] = r2
        dt[k] = off


@_part
def _solve_rows(p, rows, dlam):
    """The step of the multipliers of the rows."""
    backsolve(rows.L, rows.keep, rows.rhs, dlam)
    n_s = len(dlam)
    if p.columns:
        mean = 0.0
        for i in range(n_s):
            mean += dlam[i] / n_s
        for i in range(n_s):
            dlam[i] -= mean


@_part
def _direction(p, at, local, d, tau):
    """The clients' directions given that of the rows, and the longest step that keeps everything positive."""
    X, Z, xi, eta, t, w = at.X, at.Z, at.xi, at.eta, at.t, at.w
    g, c, E, e, f = local.g, local.c, local.E, local.e, local.f
    dX, dZ, dxi, dt, dw, dlam = d.dX, d.dZ, d.dxi, d.dt, d.dw, d.dlam
    N, n_s = X.shape
    step = 1.0
    for k in range(N):
        qe, qg = 0.0, 0.0
        for i in range(n_s):
            qe += E[k, i] * dlam[i]
            qg += e[k, i] * dlam[i]
        mean = qe / local.total[k] if p.columns else 0.0
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
        if p.active[k]:
            q = t[k] / eta[k] if p.linear else 1.0
            dxi[k] = (dxi[k] + xi[k] * gdx) / (w[k] + q * xi[k])
            dt[k] += q * dxi[k]
            dw[k] = dt[k] - gdx
            if dxi[k] < 0:
                step = min(step, -tau * xi[k] / dxi[k])
            if p.linear:
                if dxi[k] > 0:
                    step = min(step, tau * eta[k] / dxi[k])
                if dt[k] < 0:
                    step = min(step, -tau * t[k] / dt[k])
            # w + step dw - step^2 bend >= (1 - tau) w, exact for a parabola
            below = np.sqrt(dw[k] * dw[k] + 4 * bend * tau * w[k]) - dw[k]
            if below > 0:
                step = min(step, 2 * tau * w[k] / below)
    return step


@_part
def _move(p, at, local, d, step, tau):
    """Take the step, and half of it back where curves that are not parabolas call for it; returns its length."""
    N, n_s = at.X.shape
    change = step
    for _ in range(41):
        for k in range(N):
            at.xi[k] += change * d.dxi[k] if p.active[k] else 0.0
            if p.linear:
                at.eta[k] -= change * d.dxi[k]
                at.t[k] += change * d.dt[k]
            else:
                at.t[k] = at.xi[k]
            for i in range(n_s):
                at.X[k, i] += change * d.dX[k, i]
                at.Z[k, i] += change * d.dZ[k, i]
        for i in range(n_s):
            at.lam[i] += change * d.dlam[i]
        _linearise(p, at.X, local)
        inside = True
        for k in range(N):
            if p.active[k] and not (at.t[k] - local.h[k] > 1e-3 * (1 - tau) * at.w[k]):
                inside = False
                break
        if inside:
            break
        step /= 2
        change = -step
    return step


@_part
def _settle(p, at, local):
    """w = t - h, recomputed and not updated, and the nu that leaves the least weighted residual."""
    X, Z, xi, lam, g, c, rho = at.X, at.Z, at.xi, at.lam, local.g, local.c, p.rho
    for k in range(X.shape[0]):
        if p.active[k]:
            at.w[k] = max(at.t[k] - local.h[k], 1e-300)
        if p.columns:
            pull, weight = 0.0, 0.0
            for i in range(X.shape[1]):
                E_i = 1.0 / (xi[k] * c[k, i] + Z[k, i] / X[k, i] + rho[k])
                here = xi[k] * g[k, i] + lam[i] + rho[k] * (X[k, i] - p.start[k]) - Z[k, i]
                pull += E_i * here
                weight += E_i
            at.nu[k] = -pull / weight


@_part
def _predict_correct(p, at, local, rows, d, mu, products, smallest, short, careful):
    """Mehrotra's step: a pure Newton step tells how far to recentre, and its second order is corrected for."""
    _right_hand_sides(p, at, local, rows, d, 0.0, 0.0)
    _solve_rows(p, rows, d.dlam)
    step = _direction(p, at, local, d, 1.0)
    after = _after(p, at, local.c, d, step)
    sigma = min(1.0, max(1e-6, (max(after, 0.0) / products / mu) ** 3))
    if short:
        sigma = max(sigma, 0.5)
    if smallest < 1e-4 * mu:
        sigma = max(sigma, 0.1)
    second_order = 0.0 if (short or step < 0.1 or careful) else 1.0
    if careful:
        sigma = 0.2
    _right_hand_sides(p, at, local, rows, d, sigma * mu, second_order)
    _solve_rows(p, rows, d.dlam)
    tau = 0.9 if careful else min(max(0.9, 1 - mu), 0.9995)
    return _direction(p, at, local, d, tau), tau


@_part
def _plain_step(p, at, local, rows, d, target, mu, careful):
    """One Newton step towards products of `target`."""
    _right_hand_sides(p, at, local, rows, d, target / mu * mu, 0.0)
    _solve_rows(p, rows, d.dlam)
    tau = 0.9 if careful else min(max(0.9, 1 - mu), 0.9995)
    return _direction(p, at, local, d, tau), tau


def follow(p: Program, aim: Aim, X: np.ndarray) -> tuple:
    """Follow the central path of `p` from X (feasible, positive, overwritten) until the gap meets its goal.

    Returns `X, xi, lambda, primal, gap, iterations, code` of the best point; `gap` is rigorous for the program with its
    rho term. With `aim.centre`, stops only once mu <= aim.mu, and then removes what is left of unequal products.
    """
    return _enter(*p, *aim, X)  # compiled code takes named tuples from Python slowly, compared with a small solve


@njit(cache=True, error_model="numpy")
def _enter(
    curve, s, G, active, row, column, start, rho, columns, linear, goal, relative, mu, centre, careful, limit, X
):  # fmt: skip
    """Everything that is computed on the way is allocated here, once."""
    N, n_s = X.shape
    zeros = np.zeros
    p = Program(curve, s, G, active, row, column, start, rho, columns, linear)
    at = Point(X, np.empty((N, n_s)), zeros(N), np.ones(N), zeros(N), np.ones(N), zeros(N), zeros(n_s))
    d = Step(zeros((N, n_s)), zeros((N, n_s)), zeros(N), zeros(N), zeros(N), zeros(n_s))
    local = Local(
        np.empty(N), np.empty((N, n_s)), np.empty((N, n_s)), np.empty((N, n_s)), np.empty((N, n_s)), np.empty(N), np.empty(N)
    )  # fmt: skip
    rows = Rows(zeros((n_s, n_s)), zeros((n_s, n_s)), zeros(n_s), zeros(n_s), zeros(n_s), zeros(n_s))
    best = Best(X.copy(), zeros(N), zeros(n_s))
    primal, gap, iterations, code = _follow(
        p, Aim(goal, relative, mu, centre, careful, limit), at, d, local, rows, best
    )
    return best.X, best.xi, best.lam, primal, gap, iterations, code


@_part
def _keep(at, best):
    """The point as the best so far."""
    for k in range(at.X.shape[0]):
        best.xi[k] = at.xi[k]
        for i in range(at.X.shape[1]):
            best.X[k, i] = at.X[k, i]
    for i in range(at.X.shape[1]):
        best.lam[i] = at.lam[i]


@njit(**LOOP)
def _follow(p, aim, at, d, local, rows, best):
    regular = False
    for k in range(at.X.shape[0]):
        regular = regular or p.rho[k] > 0
    best_gap, best_primal, progress = np.inf, np.inf, np.inf
    _linearise(p, at.X, local)
    mu, products = _first_mu(p, local, rows.least, aim.careful)
    _begin(p, at, local.h, mu)
    centring, since_progress, code, iterations = 0, 0, EXHAUSTED, 0
    last_step, target = 1.0, 0.0
    for iteration in range(aim.limit):
        iterations = iteration
        primal, gap, complementarity, smallest, largest, trace = _assess(p, at, local, rows)
        mu = complementarity / products
        if not (np.isfinite(gap) and np.isfinite(trace)):
            code = BROKEN
            break
        proved = gap if regular else min(gap, primal)  # zero multipliers prove zero slack optimal
        good = proved <= max(aim.goal, aim.relative * primal) and mu <= aim.mu
        if gap < best_gap or good:
            if gap < 0.9 * progress:  # not than a step ago: many small steps are progress, too
                progress, since_progress = gap, 0
            best_gap, best_primal = gap, primal
            _keep(at, best)
        since_progress += 1
        if good:
            if not aim.centre or (centring > 0 and largest - smallest <= 1e-6 * mu) or centring >= 12:
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
        factor(rows.M, rows.L, rows.keep)
        if centring > 0:
            step, tau = _plain_step(p, at, local, rows, d, target, mu, aim.careful)
        else:
            short = last_step < 0.3
            step, tau = _predict_correct(p, at, local, rows, d, mu, products, smallest, short, aim.careful)
        last_step = _move(p, at, local, d, step, tau)
        _settle(p, at, local)
        if last_step < 1e-10:
            code = REACHED if centring > 0 else STALLED
            break
    return best_primal, best_gap, iterations, code
