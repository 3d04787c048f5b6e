"""Tolerances in units of the utilities, and certificates that claim no more than rounding allows."""

from fractions import Fraction

import numpy as np
import pytest

from feduca.core.utility import Quadratic, Spline
from feduca.program import allocate, fall_back, max_participation
from feduca.program.certificate import dual_bound
from feduca.program.instances import draw
from feduca.program.problem import make_problem
from feduca.program.scale import scale
from feduca.program.status import OPTIMAL
from feduca.types import Allocation


def test_tolerances_are_as_given_for_utilities_of_ordinary_size():
    zeta = np.array([[0.01, 0.02, 0.0], [1.0, 1.0, 0.5], [0.3, 0.0, 500.0]])
    np.testing.assert_array_equal(scale(Quadratic(), zeta, np.array([0.3, -np.inf, -999.0])), 1.0)
    assert scale(Quadratic(), zeta, np.array([0.3, 0.1, 1e6]))[2] == 1e3
    np.testing.assert_allclose(scale(Quadratic(), zeta[:1] * 1e-6, np.array([0.0])), 2e-6)
    assert scale(Spline(), np.zeros((1, Spline().size)), np.array([0.0]))[0] > 0


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("objective", ["squared", "linear", "participation"])
@pytest.mark.parametrize("selection", ["centre", "closest", "margin"])
def test_the_same_program_in_other_units_has_the_same_answer(unit, objective, selection):
    for kind in ("inflated", "feasible"):
        p = draw(kind, 6, 3, 1)
        plain = allocate(**p, selection=selection, objective=objective)
        other = allocate(p["zeta"] * unit, p["gamma"] * unit, p["s"], selection=selection, objective=objective)
        assert other.status == plain.status == OPTIMAL
        np.testing.assert_array_equal(other.satisfied, plain.satisfied)
        if objective != "participation":  # the exact maximum uses the tolerance up, which is another share of the scale
            np.testing.assert_allclose(other.slack / unit, plain.slack, atol=2e-6 if unit > 1 else 2e-4)
        assert plain.satisfied.all() == (kind == "feasible")


@pytest.mark.parametrize("solver", ["structured", "reference"])
def test_a_tenth_of_the_scale_is_not_satisfied(solver):
    """Two clients whose curves peak at 1 unit and who want 1.1 of it: nobody can be satisfied, however small the unit."""
    for unit in (1e-9, 1e-6, 1.0, 1e6):
        zeta, gamma = unit * np.array([[1, 2, 0], [1, 2, 0]]), unit * np.array([1.1, 1.1])
        answer = allocate(zeta, gamma, [0.5, 0.5], solver=solver)
        assert not answer.satisfied.any()
        np.testing.assert_allclose(answer.slack / unit, 0.35, atol=1e-4)  # u(1/2) = 3/4
        assert not max_participation(zeta, gamma).satisfied.any()
        previous = Allocation(np.array([0.5, 0.5]), "initial")
        kept = fall_back(answer, zeta, gamma, previous=previous, rng=np.random.default_rng(0))
        assert kept.fallback == "keep"
        assert not kept.satisfied.any()


def exact_objective(p, R):
    """Twice the squared objective at R in rational arithmetic, after R is moved to exact row sums (n_s = 1)."""
    r = [Fraction(float(x)) for x in R[0]]
    total, value = sum(r), Fraction(0)
    for (a, b, c), gamma, x in zip(p["zeta"], p["gamma"], r):
        x = x / total
        t = Fraction(float(gamma)) - ((Fraction(float(b)) - Fraction(float(a)) * x) * x + Fraction(float(c)))
        value += max(t, Fraction(0)) ** 2
    return value


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12])
def test_gap_covers_the_rounding_of_the_objective(large):
    for seed in range(8):
        p = draw("inflated", 6, 1, seed)
        p["zeta"][:3, 2] += large  # utilities that are large and differ little: slacks lose their digits
        p["gamma"][:3] += large
        answer = allocate(**p)
        true = exact_objective(p, answer.R) / 2
        assert Fraction(answer.certificate.dual) <= true
        assert abs(true - Fraction(answer.certificate.primal)) <= Fraction(answer.certificate.gap)
        reached = answer.certificate.gap <= 1e-9 * answer.certificate.primal
        assert (answer.status == OPTIMAL) == (reached or answer.certificate.slack_error <= 1e-6 * max(1, large / 1e3))


def exact_dual(p, R, xi, row):
    """The bound of certificate.py for n_s = 2 and uniform beta, in rational arithmetic."""
    F, n, bound = (lambda x: Fraction(float(x))), len(xi), -sum(Fraction(float(x)) for x in row)
    for k in range(n):
        a, b, c = map(F, p["zeta"][k])
        pulls, held = [], F(xi[k])
        bound += held * (F(p["gamma"][k]) - c) - held**2 / 2
        for s_i, r, lam in zip(map(F, p["s"]), map(F, R[:, k]), map(F, row)):
            bound += -held * s_i * (b - a * r) * r + held * s_i * (b - 2 * a * r) * r
            pulls.append(-held * s_i * (b - 2 * a * r) + lam)
        bound += min(pulls) * Fraction(2, n)
    return bound


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12])
def test_bounds_are_never_above_their_exact_value(large):
    """Coefficients that dwarf their differences: computed bounds stay below what rational arithmetic gives."""
    rng = np.random.default_rng(3)
    positive = 0
    for seed in range(20):
        p = draw("hopeless", 4, 2, seed, delta=5.0)
        p["zeta"][:, :2] *= large
        p["gamma"] = p["gamma"] + large
        xi, row = rng.uniform(0, large, 4), large * rng.normal(0, large / 10, 2)
        R = rng.dirichlet(np.ones(4), 2)
        problem = make_problem(p["zeta"], p["gamma"], p["s"], 0.0, "quadratic", None)
        bound = dual_bound(problem, R, xi, row, "squared")
        assert Fraction(bound) <= max(exact_dual(p, R, xi, row), 0)
        positive += allocate(**p).certificate.dual > 0
    assert positive > 10


def test_what_cannot_be_certified_is_not_called_optimal():
    """One client's utilities are near 1e12, where numbers are 1e-4 apart; the others' slacks are asked for to 1e-6."""
    p = draw("previous", 6, 1, 3)
    top = allocate(**p)
    assert top.status == OPTIMAL
    p["zeta"][0, 2] += 1e12
    p["gamma"] = Quadratic().value(p["zeta"], top.alpha)
    answer = allocate(**p)
    assert answer.certificate.slack_error >= 1e-5
    assert answer.status != OPTIMAL
    assert "\n" not in answer.reason
