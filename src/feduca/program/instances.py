"""Random participation programs, ordinary and degenerate: what tests and benchmarks solve."""

from __future__ import annotations

from typing import Any

import numpy as np

from feduca.core.utility import Quadratic
from feduca.types import Floats

KINDS = ("feasible", "previous", "inflated", "hopeless", "silent", "rare", "flat", "outside", "everything")
DEGENERATE_KINDS = ("rare", "flat", "everything")


def strategies_with_sums(n_s: int, n: int, rng: np.random.Generator, spread: float) -> Floats:
    """A random `R` with the row and column sums of the program, by alternate scaling."""
    R = np.exp(spread * rng.standard_normal((n_s, n)))
    for _ in range(300):
        R /= R.sum(1, keepdims=True)
        R *= n_s / n / R.sum(0)
    return R / R.sum(1, keepdims=True)


def draw(kind: str, n: int, n_s: int, seed: int, delta: float = 0.5) -> dict[str, Any]:
    """Keyword arguments `zeta, gamma, s` for `allocate`.

    feasible    thresholds from a random R, a little lowered: zero slack is reachable
    previous    thresholds at random earlier weights, as in a round of FedUCA
    inflated    the same, asking for more than there is
    hopeless    some clients want more than their curve ever gives
    silent      some clients demand nothing (minus infinity)
    rare        one strategy has all the probability but 1e-12
    flat        some curves are straight lines but for a = 1e-9
    outside     peaks far outside [0, 1]
    everything  the last four at once
    """
    rng = np.random.default_rng([seed, n, n_s, KINDS.index(kind)])
    wild = kind == "everything"
    s = np.ones(1) if n_s == 1 else rng.dirichlet(np.full(n_s, delta))
    if n_s > 1 and (kind == "rare" or wild):
        s = np.full(n_s, 1e-12)
        s[rng.integers(n_s)] = 1.0
    s /= s.sum()
    a = np.exp(rng.uniform(np.log(0.05), np.log(3.0), n))
    peak = rng.uniform(-0.2, 1.2, n)
    if kind == "outside" or wild:
        peak = rng.choice([-1, 1], n) * rng.uniform(1.5, 20, n)
    b = 2 * a * peak
    if kind == "flat" or wild:
        straight = rng.random(n) < 0.5
        a = np.where(straight, 1e-9, a)
    zeta = np.stack([a, b, rng.uniform(0.2, 0.6, n)], axis=1)
    curves = Quadratic()
    if kind == "feasible":
        R = strategies_with_sums(n_s, n, rng, 0.7) if n_s > 1 else rng.dirichlet(np.ones(n))[None]
        gamma = s @ curves.value(zeta, R) - 0.1 * np.std(b) / n
    else:
        gamma = curves.value(zeta, rng.dirichlet(np.ones(n)))
    if kind == "inflated":
        gamma = gamma + (0.5 * np.abs(b) + 0.2 * np.abs(gamma)) / n
    if kind == "hopeless":
        gamma = np.where(rng.random(n) < 0.3, zeta[:, 2] + b**2 / (4 * a) + 0.5, gamma)
    if kind == "silent" or wild:
        gamma = np.where(rng.random(n) < 0.4, -np.inf, gamma)
    return {"zeta": zeta, "gamma": gamma, "s": s}
