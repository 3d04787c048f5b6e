"""The structured solver against CVXPY and Clarabel: objective, slacks, and the weights that each selection picks."""

import numpy as np
import pytest

from feduca.core.utility import Quadratic, Spline, nodes
from feduca.program import allocate
from feduca.program.instances import KINDS, draw

pytest.importorskip("cvxpy")
pytest.importorskip("clarabel")

SIZES = [(4, 2, 0), (6, 3, 1), (8, 5, 2), (7, 1, 3)]


@pytest.mark.parametrize("objective", ["squared", "linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_objective(kind, objective):
    for n, n_s, seed in SIZES:
        p = draw(kind, n, n_s, seed)
        ours, theirs = (allocate(**p, objective=objective, solver=solver) for solver in ("structured", "reference"))
        assert ours.certificate.primal == pytest.approx(theirs.certificate.primal, rel=1e-6, abs=1e-7)
        # each one's proved bound is below the other's value
        assert ours.certificate.dual <= theirs.certificate.primal * (1 + 1e-9) + 1e-12
        assert theirs.certificate.dual <= ours.certificate.primal * (1 + 1e-9) + 1e-12
        if objective == "squared":
            np.testing.assert_allclose(ours.slack, theirs.slack, atol=2e-5)


@pytest.mark.parametrize("selection", ["centre", "closest"])
@pytest.mark.parametrize("kind", ["feasible", "previous", "inflated", "hopeless", "silent", "outside"])
def test_same_weights(kind, selection):
    """`centre` and `closest` single out one R, so two unrelated methods have to find the same weights."""
    for n, n_s, seed in SIZES:
        p = draw(kind, n, n_s, seed, delta=1.0)
        ours, theirs = (allocate(**p, selection=selection, solver=solver) for solver in ("structured", "reference"))
        np.testing.assert_allclose(ours.alpha, theirs.alpha, atol=1e-4, err_msg=f"{kind} {n} {n_s}")


@pytest.mark.parametrize("kind", ["feasible", "previous", "silent"])
def test_same_margin(kind):
    """`margin` fixes the smallest surplus, not R."""
    for n, n_s, seed in SIZES:
        p = draw(kind, n, n_s, seed, delta=1.0)
        smallest = []
        for solver in ("structured", "reference"):
            A = allocate(**p, selection="margin", solver=solver)
            surplus = p["s"] @ Quadratic().value(p["zeta"], A.R) - p["gamma"]
            smallest.append(surplus[A.slack <= 1e-6].min())
        assert smallest[0] == pytest.approx(smallest[1], abs=2e-6)


def test_same_weights_for_splines():
    rng = np.random.default_rng(0)
    r, w = nodes(10)
    u = 0.4 + 0.3 * np.tanh(rng.uniform(2, 8, (5, 1)) * r) - rng.uniform(0.1, 0.5, (5, 1)) * r**3
    zeta = Spline().fit(r, u, w)
    gamma = Spline().value(zeta, rng.dirichlet(np.ones(5))) + 0.02
    s = rng.dirichlet(np.ones(3))
    ours, theirs = (allocate(zeta, gamma, s, family="spline", solver=solver) for solver in ("structured", "reference"))
    assert ours.status == "optimal"
    assert ours.certificate.primal == pytest.approx(theirs.certificate.primal, rel=1e-5)
    np.testing.assert_allclose(ours.slack, theirs.slack, atol=1e-4)


def test_missing_reference_names_the_extra(monkeypatch):
    import sys

    from feduca.errors import InputError

    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(InputError, match=r"feduca\[dev\]"):
        allocate([[1, 1, 0], [1, 1, 0]], [1, 1], [1.0], solver="reference")
