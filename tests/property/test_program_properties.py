"""Properties of the program that hold for every instance."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feduca.core.utility import A_FLOOR, Quadratic, Spline, families, nodes
from feduca.program import allocate, max_participation
from feduca.program.instances import KINDS, draw
from feduca.program.problem import make_problem
from feduca.program.status import OPTIMAL

INSTANCES = st.builds(
    draw,
    st.sampled_from(KINDS),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(0, 10**6),
    st.sampled_from([0.01, 0.5, 100.0]),
)


@settings(max_examples=150, deadline=None)
@given(INSTANCES, st.sampled_from(["squared", "linear"]))
def test_no_feasible_point_beats_a_certified_optimum(p, objective):
    A = allocate(**p, objective=objective)
    problem = make_problem(p["zeta"], p["gamma"], p["s"], 0.0, "quadratic", None)
    rng = np.random.default_rng(0)
    n_s, n = A.R.shape
    value = (lambda t: t.sum()) if objective == "linear" else (lambda t: t @ t / 2)
    assert A.certificate.dual <= A.certificate.primal
    uniform = np.full((n_s, n), 1 / n)
    for _ in range(10):
        other = uniform if n_s == 1 or n == 1 else np.clip(uniform, 0, None)
        if n_s == 1:
            other = rng.dirichlet(np.ones(n))[None]
        elif n > 1:  # a cycle of exchanges keeps all sums
            other = uniform.copy()
            i, j, k, m = *rng.choice(n_s, 2, replace=False), *rng.choice(n, 2, replace=False)
            move = rng.uniform(0, 1 / n)
            other[i, k] += move
            other[j, m] += move
            other[i, m] -= move
            other[j, k] -= move
        mixed = rng.uniform() * (other - A.R) + A.R
        assert value(problem.slack(mixed)) >= A.certificate.dual - 1e-12 * (1 + A.certificate.primal)


@settings(max_examples=100, deadline=None)
@given(INSTANCES)
def test_permuting_clients_permutes_the_answer(p):
    order = np.random.default_rng(1).permutation(len(p["gamma"]))
    A, B = allocate(**p), allocate(p["zeta"][order], p["gamma"][order], p["s"])
    np.testing.assert_allclose(
        A.slack[order], B.slack, atol=5e-6 + 2 * (A.certificate.slack_error + B.certificate.slack_error)
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["feasible", "previous", "inflated", "hopeless", "silent"]), st.integers(0, 10**6))
def test_shifting_utilities_and_thresholds_changes_nothing(kind, seed):
    p = draw(kind, 6, 3, seed)
    shifted = p["zeta"] + np.array([0, 0, 0.25])
    A, B = allocate(**p), allocate(shifted, p["gamma"] + 0.25, p["s"])
    np.testing.assert_allclose(A.slack, B.slack, atol=2e-6)


@settings(max_examples=100, deadline=None)
@given(INSTANCES, st.floats(0, 0.1))
def test_asking_for_more_never_lowers_the_objective(p, more):
    A, B = allocate(**p), allocate(**p, eps=more)
    assert B.certificate.primal >= A.certificate.dual - 1e-12


@settings(max_examples=100, deadline=None)
@given(INSTANCES)
def test_the_maximum_keeps_at_least_as_many_as_the_program(p):
    assert max_participation(p["zeta"], p["gamma"]).satisfied.sum() >= allocate(**p).satisfied.sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(families)))
def test_fits_are_concave_and_no_worse_than_a_line(seed, name):
    rng = np.random.default_rng(seed)
    chosen = families[name]
    r, w = nodes(9)
    u = rng.uniform(0, 1, (3, 9))
    zeta = chosen.fit(r, u, w)
    assert chosen.problem(zeta) is None
    grid = np.linspace(0, 1, 40)[:, None]
    assert (chosen.curvature(zeta, np.broadcast_to(grid, (40, 3))) <= 0).all()
    line = np.stack([np.polyval(np.polyfit(r, row, 1, w=np.sqrt(w)), r) for row in u])
    fitted = chosen.value(zeta, np.broadcast_to(r[:, None], (9, 3))).T
    assert (
        ((u - fitted) ** 2) @ w <= ((u - line) ** 2) @ w + A_FLOOR
    ).all()  # what the floor on the curvature may cost


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["feasible", "previous", "inflated"]), st.integers(0, 10**6))
@example("inflated", 682808)  # pieces nearly straight beside curved ones: a percent a step, for a hundred steps
def test_splines_are_solved_as_well(kind, seed):
    p = draw(kind, 6, 3, seed)
    r, w = nodes(8)
    u = Quadratic().value(p["zeta"], r[:, None]).T + 0.02 * np.random.default_rng(seed).uniform(-1, 1, (6, 8))
    A = allocate(Spline().fit(r, u, w), p["gamma"], p["s"], family="spline")
    assert A.status == OPTIMAL, A.reason
