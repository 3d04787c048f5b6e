"""One strategy: the exact method against the interior point, and the program that made it necessary."""

import numpy as np
import pytest

from feduca.program import allocate
from feduca.program.instances import draw
from feduca.program.problem import make_problem
from feduca.program.single import solve
from feduca.program.status import OPTIMAL


@pytest.mark.parametrize("objective", ["squared", "linear"])
@pytest.mark.parametrize("selection", ["centre", "closest", "margin"])
def test_exact_method_and_interior_point_agree(selection, objective):
    """They have no line in common: slacks, bounds and (but for `margin`, which fixes only the surplus) weights."""
    solved = 0
    for kind in ("feasible", "previous", "inflated", "hopeless", "silent", "outside"):
        for seed in range(4):
            p = draw(kind, 3 + 2 * seed, 1, seed)
            plain = allocate(**p, selection=selection, objective=objective)
            problem = make_problem(p["zeta"], p["gamma"], p["s"], 0.0, "quadratic", None)
            exact = solve(problem, objective, selection)
            assert plain.status == OPTIMAL
            if exact is None:
                assert objective == "linear"
                continue
            solved += 1
            assert exact.bound == pytest.approx(
                plain.certificate.primal, rel=1e-8, abs=1e-11 if objective == "squared" else 1e-7
            )
            np.testing.assert_allclose(problem.slack(exact.R), plain.slack, atol=2e-6)
            surplus = [(problem.mixed(R) - problem.demand)[plain.slack <= 1e-6] for R in (exact.R, plain.R)]
            if selection == "margin" and surplus[0].size:
                assert surplus[0].min() >= surplus[1].min() - 1e-6
            elif selection != "margin" and surplus[0].size and surplus[0].max() > 1e-5:
                np.testing.assert_allclose(exact.R[0], plain.R[0], atol=1e-4, err_msg=f"{kind} {seed}")
    assert solved >= (20 if objective == "squared" else 8)


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["centre", "closest", "margin"])
def test_a_hundred_thousand_clients_with_one_strategy(selection):
    """A hundredth of them asks for up to a thousand times the uniform weight, where the interior point crawls."""
    n, rng = 100_000, np.random.default_rng(0)
    a, b, c = rng.uniform(0.1, 1, n), rng.uniform(0, 1, n), rng.uniform(0.2, 0.8, n)
    zeta, gamma = np.stack([a, b, c], axis=1), c + rng.uniform(-0.01, 0.0001, n)
    answer = allocate(zeta, gamma, [1.0], selection=selection)
    assert answer.status == OPTIMAL, answer.reason
    hopeless = c + b**2 / (4 * a) < gamma
    np.testing.assert_allclose(answer.slack, np.where(hopeless, gamma - c - b**2 / (4 * a), 0.0), atol=1e-6)
    assert answer.satisfied[~hopeless].all()
    assert answer.R.sum() == pytest.approx(1, abs=1e-12)


def test_too_much_weight_for_everybody_is_shared_by_marginal_cost():
    """Both like only weights near 0 (u = -a r^2): t u' equal, 2 a^2 r^3 = 2 a'^2 r'^3, so r / r' = (a' / a)^(2/3)."""
    problem = make_problem([[1, 0, 0], [8, 0, 0]], [0.0, 0.0], [1.0], 0.0, "quadratic", None)
    exact = solve(problem, "squared", "centre")
    np.testing.assert_allclose(exact.R[0], [0.8, 0.2], atol=1e-9)
    assert exact.bound == pytest.approx(0.8**4 / 2 + 64 * 0.2**4 / 2, rel=1e-9)
