"""Utility families: fits, derivatives, inverses, and what is said about bad parameters."""

import numpy as np
import pytest

from feduca.core.utility import A_FLOOR, Quadratic, Spline, concave_interval, families, family, nodes, peaks, r_squared
from feduca.errors import InputError

RNG = np.random.default_rng(0)


def parabolas(n=7):
    a = RNG.uniform(0.05, 3.0, n)
    return np.stack([a, 2 * a * RNG.uniform(-0.2, 1.2, n), RNG.uniform(0.2, 0.6, n)], axis=1)


def splines(n=7):
    return np.concatenate(
        [RNG.uniform(0.2, 0.6, (n, 1)), RNG.uniform(-1, 3, (n, 1)), RNG.uniform(0, 6, (n, 7))], axis=1
    )


def test_nodes_integrate_polynomials_exactly():
    r, w = nodes(4)
    for degree in range(8):
        assert w @ r**degree == pytest.approx(1 / (degree + 1), rel=1e-13)
    with pytest.raises(InputError, match="at least 1, not 0"):
        nodes(0)


def test_quadratic_fit_recovers_a_parabola():
    zeta = parabolas()
    r, w = nodes(5)
    fitted = Quadratic().fit(r, Quadratic().value(zeta, r[:, None]).T, w)
    np.testing.assert_allclose(fitted, zeta, atol=1e-12)


def test_few_nodes_agree_with_a_dense_grid():
    """The projection of a smooth curve with 8 Gauss nodes equals the one on 2000 uniform points."""

    def curve(r):
        return 0.6 + 0.3 * np.tanh(6 * r) - 0.4 * r**3

    r, w = nodes(12)
    dense = (np.arange(2000) + 0.5) / 2000
    few = Quadratic().fit(r, curve(r)[None], w)
    many = Quadratic().fit(dense, curve(dense)[None], np.full(2000, 1 / 2000))
    np.testing.assert_allclose(few, many, atol=2e-3)


def test_quadratic_floor_refits_the_rest():
    """A convex curve gets a = floor, and b, c are the least-squares line through what is left."""
    r, w = nodes(6)
    u = (0.3 + 0.2 * r + 0.5 * r**2)[None]
    a, b, c = Quadratic().fit(r, u, w)[0]
    assert a == A_FLOOR
    slope, intercept = np.polyfit(r, u[0] + A_FLOOR * r**2, 1, w=np.sqrt(w))
    np.testing.assert_allclose([b, c], [slope, intercept], atol=1e-12)


def test_flat_curve_is_legal_and_has_no_r_squared():
    r, w = nodes(5)
    u = np.full((2, 5), 0.4)
    for chosen in families.values():
        zeta = chosen.fit(r, u, w)
        assert np.isnan(r_squared(chosen, zeta, r, u, w)).all()
        np.testing.assert_allclose(chosen.value(zeta, np.array([0.1, 0.9])), 0.4, atol=1e-3)


def test_r_squared_by_hand():
    r = np.array([0.0, 0.5, 1.0])
    u = np.array([[0.0, 1.0, 0.0]])
    zeta = np.array([[1e-4, 0.0, 1 / 3]])  # a flat line at the mean
    assert r_squared(Quadratic(), zeta, r, u)[0] == pytest.approx(0.0, abs=1e-3)
    assert r_squared(Quadratic(), np.array([[4.0, 4.0, 0.0]]), r, u)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(("chosen", "zeta"), [(Quadratic(), parabolas()), (Spline(), splines())])
def test_derivatives(chosen, zeta):
    r, step = RNG.uniform(0.02, 0.98, (5, len(zeta))), 1e-6
    slope = (chosen.value(zeta, r + step) - chosen.value(zeta, r - step)) / (2 * step)
    curvature = (chosen.slope(zeta, r + step) - chosen.slope(zeta, r - step)) / (2 * step)
    np.testing.assert_allclose(chosen.slope(zeta, r), slope, atol=1e-7)
    np.testing.assert_allclose(chosen.curvature(zeta, r), curvature, atol=1e-4)
    assert (chosen.curvature(zeta, r) <= 0).all()


@pytest.mark.parametrize(("chosen", "zeta"), [(Quadratic(), parabolas(40)), (Spline(), splines(40))])
def test_interval_is_where_the_curve_is_high_enough(chosen, zeta):
    grid = np.linspace(0, 1, 4001)
    gamma = RNG.uniform(0.1, 1.2, len(zeta))
    gamma[0] = -np.inf
    lo, hi = chosen.interval(zeta, gamma)
    assert (lo[0], hi[0]) == (0.0, 1.0)
    high = chosen.value(zeta, np.broadcast_to(grid[:, None], (4001, len(zeta)))) >= gamma
    for k in range(len(zeta)):
        if np.isnan(lo[k]):
            assert not high[:, k].any()
        else:
            inside = (grid >= lo[k]) & (grid <= hi[k])
            assert (high[:, k] == inside).sum() >= 4000  # a grid point on the border may round either way


def test_interval_of_nearly_straight_lines():
    zeta = np.array([[1e-9, 1.0, 0.0], [1e-9, -1.0, 1.0], [1e-9, 0.0, 0.5]])
    lo, hi = Quadratic().interval(zeta, np.array([0.25, 0.25, 0.4]))
    np.testing.assert_allclose(lo, [0.25, 0, 0], atol=1e-8)
    np.testing.assert_allclose(hi, [1, 0.75, 1], atol=1e-8)


def test_peaks():
    np.testing.assert_allclose(
        peaks(Quadratic(), np.array([[1, 1, 0], [1, -1, 0], [1, 4, 0.0]])), [0.5, 0, 1], atol=1e-12
    )


def test_general_interval_agrees_with_the_closed_form():
    zeta, gamma = parabolas(30), RNG.uniform(0.1, 0.9, 30)
    for general, closed in zip(concave_interval(Quadratic(), zeta, gamma), Quadratic().interval(zeta, gamma)):
        np.testing.assert_allclose(general, closed, atol=1e-9)


def test_spline_contains_the_parabolas():
    zeta = parabolas()
    r, w = nodes(8)
    fitted = Spline().fit(r, Quadratic().value(zeta, r[:, None]).T, w)
    np.testing.assert_allclose(fitted[:, 2:], np.broadcast_to(2 * zeta[:, :1], (7, 7)), atol=1e-4)
    grid = np.linspace(0, 1, 50)[:, None]
    np.testing.assert_allclose(Spline().value(fitted, grid), Quadratic().value(zeta, grid), atol=1e-6)


def test_spline_follows_a_plateau_that_no_parabola_can():
    r, w = nodes(12)
    grid = np.linspace(0, 1, 200)

    def curve(r):
        return 0.3 + 0.5 * np.minimum(r / 0.2, 1) - 0.3 * np.maximum(r - 0.8, 0)

    scores = {
        name: r_squared(chosen, chosen.fit(r, curve(r)[None], w), grid, curve(grid)[None])[0]
        for name, chosen in families.items()
    }
    assert scores["quadratic"] < 0.9
    assert scores["spline"] > 0.97


def test_spline_fit_of_a_convex_curve_stays_concave():
    r, w = nodes(9)
    zeta = Spline().fit(r, (r**2)[None], w)
    np.testing.assert_allclose(zeta[0, 2:], 2 * A_FLOOR, atol=1e-9)
    assert Spline().problem(zeta) is None


def test_complaints_name_the_client_and_the_value():
    assert "client 1: a = -0.5" in (Quadratic().problem(np.array([[1, 1, 1], [-0.5, 1, 1]])) or "")
    assert "client 0: b = nan" in (Quadratic().problem(np.array([[1, np.nan, 1]])) or "")
    assert "client 0: w_2 = -1.0" in (Spline().problem(np.array([[0, 0, 1, 1, -1, 1, 1, 1, 1.0]])) or "")
    with pytest.raises(InputError, match="no utility family 'cubic': choose one of quadratic, spline"):
        family("cubic")
