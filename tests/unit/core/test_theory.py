"""The analysis: identities by hand, bounds by simulation, and counterexamples to what does not hold."""

import numpy as np
import pytest

from feduca.core.theory import (
    Constants,
    cohort_and_staleness,
    corrected_terms,
    discrepancy,
    discrepancy_bounds,
    jensen_ceiling,
    jensen_gaps,
    paley_zygmund,
    printed_terms,
)
from feduca.core.utility import Quadratic, Spline
from feduca.errors import InputError
from feduca.program import allocate
from feduca.program.instances import draw, strategies_with_sums

RNG = np.random.default_rng(0)


def test_jensen_gap_of_a_parabola_is_a_times_the_variance():
    zeta = np.array([[2.0, 1.0, 0.3], [0.5, 0.0, 0.1]])
    R, s = np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([0.25, 0.75])
    variance = s @ R**2 - (s @ R) ** 2
    np.testing.assert_allclose(jensen_gaps("quadratic", zeta, R, s), zeta[:, 0] * variance, rtol=1e-12)


@pytest.mark.parametrize("family", [Quadratic(), Spline()])
def test_jensen_gap_is_between_zero_and_its_ceiling(family):
    for _ in range(200):
        zeta = RNG.uniform(0.01, 3, (6, family.size))
        s = RNG.dirichlet(np.ones(4))
        R = strategies_with_sums(4, 6, RNG, 2.0)
        gaps = jensen_gaps(family, zeta, R, s)
        assert gaps.min() >= -1e-12
        assert (gaps <= jensen_ceiling(family, zeta, min(1, 4 / 6)) + 1e-12).all()


def test_paley_zygmund_holds_and_the_printed_moment_does_not():
    """J = X^2 with a skewed X: the bound with E[J^2] holds everywhere; with E[J]^2 it fails."""
    J = RNG.exponential(1, 200_000) ** 2
    mean, second = J.mean(), (J**2).mean()
    broken = 0
    for share in np.linspace(0, 0.99, 50):
        true = (share * mean < J).mean()
        assert true >= paley_zygmund(mean, share * mean, second_moment=second)
        broken += true < (mean - share * mean) ** 2 / mean**2
    assert broken > 0
    bounded = np.minimum(J, 3.0)
    for t in (0.1, 0.5, 1.0):
        assert (bounded > t).mean() >= paley_zygmund(bounded.mean(), t, ceiling=3.0)
    assert paley_zygmund(0.5, 0.6, ceiling=1.0) == 0
    with pytest.raises(InputError, match="second_moment or ceiling"):
        paley_zygmund(0.5, 0.1)


def test_discrepancy_bounds_hold_for_weights_that_depend_on_s():
    n, n_s, delta = 10, 5, 0.5
    seen = []
    for seed in range(150):
        p = draw("previous", n, n_s, seed, delta)
        A = allocate(**p)
        seen.append(discrepancy(A.alpha))
        expected, pointwise = discrepancy_bounds(n_s, n, delta, p["s"])
        assert seen[-1] <= pointwise + 1e-12
        assert pointwise <= (n_s - 1) / n + 1e-12
    assert expected == pytest.approx((n_s - 1) / (n * (n_s * delta + 1)))
    assert np.mean(seen) <= expected


def test_pointwise_bound_is_tight_and_extends_to_beta():
    """s at a vertex, the first strategy held by N/n_s clients with n_s/N each."""
    alpha = np.array([0.5, 0.5, 0, 0])
    assert discrepancy(alpha) == pytest.approx(discrepancy_bounds(2, 4, 1.0)[1]) == pytest.approx(0.25)
    beta = np.array([0.4, 0.3, 0.2, 0.1])
    for seed in range(50):
        p = draw("inflated", 4, 3, seed)
        A = allocate(**p, beta=beta)
        assert discrepancy(A.alpha, beta) <= discrepancy_bounds(3, 4, 0.5, p["s"], beta)[1] + 1e-12


def test_single_strategy_has_no_such_bound():
    """The printed bound would be 0 for n_s = 1; the weights move all the same."""
    p = draw("inflated", 4, 1, 0)
    moved = discrepancy(allocate(**p).alpha)
    assert moved > 1e-3
    assert moved <= discrepancy_bounds(1, 4, 0.5)[1]


def test_closed_form_of_the_kkt_proposition_is_false():
    """u_k(r_ik) = s_i / sum s_j^2 (gamma_k - t_k) is far off at a certified optimum where t_k > 0."""
    p = draw("inflated", 6, 3, 0, delta=1.0)
    A = allocate(**p)
    hard = A.slack > 1e-4
    assert hard.any()
    said = p["s"][:, None] / (p["s"] ** 2).sum() * (p["gamma"] - A.slack)
    true = Quadratic().value(p["zeta"], A.R)
    assert np.abs(said - true)[:, hard].max() > 0.1
    np.testing.assert_allclose((p["s"] @ true)[hard], (p["gamma"] - A.slack)[hard], atol=1e-12)  # what does hold


def test_a_single_vector_satisfies_whom_a_mixture_satisfies():
    for seed in range(60):
        p = draw("previous", 7, 4, seed)
        A = allocate(**p)
        mixed = p["s"] @ Quadratic().value(p["zeta"], A.R) >= p["gamma"]
        single = Quadratic().value(p["zeta"], A.alpha) >= p["gamma"] - 1e-12
        assert (single | ~mixed).all()


def test_cohort_and_staleness():
    joined = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 0, 1]], bool)
    assert cohort_and_staleness(joined) == (1, 3)
    assert cohort_and_staleness([[0, 1], [0, 1]]) == (1, 2)
    with pytest.raises(InputError, match="shape"):
        cohort_and_staleness(np.zeros((0, 3)))


CASE = Constants(1, 0.1, 0.2, 1, 2, 0.002, 1, 5, 100, 10, 5, 6, 3, 0.01, 0.11)


def test_printed_terms_by_hand():
    terms = printed_terms(CASE)
    assert terms.init == pytest.approx(8 * 10 * 2 / (0.002 * 5 * 6 * 100))
    assert terms.agg == pytest.approx(12 * 10 * 10 * 1 / 6 * 0.01)
    assert terms.var == pytest.approx(8 * 10 * 0.002 * 0.1 / 6 * 0.11)
    total2, local = 1.3, 0.002**2 * 1.3 * 20
    omega = 4.5 * 0.01 * local * 5 + 3 * 25 * 0.002**2 * local * 43 + 18 * 0.002**3 * 125 * 9 * 40 * total2
    assert terms.drift == pytest.approx(8 * 10 / (0.01 * 6) * omega)
    psi = 3 * 25 * 0.002**2 * (0.2 * 41 + 40)
    assert terms.sys == pytest.approx(8 * 10 / (0.01 * 6) * (psi + 0.002 * 40 * 0.1) + 8 * 10 * 0.002 * 0.1 * 40 / 6)


def test_corrected_terms_refuse_long_steps():
    from dataclasses import replace

    with pytest.raises(InputError, match="above 1/48"):
        corrected_terms(replace(CASE, eta_c=1.0))
    full = corrected_terms(replace(CASE, S=10))
    assert full.sys == pytest.approx(8 * 0.01 * 6 * 0.2)  # nobody stale: no staleness terms


def test_corrected_bound_holds_in_a_simulation():
    """Quadratic clients, noisy local SGD, random participation and weights, stale updates: the bound must cover it."""
    rng = np.random.default_rng(2)
    n, d, tau, T, eta_c, sigma = 6, 3, 4, 60, 0.005, 0.3
    centres = rng.normal(0, 1, (n, d))
    for n_s in (1, 3):
        theta, remembered = np.full(d, 2.0), np.zeros((n, d))
        start = 0.5 * ((theta - centres) ** 2).sum(1).mean()
        best = 0.5 * ((centres.mean(0) - centres) ** 2).sum(1).mean()
        grads, G, joined, gaps, norms = [], 0.0, [], [], []
        for t in range(T):
            s = rng.dirichlet(np.ones(n_s))
            R = strategies_with_sums(n_s, n, rng, 1.0) if n_s > 1 else rng.dirichlet(np.ones(n))[None]
            alpha = s @ R
            present = rng.random(n) < (1.0 if t == 0 else 0.6)
            present[rng.integers(n)] = True
            grads.append(((theta - centres.mean(0)) ** 2).sum())
            for k in np.flatnonzero(present):
                local, total = theta.copy(), np.zeros(d)
                for _ in range(tau):
                    G = max(G, ((local - centres[k]) ** 2).sum())
                    step = local - centres[k] + rng.normal(0, sigma / np.sqrt(d), d)
                    local, total = local - eta_c * step, total + step
                remembered[k] = total / tau
            joined.append(present)
            gaps.append(discrepancy(alpha))
            norms.append((alpha**2).sum())
            theta = theta - eta_c * tau * alpha @ remembered
        S, nu = cohort_and_staleness(joined)
        spread = ((centres - centres.mean(0)) ** 2).sum(1).max()
        c = Constants(
            1, sigma**2, spread, G, start - best, eta_c, 1.0, tau, T, n, n_s, S, nu, np.mean(gaps), np.mean(norms)
        )
        bound = corrected_terms(c)
        assert np.mean(grads) <= bound.total
        assert bound.init < bound.total
