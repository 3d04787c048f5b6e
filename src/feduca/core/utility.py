"""Concave utility families: what a client says about how its utility depends on its aggregation weight.

A family is a set of concave curves `u(r; zeta)` on [0, 1] (paper, section 3.2: "any concave parametric family is
admissible"). It fits curves to measured points, evaluates them with two derivatives, and inverts them. Everything is
vectorised over clients: `zeta` is `[K, size]`, `r` is `[K]` or `[..., K]`.

    Quadratic   u = -a r^2 + b r + c, the paper's; three numbers
    Spline      concave cubic spline on fixed knots; follows plateaus and cliffs that no parabola can
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from feduca.errors import InputError
from feduca.types import Floats, UtilityFamily

A_FLOOR = 1e-4  # least curvature parameter a that a fit reports, on the [0, 1] scale of accuracies
FLAT = 1e-20  # weighted variance of a curve below which R^2 says nothing


@cache
def _legendre(n: int) -> tuple[Floats, Floats]:
    x, w = np.polynomial.legendre.leggauss(n)
    return (x + 1) / 2, w / 2


def nodes(n: int) -> tuple[Floats, Floats]:
    """`n` Gauss-Legendre nodes on [0, 1] and their weights (which sum to 1).

    A fit under r ~ U(0, 1) is an L2 projection; n nodes integrate polynomials of degree 2n - 1 exactly, so a handful of
    forward passes stands in for a dense uniform grid.
    """
    if n < 1:
        raise InputError(f"nodes must be at least 1, not {n}: ask for 3 or more to fit a parabola")
    r, w = _legendre(int(n))
    return r.copy(), w.copy()


def r_squared(family: UtilityFamily, zeta: Floats, r: Floats, u: Floats, weights: Floats | None = None) -> Floats:
    """R^2 `[K]` of the fitted curves at `r[M]` against `u[K, M]`; NaN for a flat curve, where it is undefined.

    Use a denser grid than the fit: three nodes interpolate a parabola and would always score 1.
    """
    r, u = np.asarray(r, float), np.atleast_2d(np.asarray(u, float))
    w = np.full(len(r), 1 / len(r)) if weights is None else np.asarray(weights, float) / np.sum(weights)
    fitted = family.value(zeta, np.broadcast_to(r[:, None], u.T.shape)).T
    residual = ((u - fitted) ** 2) @ w
    total = ((u - (u @ w)[:, None]) ** 2) @ w
    return np.where(total > FLAT, 1 - residual / np.where(total > FLAT, total, 1.0), np.nan)


def _first_bad(zeta: Floats, names: tuple[str, ...]) -> str | None:
    """The complaint about the first parameter that is not a finite number."""
    if np.isfinite(zeta).all():
        return None
    k, j = np.argwhere(~np.isfinite(zeta))[0]
    return f"client {k}: {names[j]} = {zeta[k, j]} is not a finite number; report finite curve parameters"


# ---------------------------------------------------------------------------------------------------------------------
# The paper's family


@dataclass(frozen=True)
class Quadratic:
    """`u = -a r^2 + b r + c`, `zeta = (a, b, c)`, `a > 0` (paper, appendix on implementation details)."""

    name: str = "quadratic"
    size: int = 3

    def fit(self, r: Floats, u: Floats, weights: Floats) -> Floats:
        """Weighted least squares; where `a` would fall below its floor it is set there and `b`, `c` are fitted again."""
        r, u = np.asarray(r, float), np.atleast_2d(np.asarray(u, float))
        root = np.sqrt(np.asarray(weights, float))
        design = np.stack([-(r**2), r, np.ones_like(r)], axis=1)
        zeta = (u * root) @ np.linalg.pinv(design * root[:, None]).T
        low = ~(zeta[:, 0] >= A_FLOOR)
        if low.any():
            line = np.linalg.pinv(design[:, 1:] * root[:, None])
            zeta[low, 0] = A_FLOOR
            zeta[low, 1:] = ((u[low] - A_FLOOR * design[:, 0]) * root) @ line.T
        return zeta

    def value(self, zeta: Floats, r: Floats) -> Floats:
        a, b, c = np.asarray(zeta, float).T
        return (b - a * r) * r + c

    def slope(self, zeta: Floats, r: Floats) -> Floats:
        a, b, _ = np.asarray(zeta, float).T
        return b - 2 * a * r

    def curvature(self, zeta: Floats, r: Floats) -> Floats:
        return np.zeros(np.shape(r)) - 2 * np.asarray(zeta, float)[:, 0]

    def interval(self, zeta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
        a, b, c = np.asarray(zeta, float).T
        need = np.asarray(gamma, float) - c  # a r^2 - b r + need <= 0
        free = need == -np.inf
        need = np.where(free, 0.0, need)
        disc = b * b - 4 * a * need
        # The root with the larger modulus has no cancellation; the other follows from their product, need / a.
        q = (b + np.copysign(np.sqrt(np.maximum(disc, 0.0)), b)) / 2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            one, two = q / a, np.where(q == 0, 0.0, need / q)
        lo, hi = np.minimum(one, two), np.maximum(one, two)
        empty = (disc < 0) | (hi < 0) | (lo > 1) | np.isnan(need)
        lo, hi = np.where(free, 0.0, np.clip(lo, 0, 1)), np.where(free, 1.0, np.clip(hi, 0, 1))
        empty &= ~free
        return np.where(empty, np.nan, lo), np.where(empty, np.nan, hi)

    def problem(self, zeta: Floats) -> str | None:
        complaint = _first_bad(zeta, ("a", "b", "c"))
        if complaint is None and (zeta[:, 0] <= 0).any():
            k = int(np.argmax(zeta[:, 0] <= 0))
            complaint = f"client {k}: a = {zeta[k, 0]} must be positive (a concave curve); fit with a >= {A_FLOOR}"
        return complaint


# ---------------------------------------------------------------------------------------------------------------------
# A richer one


KNOTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Spline:
    """Concave cubic spline: `-u''` is the piecewise-linear interpolant of `w_j >= 0` at fixed knots.

    `zeta = (u(0), u'(0), w_0, ..., w_J)`. Concave exactly where all `w_j >= 0`, twice continuously differentiable (what
    the interior-point solver needs), and a strict superset of the parabolas: `w_j = 2 a`. Large `w_j` at one knot and
    small ones beside it give the smoothed piecewise-linear shapes that accuracies take.
    """

    name: str = "spline"
    knots: tuple[float, ...] = KNOTS

    @property
    def size(self) -> int:
        return 2 + len(self.knots)

    def pieces(self, zeta: Floats) -> tuple[Floats, Floats]:
        """The same curves as local cubics: `knots[J+1]` and `coefficients[K, J, 4]` of powers of `r - knot_j`."""
        zeta, knots = np.asarray(zeta, float), np.asarray(self.knots)
        h = np.diff(knots)
        w = zeta[:, 2:]
        cubic = (w[:, :-1] - w[:, 1:]) / (6 * h)
        coefficients = np.empty((len(zeta), len(h), 4))
        value, slope = zeta[:, 0], zeta[:, 1]
        for j, step in enumerate(h):
            coefficients[:, j] = np.stack([value, slope, -w[:, j] / 2, cubic[:, j]], axis=1)
            value, slope = (
                value + step * (slope + step * (-w[:, j] / 2 + step * cubic[:, j])),
                slope + step * (-w[:, j] + 3 * step * cubic[:, j]),
            )
        return knots, coefficients

    def _local(self, zeta: Floats, r: Floats) -> tuple[Floats, Floats]:
        """Local coordinate and coefficients `[..., K, 4]` at `r`."""
        knots, coefficients = self.pieces(zeta)
        r = np.broadcast_to(r, np.broadcast_shapes(np.shape(r), (len(coefficients),)))
        j = np.clip(np.searchsorted(knots, r, side="right") - 1, 0, len(knots) - 2)
        return r - knots[j], coefficients[np.arange(len(coefficients)), j]

    def value(self, zeta: Floats, r: Floats) -> Floats:
        d, c = self._local(zeta, r)
        return c[..., 0] + d * (c[..., 1] + d * (c[..., 2] + d * c[..., 3]))

    def slope(self, zeta: Floats, r: Floats) -> Floats:
        d, c = self._local(zeta, r)
        return c[..., 1] + d * (2 * c[..., 2] + 3 * d * c[..., 3])

    def curvature(self, zeta: Floats, r: Floats) -> Floats:
        d, c = self._local(zeta, r)
        return 2 * c[..., 2] + 6 * d * c[..., 3]

    def fit(self, r: Floats, u: Floats, weights: Floats) -> Floats:
        """Weighted least squares with `w_j >= 2 A_FLOOR`, by non-negative least squares.

        `u(0)` and `u'(0)` are free: they are projected out first. A whisper of smoothing on the `w_j` decides between
        equally good fits when there are fewer nodes than parameters.
        """
        from scipy.optimize import nnls  # here: importing it costs more than most solves

        r, u = np.asarray(r, float), np.atleast_2d(np.asarray(u, float))
        root = np.sqrt(np.asarray(weights, float))
        size = self.size - 2
        unit = np.concatenate([np.zeros((size, 2)), np.eye(size)], axis=1)
        bumps = self.value(unit, np.broadcast_to(r[:, None], (len(r), size))) * root[:, None]  # [M, size]
        line = np.stack([np.ones_like(r), r], axis=1) * root[:, None]
        solve_line = np.linalg.pinv(line)
        rest = bumps - line @ (solve_line @ bumps)
        smooth = 1e-5 * np.diff(np.eye(size), axis=0)
        design = np.concatenate([rest, smooth])
        floor = np.full(size, 2 * A_FLOOR)
        zeta = np.empty((len(u), self.size))
        for k, curve in enumerate(u * root):
            target = curve - bumps @ floor
            target = np.concatenate([target - line @ (solve_line @ target), np.zeros(size - 1)])
            w = floor + nnls(design, target)[0]
            zeta[k] = np.concatenate([solve_line @ (curve - bumps @ w), w])
        return zeta

    def interval(self, zeta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
        return concave_interval(self, zeta, gamma)

    def problem(self, zeta: Floats) -> str | None:
        names = ("u(0)", "u'(0)", *(f"w_{j}" for j in range(len(self.knots))))
        complaint = _first_bad(zeta, names)
        if complaint is None and (zeta[:, 2:] < 0).any():
            k, j = np.argwhere(zeta[:, 2:] < 0)[0]
            complaint = f"client {k}: w_{j} = {zeta[k, 2 + j]} must not be negative (the curve would not be concave)"
        return complaint


def peaks(family: UtilityFamily, zeta: Floats) -> Floats:
    """Where in [0, 1] each client's utility is largest, `[K]`, by bisection on the slope."""
    zeta = np.asarray(zeta, float)
    left, right = np.zeros(len(zeta)), np.ones(len(zeta))
    for _ in range(60):
        middle = (left + right) / 2
        rising = family.slope(zeta, middle) > 0
        left, right = np.where(rising, middle, left), np.where(rising, right, middle)
    peak = (left + right) / 2
    peak = np.where(family.slope(zeta, np.ones(len(zeta))) >= 0, 1.0, peak)
    return np.where(family.slope(zeta, np.zeros(len(zeta))) <= 0, 0.0, peak)


def concave_interval(family: UtilityFamily, zeta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
    """`{r in [0, 1] : u(r) >= gamma}` of any concave family, by bisection from the peak to both crossings."""
    zeta, gamma = np.asarray(zeta, float), np.asarray(gamma, float)
    peak = peaks(family, zeta)
    empty = ~(family.value(zeta, peak) >= gamma)
    ends = []
    for end in (np.zeros(len(zeta)), np.ones(len(zeta))):
        outside, inside = end, peak  # u(outside) < gamma <= u(inside) is kept
        for _ in range(60):
            middle = (outside + inside) / 2
            good = family.value(zeta, middle) >= gamma
            outside, inside = np.where(good, outside, middle), np.where(good, middle, inside)
        inside = np.where(family.value(zeta, end) >= gamma, end, inside)
        ends.append(np.where(empty, np.nan, inside))
    return ends[0], ends[1]


families: dict[str, UtilityFamily] = {"quadratic": Quadratic(), "spline": Spline()}


def family(name: str | UtilityFamily) -> UtilityFamily:
    """The family of that name; a family object passes through."""
    if not isinstance(name, str):
        return name
    if name not in families:
        raise InputError(f"there is no utility family {name!r}: choose one of {', '.join(families)}")
    return families[name]
