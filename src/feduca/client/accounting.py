"""What noisy training and noisy answers cost: Rényi differential privacy, computed by opacus.

A *curve* holds the Rényi divergence at every order of `ORDERS`. Curves of successive releases are added, whatever rate and noise
each had: that sum is all that has to be remembered, and a budget that is spent stays spent. A curve becomes an epsilon, at a
delta, only where somebody asks. The epsilon is an upper bound, some ten per cent above what is exact for this noise.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from feduca.errors import ConfigError
from feduca.types import Floats

ORDERS = (1.5, *(x / 4 for x in range(7, 44)), *range(11, 64), 80, 96, 128, 192, 256, 512, 1024)
LOUD = 30.0  # noise beyond which only whole orders are computed: the others' series are long there
UNKNOWN = 1e30  # at any other order: an upper bound
LEAST, MOST = 0.2, 1e6  # noise multipliers that are tried
FINE = 1e-4  # a noise multiplier that is found is a multiple of this


def _opacus():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            from opacus.accountants.analysis import rdp
    except ImportError:
        raise ConfigError(
            "privacy.dp needs the package opacus to account for what is spent; pip install 'feduca[privacy]'"
        ) from None
    return rdp


@functools.lru_cache(maxsize=4096)
def _step(rate: float, noise: float) -> Floats:
    """The curve of one noisy sum over examples that were drawn by lot, each with the chance `rate`."""
    orders = np.array([order for order in ORDERS if noise < LOUD or order == int(order)])
    found = np.full(len(ORDERS), UNKNOWN)
    found[np.isin(ORDERS, orders)] = _opacus().compute_rdp(
        q=rate, noise_multiplier=noise, steps=1, orders=orders.tolist()
    )
    found.setflags(write=False)
    return found


def curve(rate: float, noise: float, steps: int = 1) -> Floats:
    """The curve of `steps` noisy sums of clipped gradients; of noisy counts with `rate` 1."""
    _check(steps)
    return steps * _step(float(rate), float(noise))


def _check(steps: int) -> None:
    if steps < 0:
        raise ConfigError(f"{steps} steps of training would give privacy back; ask for 0 or more")


def epsilon(spent: Floats, delta: float) -> float:
    """What a curve means at `delta`; 0 where nothing was spent."""
    if not np.any(spent):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or last: the bound holds all the same
        return float(_opacus().get_privacy_spent(orders=list(ORDERS), rdp=spent.tolist(), delta=delta)[0])


@functools.lru_cache(maxsize=4096)
def least_noise(budget: float, delta: float, rate: float, steps: int) -> float:
    """The least noise multiplier with which so many steps fit the budget."""
    _check(steps)

    def over(log_noise: float) -> float:
        return math.log(max(epsilon(curve(rate, math.exp(log_noise), steps), delta), 1e-12) / budget)

    about = math.log(min(max(rate * math.sqrt(2 * steps * math.log(1 / delta)) / budget, 2 * LEAST), MOST / 2))
    low, high = about - math.log(2), about + math.log(2)  # where central limits would have it
    low = low if over(low) > 0 else math.log(LEAST)
    high = high if over(high) <= 0 else math.log(MOST)
    if over(low) <= 0:
        return LEAST
    if over(high) > 0:
        raise ConfigError(
            f"privacy.epsilon is {budget:g}: no noise makes {steps} steps fit it at delta {delta:.2g}; give more"
        )
    from scipy.optimize import brentq

    root: Any = brentq(over, low, high, xtol=FINE / 10)
    found = math.ceil(math.exp(root) / FINE) * FINE
    while epsilon(curve(rate, found, steps), delta) > budget:
        found += FINE
    return round(found, 4)
