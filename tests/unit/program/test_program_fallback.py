"""The fallback, step by step."""

import numpy as np
import pytest

from feduca.errors import InputError
from feduca.program import allocate, fall_back, max_participation
from feduca.types import Allocation

S = np.array([0.6, 0.3, 0.1])
PREVIOUS = Allocation(np.array([0.2, 0.3, 0.5]), "optimal", R=np.tile([0.2, 0.3, 0.5], (3, 1)), s=S)


def nobody(zeta, s=S):
    """An allocation that satisfies nobody, as the program may return it."""
    n = len(zeta)
    R = np.full((len(s), n), 1 / n)
    return Allocation(s @ R, "optimal", R=R, s=s, satisfied=np.zeros(n, dtype=bool))


def run(zeta, gamma, s=S, **options):
    return fall_back(
        nobody(zeta, s), zeta, gamma, family="quadratic", previous=PREVIOUS, rng=np.random.default_rng(0), **options
    )


LINE = [1e-9, 1.0, 0.0]  # u(r) = r: who wants x needs a weight of x


def test_a_satisfied_client_means_no_fallback():
    A = nobody([LINE] * 3)
    B = fall_back(A, [LINE] * 3, [0.1, 0.9, 0.9], previous=PREVIOUS, rng=np.random.default_rng(0))
    assert B.fallback is None
    np.testing.assert_array_equal(B.satisfied, [True, False, False])


def test_tilt_keeps_the_column_sums():
    """Client 0 wants 0.5; tilted fully its column is (1, 0, 0) with mean 0.6, so it can be served."""
    B = run([LINE] * 3, [0.5, 2.0, 2.0])
    assert B.fallback == "tilt"
    assert "client 0" in B.reason
    assert B.satisfied[0]
    assert B.alpha[0] == pytest.approx(0.5, abs=2e-6)
    np.testing.assert_allclose(B.R.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(B.R.sum(1), 1, atol=1e-12)
    assert B.R.min() >= 0


def test_tilt_downwards():
    """u = 1 - r wants at least 0.85, a weight of at most 0.15; the least reachable mean is 0.1."""
    B = run([[1e-9, -1.0, 1.0], LINE, LINE], [0.85, 2.0, 2.0])
    assert B.fallback == "tilt"
    assert B.alpha[0] == pytest.approx(0.15, abs=2e-6)
    np.testing.assert_allclose(B.R.sum(0), 1, atol=1e-12)


def test_tilt_with_more_strategies_than_clients():
    """A column sum above 1 cannot sit in one strategy: entries are capped at 1."""
    s = np.array([0.5, 0.2, 0.2, 0.1])
    B = run([LINE, LINE], [0.65, 2.0], s)  # column sum 2: at most 0.5 + 0.2
    assert B.fallback == "tilt"
    assert B.R.max() <= 1 + 1e-12
    assert B.satisfied[0]
    np.testing.assert_allclose(B.R.sum(0), 2, atol=1e-12)


def test_relax_when_no_tilt_is_enough():
    """0.7 is beyond what the column sums allow (0.6): they are given up, and 0.7 + 0.25 fit together."""
    zeta, gamma = [LINE] * 3, [0.7, 0.7, 0.7]
    B = run(zeta, gamma)
    assert B.fallback == "relax"
    assert B.satisfied.sum() == max_participation(zeta, gamma).satisfied.sum() == 1
    np.testing.assert_allclose(B.R.sum(1), 1, atol=1e-12)
    assert "column sums relaxed" in B.reason


def test_single_strategy_goes_straight_to_sorting():
    B = run([LINE] * 3, [0.5, 0.45, 0.9], np.ones(1))
    assert B.fallback == "relax"
    np.testing.assert_array_equal(B.satisfied, [True, True, False])


def test_keep_when_nobody_can_be_satisfied():
    B = run([LINE] * 3, [2.0, 3.0, 4.0])
    assert B.fallback == "keep"
    np.testing.assert_array_equal(B.alpha, PREVIOUS.alpha)
    assert B.status == "fallback"
    assert "previous weights" in B.reason
    assert not B.satisfied.any()


def test_printed_gives_up_the_column_sums():
    B = run([LINE] * 3, [0.5, 2.0, 2.0], kind="printed")
    assert B.fallback == "printed"
    np.testing.assert_allclose(B.R[:, 0], 0.5, atol=2e-6)
    np.testing.assert_allclose(B.R.sum(1), 1, atol=1e-12)
    assert abs(B.R.sum(0)[0] - 1) > 0.4


def test_the_letter_draws_among_all_clients():
    """Client 0 alone can be satisfied (by .5); u = r wants more than 1 elsewhere, so that the curve's best is the weight 1."""
    drawn = {}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        B = fall_back(nobody([LINE] * 3), [LINE] * 3, [0.5, 2.0, 2.0], previous=PREVIOUS, rng=rng, kind="literal")
        k = int(np.flatnonzero(np.isclose(B.R[0], B.alpha.max()))[0])
        drawn.setdefault(k, []).append(B.alpha[k])
        assert B.fallback == "literal"
        np.testing.assert_allclose(B.R.sum(1), 1, atol=1e-12)
    assert set(drawn) == {0, 1, 2}
    assert drawn[0] == pytest.approx([0.5] * len(drawn[0]), abs=2e-6)
    assert drawn[1] == pytest.approx([1.0] * len(drawn[1]))
    # A curve with its peak inside: u = 1 - 4 (r - 1/4)^2 is highest at a quarter, which is short of 2.
    B = run([[4.0, 2.0, 0.75]] * 3, [2.0, 2.0, 2.0], kind="literal")
    assert B.alpha.min() == pytest.approx(0.25, abs=1e-6)
    assert "its curve's best" in B.reason
    assert not B.satisfied.any()
    assert run([[4.0, 2.0, 0.75]] * 3, [2.0, 2.0, 2.0], kind="printed").fallback == "keep"


def test_the_draw_is_uniform_over_those_who_can_be_satisfied():
    zeta, gamma = [LINE] * 4, [0.3, 2.0, 0.3, 0.3]
    counts = np.zeros(4)
    rng = np.random.default_rng(1)
    for _ in range(600):
        B = fall_back(nobody(zeta), zeta, gamma, previous=PREVIOUS, rng=rng)
        counts[np.argmax(B.alpha)] += 1
    assert counts[1] == 0
    assert (abs(counts[[0, 2, 3]] - 200) < 60).all()


def test_after_a_real_program():
    """Thresholds that the program cannot serve at all, but one weight vector can serve in part."""
    zeta, gamma = [LINE] * 3, [0.5, 0.5, 0.5]
    A = allocate(zeta, gamma, S)
    assert not A.satisfied.any()
    B = fall_back(A, zeta, gamma, previous=PREVIOUS, rng=np.random.default_rng(0))
    assert B.satisfied.sum() == 1


def test_bad_arguments():
    with pytest.raises(InputError, match="fallback = 'other'"):
        run([LINE] * 3, [0.5] * 3, kind="other")
    with pytest.raises(InputError, match="3 clients and zeta 2"):
        fall_back(nobody([LINE] * 3), [LINE] * 2, [1, 1], previous=PREVIOUS, rng=np.random.default_rng(0))
