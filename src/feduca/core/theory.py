"""The paper's analysis as functions of measured or assumed numbers.

docs/theory.md goes through every statement: what holds, under which conditions, and what the corrected form is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from feduca.core.utility import family as family_of
from feduca.errors import InputError
from feduca.types import Floats, UtilityFamily

# ---------------------------------------------------------------------------------------------------------------------
# Jensen's gap


def jensen_gaps(family: str | UtilityFamily, zeta: Any, R: Any, s: Any) -> Floats:
    """`J_k(s) = u_k(sum_i s_i r_k^i) - sum_i s_i u_k(r_k^i) >= 0` for every client (paper, Eq. 8), `[N]`."""
    curves = family_of(family)
    zeta, R, s = np.asarray(zeta, float), np.atleast_2d(np.asarray(R, float)), np.asarray(s, float)
    return curves.value(zeta, s @ R) - s @ curves.value(zeta, R)


def jensen_ceiling(family: str | UtilityFamily, zeta: Any, top: Any = 1.0) -> Floats:
    """An upper bound `M_J[N]` on Jensen's gap of weights in `[0, top]`: `max |u''| top^2 / 8`.

    `J <= max|u''|/2 Var_s(r)`, and a variable in `[0, top]` has variance at most `top^2/4`. With column sums `top` is
    `min(1, n_s beta_k)`. For the quadratic this is `a top^2 / 4`: below 1 for accuracies, but not by definition.
    """
    curves = family_of(family)
    zeta = np.asarray(zeta, float)
    top = np.broadcast_to(np.asarray(top, float), (len(zeta),))
    grid = np.linspace(0.0, 1.0, 257)[:, None] * top
    return -curves.curvature(zeta, grid).min(axis=0) * top**2 / 8


def paley_zygmund(mean: float, t: float, *, second_moment: float | None = None, ceiling: float | None = None) -> float:
    """A lower bound on `P(J > t)` for a non-negative J with that mean: `(E J - t)^2 / E[J^2]`.

    Without the second moment, `E[J^2] <= M_J E[J]` for `J <= M_J` (`ceiling`). 0 where `t` is not below the mean.
    """
    if second_moment is None and ceiling is None:
        raise InputError("paley_zygmund needs second_moment or ceiling; both were None, give one")
    moment = second_moment if second_moment is not None else float(ceiling or 0.0) * mean
    if t >= mean or moment <= 0:
        return 0.0
    return float((mean - max(t, 0.0)) ** 2 / moment)


# ---------------------------------------------------------------------------------------------------------------------
# Aggregation discrepancy


def discrepancy(alpha: Any, beta: Any = None) -> float:
    """`||alpha - beta||^2`, with beta uniform by default."""
    alpha = np.asarray(alpha, float)
    target = np.full(len(alpha), 1 / len(alpha)) if beta is None else np.asarray(beta, float)
    return float(((alpha - target) ** 2).sum())


def discrepancy_bounds(n_s: int, N: int, delta: float, s: Any = None, beta: Any = None) -> tuple[float, float]:
    """Bounds on the discrepancy: in expectation over `s ~ Dir(delta 1)`, and for this very `s`.

    With column sums `n_s beta`, `alpha - beta = R^T (s - 1/n_s)`, and `||R||_2^2 <= ||R||_1 ||R||_inf = n_s max(beta)`
    for any feasible R, also one that depends on s. Hence `n_s max(beta) ||s - 1/n_s||^2` for a given s (never above the
    paper's `(n_s - 1)/N` for uniform beta), and `max(beta) (n_s - 1)/(n_s delta + 1)` in expectation. Without `s` the
    second number is the worst case over s. For n_s = 1, or where a fallback gave the column sums up, nothing better
    than the diameter of the simplex holds; n_s = 1 returns that.
    """
    target = np.full(N, 1 / N) if beta is None else np.asarray(beta, float)
    if n_s == 1:
        trivial = float(1 - 2 * target.min() + target @ target)
        return trivial, trivial
    top = float(target.max())
    spread = 1 - 1 / n_s if s is None else float(((np.asarray(s, float) - 1 / n_s) ** 2).sum())
    return top * (n_s - 1) / (n_s * delta + 1), n_s * top * spread


# ---------------------------------------------------------------------------------------------------------------------
# Convergence


def cohort_and_staleness(joined: Any) -> tuple[int, int]:
    """The smallest cohort `S` and the largest staleness `nu_max` that a run showed, from `joined[T, N]`.

    A client that joins in a round has staleness 0 there, one that last joined `n` rounds before has `n`; a client that
    never joined counts from before the first round.
    """
    joined = np.atleast_2d(np.asarray(joined, bool))
    if joined.size == 0:
        raise InputError(f"joined has shape {joined.shape}; give one row of participation per round")
    rounds = np.arange(1, len(joined) + 1)[:, None]
    last = np.maximum.accumulate(np.where(joined, rounds, 0), axis=0)
    return int(joined.sum(axis=1).min()), int((rounds - last).max())


@dataclass(frozen=True)
class Constants:
    """What the convergence bound depends on; `S`, `nu_max`, `discrepancy` and `alpha_norm` can be measured."""

    L: float  # smoothness of every f_k
    sigma2: float  # variance of a stochastic gradient
    sigma_g2: float  # bound on ||grad f_k - grad f||^2
    G: float  # bound on ||grad f_k||^2
    D0: float  # f(theta^0) - f*
    eta_c: float  # client learning rate
    eta_s: float  # server learning rate
    tau: int  # local SGD steps (not epochs)
    T: int  # rounds
    N: int  # clients
    n_s: int  # strategies
    S: int  # smallest cohort
    nu_max: int  # largest staleness
    discrepancy: float  # mean over rounds of ||beta - alpha^t||^2
    alpha_norm: float  # mean over rounds of ||alpha^t||^2
    columns: bool = True  # whether the column sums held in every round
    K: float | None = None  # the paper's undefined K; N is the reading under which its step-size condition can hold

    @property
    def eta(self) -> float:
        return self.eta_s * self.eta_c


@dataclass(frozen=True)
class Terms:
    """The five parts of the bound on the mean of `||grad f||^2`."""

    init: float
    agg: float
    var: float
    drift: float
    sys: float

    @property
    def total(self) -> float:
        return self.init + self.agg + self.var + self.drift + self.sys


def printed_terms(c: Constants) -> Terms:
    """The five terms as the paper prints them (last proposition of its appendix)."""
    K = float(c.N if c.K is None else c.K)
    total2 = c.sigma2 + c.sigma_g2 + c.G
    absent = c.N - c.S
    local = c.eta_c**2 * total2 * c.tau * (c.tau - 1)
    psi = 3 * c.L * c.tau**2 * c.eta**2 * (c.sigma_g2 * (1 + c.N * absent) + c.N * absent * c.G)
    omega = (
        4.5 * c.eta * c.tau * c.L**2 * local * (1 + absent)
        + 3 * c.L**3 * c.tau**2 * c.eta**2 * local * (3 + c.N * absent)
        + 18 * c.L**2 * c.eta**3 * c.tau**3 * c.nu_max**2 * c.N * absent * total2
    )
    scale = 8 * K / (c.eta * c.tau * c.S)
    return Terms(
        init=scale * c.D0 / c.T,
        agg=12 * K * c.N * c.G / c.S * c.discrepancy,
        var=8 * K * c.L * c.eta * c.sigma2 / c.S * c.alpha_norm,
        drift=scale * omega,
        sys=scale * (psi + c.eta * absent * c.N * c.sigma2) + 8 * K * c.L * c.eta * c.sigma2 * c.N * absent / c.S,
    )


def corrected_terms(c: Constants) -> Terms:
    """The five terms with the proof repaired; needs `L eta tau <= 1/48` and weights fixed before the round's training.

    `cap = sum_k sup alpha_k` (at most `min(N, n_s)` with column sums, else N) replaces the paper's N (N - S): current
    weights and remembered updates are not independent, so only what holds for all weights may leave the expectation.
    Second moments of stochastic gradients are `sigma2 + G`. No factor K/S is needed. Derivation: docs/theory.md.
    """
    if c.L * c.eta * c.tau > 1 / 48:
        raise InputError(
            f"L * eta * tau = {c.L * c.eta * c.tau:.3g} is above 1/48, where the bound says nothing; lower a learning rate"
        )
    moment = c.sigma2 + c.G
    cap = 0.0 if c.S == c.N else float(min(c.N, c.n_s) if c.columns and c.n_s > 1 else c.N)
    moving = float(min(c.N, c.n_s) if c.columns and c.n_s > 1 else c.N)
    local = c.L**2 * c.eta_c**2 * moment * (c.tau - 1) * (2 * c.tau - 1) / 6
    stale = cap * (2 * c.L**2 * c.eta**2 * c.tau**2 * c.nu_max**2 * moving * moment + 2 * local)
    step = c.L * c.tau * c.eta
    return Terms(
        init=8 * c.D0 / (c.eta * c.tau * c.T),
        agg=12 * c.N * c.sigma_g2 * c.discrepancy,
        var=16 * c.L * c.eta * c.sigma2 * c.alpha_norm,
        drift=12 * (local + stale) + 48 * step * local,
        sys=8 * cap * c.sigma2 / c.tau + 8 * step * (6 * c.sigma_g2 + cap * moment),
    )
