"""The exact maximum against brute force over all subsets."""

import numpy as np
import pytest

from feduca.core.utility import Quadratic
from feduca.program import allocate, max_participation
from feduca.program.instances import KINDS, draw
from feduca.program.maximum import ALMOST

TOLERANCE = 1e-6


def brute_force(zeta, gamma):
    """Size of the largest set of clients that some weight vector satisfies, trying all subsets.

    Intervals come from a fine bisection-free formula of their own: numpy's roots of the parabola.
    """
    n = len(zeta)
    lo, hi = np.full(n, np.nan), np.full(n, np.nan)
    for k, ((a, b, c), g) in enumerate(zip(zeta, gamma)):
        if g == -np.inf:
            lo[k], hi[k] = 0.0, 1.0
            continue
        roots = np.roots([-a, b, c - g])
        if np.iscomplex(roots).any():
            continue
        low, high = np.sort(np.real(roots))
        if high >= 0 and low <= 1:
            lo[k], hi[k] = max(low, 0.0), min(high, 1.0)
    members = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(bool)
    members = members[~members[:, np.isnan(lo)].any(axis=1)]
    low = np.where(members, np.nan_to_num(lo), 0).sum(1)
    high = np.where(members, np.nan_to_num(hi), 1).sum(1)  # others take anything from 0 to 1
    return int(members.sum(1)[(low <= 1 + 1e-12) & (high >= 1 - 1e-12)].max())


def test_equals_brute_force_500_times():
    rng = np.random.default_rng(0)
    sizes = []
    for seed in range(500):
        n = int(rng.integers(1, 11))
        p = draw(KINDS[seed % len(KINDS)], n, 1, seed)
        if seed % 3 == 0:  # thresholds just above what earlier weights gave, where fitting in is tight
            p["gamma"] = p["gamma"] + rng.uniform(0, 0.02, n)
        best = max_participation(p["zeta"], p["gamma"])
        sizes.append(int(best.satisfied.sum()))
        assert sizes[-1] == brute_force(p["zeta"], p["gamma"] - TOLERANCE * ALMOST), seed
        assert best.alpha.min() >= 0
        assert best.alpha.sum() == pytest.approx(1, abs=1e-12)
    assert 0 in sizes or min(sizes) < 3  # the instances are not all easy
    assert max(sizes) == 10


def test_never_keeps_fewer_than_the_program():
    for seed in range(200):
        p = draw(KINDS[seed % len(KINDS)], 3 + seed % 8, 1 + seed % 5, seed)
        best = max_participation(p["zeta"], p["gamma"]).satisfied.sum()
        assert best >= allocate(**p).satisfied.sum()


def test_thresholds_at_the_previous_weights_keep_everybody():
    """Unchanged weights satisfy everyone, so the maximum is N; sums of lower ends then hit 1 to the last bit."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        n = int(rng.integers(2, 30))
        a = rng.uniform(0.1, 2, n)
        zeta = np.stack([a, 2 * a * rng.uniform(0.8, 2, n), np.full(n, 0.3)], axis=1)  # everybody wants more
        gamma = Quadratic().value(zeta, rng.dirichlet(np.ones(n)))
        assert max_participation(zeta, gamma).satisfied.all()


def test_the_rest_is_spread_as_close_to_beta_as_possible():
    """Client 0 needs at least 0.6 (u = r); the other two have no demand and share the rest equally."""
    zeta = [[1e-9, 1, 0], [1, 0, 0], [1, 0, 0]]
    best = max_participation(zeta, [0.6, None, None])
    np.testing.assert_allclose(best.alpha, [0.6, 0.2, 0.2], atol=2e-6)
    weighted = max_participation(zeta, [0.6, None, None], beta=[0.2, 0.5, 0.3])
    np.testing.assert_allclose(weighted.alpha, [0.6, 0.3, 0.1], atol=2e-6)


def test_everybody_wants_little():
    """Both want at most 0.3: one of them has to take more."""
    best = max_participation([[1e-9, -1, 1], [1e-9, -1, 1]], [0.7, 0.7])
    assert best.satisfied.sum() == 1
    assert "1 of 2 clients" in best.reason


def test_nobody_can_be_satisfied():
    best = max_participation([[1, 0, 0], [1, 0, 0]], [5, 5])
    assert not best.satisfied.any()
    np.testing.assert_allclose(best.alpha, 0.5)
    assert best.certificate.primal == best.certificate.dual == 2
