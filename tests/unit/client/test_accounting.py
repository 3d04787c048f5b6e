"""The accountant against others: Google's, numbers computed from the definition, and what a Gaussian costs exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from feduca.client import accounting
from feduca.errors import ConfigError

# Rate, noise, steps, delta, and epsilon by dp-accounting 0.6.0: RdpAccountant with the whole numbers of our orders (between them
# it interpolates), and PLDAccountant, which is next to exact. It cannot be installed beside us, as it wants attrs < 24: what it
# said stands here.
GOOGLE = [
    (0.1, 1.1, 300, 1e-4, 10.343812, 9.075327),
    (0.01, 0.8, 2000, 1e-5, 4.926211, 4.293444),
    (0.5, 4.0, 60, 1e-4, 4.195687, 3.793461),
    (1.0, 10.0, 300, 1e-3, 6.999106, 6.283929),
    (0.2, 1.5, 30, 1e-4, 3.966178, 3.436563),
    (256 / 4800, 2.0, 570, 1 / 48000, 3.068438, 2.791129),
    (0.02, 6.0, 1000, 1e-6, 0.46374, 0.427593),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "rdp", "exact"), GOOGLE)
def test_google_says_the_same(rate, noise, steps, delta, rdp, exact):
    ours = accounting.epsilon(accounting.curve(rate, noise, steps), delta)
    whole = np.array([order == int(order) for order in accounting.ORDERS])
    known = np.where(whole, accounting.curve(rate, noise, steps), np.inf)
    assert accounting.epsilon(known, delta) == pytest.approx(rdp, rel=1e-5)
    assert ours <= rdp * (1 + 1e-5)
    assert exact < ours < 1.2 * exact  # an upper bound, and not a wild one


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.1), (0.5, 4.0), (0.01, 0.8)])
@pytest.mark.parametrize("order", [2.25, 4.0, 11.0, 32.0])
def test_curves_are_the_integral_they_stand_for(rate, noise, order):
    """E over N(0, noise^2) of ((1 - q) + q p1 / p0)^order: the divergence of a noisy sum with one example more, by quadrature."""

    def density(x):
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
        return math.exp(order * ratio + norm.logpdf(x, scale=noise))

    peak = order  # at most there
    value, _ = quad(density, -12 * noise, peak + 12 * noise, points=[0, peak], limit=500, epsrel=1e-11)
    at = accounting.ORDERS.index(order)
    assert accounting.curve(rate, noise)[at] == pytest.approx(math.log(value) / (order - 1), rel=1e-5)


def test_a_plain_gaussian_costs_no_less_than_its_exact_curve():
    """Balle and Wang's formula for one release of sensitivity 1."""
    for noise, delta in ((2.0, 1e-4), (5.0, 1e-3)):

        def over(eps, noise=noise, delta=delta):
            a, b = 1 / (2 * noise), eps * noise
            return norm.cdf(a - b) - math.exp(eps) * norm.cdf(-a - b) - delta

        exact = brentq(over, 1e-6, 50)
        ours = accounting.epsilon(accounting.curve(1.0, noise), delta)
        assert exact < ours < 1.25 * exact


def test_curves_add_up_whatever_came_before():
    one, other = accounting.curve(0.1, 2.0, 50), accounting.curve(0.3, 4.0, 20)
    both = accounting.epsilon(one + other, 1e-4)
    assert both > max(accounting.epsilon(one, 1e-4), accounting.epsilon(other, 1e-4))
    assert accounting.epsilon(0 * one, 1e-4) == 0
    np.testing.assert_array_equal(one, 50 * accounting.curve(0.1, 2.0))


@pytest.mark.parametrize(("budget", "rate", "steps"), [(1.0, 1.0, 30), (3.0, 0.1, 300), (8.0, 0.25, 60)])
def test_the_noise_that_is_found_is_the_least(budget, rate, steps):
    noise = accounting.least_noise(budget, 1e-4, rate, steps)
    assert accounting.epsilon(accounting.curve(rate, noise, steps), 1e-4) <= budget
    assert accounting.epsilon(accounting.curve(rate, noise - 5e-4, steps), 1e-4) > budget


def test_fewer_than_no_steps_are_refused():
    with pytest.raises(ConfigError, match="would give privacy back"):
        accounting.curve(0.1, 1.0, -3)
    assert not accounting.curve(0.1, 1.0, 0).any()
