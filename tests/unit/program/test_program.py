"""`allocate` as its users see it: what it returns, what it promises, and what it says about bad input."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import feduca
from feduca.core.utility import Quadratic, Spline, concave_interval, nodes
from feduca.errors import ConfigError, ProblemError
from feduca.program import allocate, max_participation, read_problem, to_json
from feduca.program.certificate import dual_bound
from feduca.program.instances import DEGENERATE_KINDS, KINDS, draw
from feduca.program.problem import make_problem
from feduca.program.status import OPTIMAL, STATUSES

ZETA = [[0.5, 0.6, 0.2], [0.3, 0.1, 0.4], [0.2, 0.5, 0.1]]
GAMMA = [0.3, 0.41, 0.2]
S = [0.5, 0.3, 0.2]


def problem_of(p, eps=0.0, family="quadratic", beta=None):
    return make_problem(p["zeta"], p["gamma"], p["s"], eps, family, beta)


@pytest.mark.parametrize("objective", ["squared", "linear"])
@pytest.mark.parametrize("selection", ["centre", "closest", "margin"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_feasible_and_honest(kind, selection, objective):
    for n, n_s, seed in [(6, 3, 0), (1, 4, 1), (3, 7, 2), (5, 1, 3), (12, 5, 4)]:
        p = draw(kind, n, n_s, seed)
        A = allocate(**p, selection=selection, objective=objective)
        assert A.status in STATUSES
        if kind not in DEGENERATE_KINDS:
            assert A.status == OPTIMAL, A.reason
        assert A.R.min() >= 0
        np.testing.assert_allclose(A.R.sum(1), 1, atol=1e-9)
        if n_s > 1:
            np.testing.assert_allclose(A.R.sum(0), n_s / n, atol=1e-9)
        np.testing.assert_allclose(A.alpha, p["s"] @ A.R, atol=1e-15)
        np.testing.assert_allclose(A.slack, problem_of(p).slack(A.R), atol=1e-15)
        certificate = A.certificate
        assert certificate.gap >= 0
        assert certificate.gap == certificate.primal - certificate.dual
        if objective == "squared":
            assert certificate.slack_error == pytest.approx(np.sqrt(2 * certificate.gap))
        reached = certificate.gap <= 1e-9 * certificate.primal or certificate.slack_error <= 1e-6
        assert (A.status == OPTIMAL) <= reached


def test_two_clients_by_hand():
    """u = -r^2 + r each, both want 0.25 (their peak, r = 1/2), n_s = 1: both get exactly half and nobody has slack."""
    A = allocate([[1, 1, 0], [1, 1, 0]], [0.25, 0.25], [1.0])
    np.testing.assert_allclose(A.alpha, 0.5, atol=1e-3)  # the curve is flat there: slack is quadratic in the error
    np.testing.assert_allclose(A.slack, 0, atol=1e-6)
    assert A.satisfied.all()


def test_hopeless_clients_by_hand():
    """Linear-ish u = r: two clients want 1 each. min sum (1 - r_k)^2 / 2 gives 1/2 each: objective 1/4."""
    A = allocate([[1e-6, 1, 0], [1e-6, 1, 0]], [1.0, 1.0], [1.0])
    np.testing.assert_allclose(A.alpha, 0.5, atol=1e-6)
    assert A.certificate.primal == pytest.approx(0.25, abs=1e-5)
    assert not A.satisfied.any()


def test_linear_slack_serves_the_cheaper_client():
    """Slopes 2 and 1: a unit of weight removes twice the slack at client 0, so the linear objective gives it all."""
    zeta = [[1e-4, 2, 0], [1e-4, 1, 0]]
    linear = allocate(zeta, [3.0, 3.0], [1.0], objective="linear")
    np.testing.assert_allclose(linear.alpha, [1, 0], atol=1e-6)
    # squared: minimise (3 - 2 x)^2 + (2 + x)^2 over x, so x = 4/5
    np.testing.assert_allclose(allocate(zeta, [3.0, 3.0], [1.0]).alpha, [0.8, 0.2], atol=1e-4)


def test_kkt_conditions_at_the_optimum():
    """xi_k s_i u_k'(r_ik) = lambda_i + nu_k - z_ik, with xi = t: recover lambda, nu from interior entries and check."""
    p = draw("inflated", 5, 3, 3, delta=1.0)
    A = allocate(**p)
    pull = A.slack * p["s"][:, None] * Quadratic().slope(p["zeta"], A.R)
    hard = np.flatnonzero(A.slack > 1e-4)
    inside = A.R > 1e-4
    assert len(hard) >= 2
    for i in range(3):  # differences over clients cancel lambda; differences over strategies cancel nu
        for j in range(3):
            for k in hard:
                for m in hard:
                    if inside[i, k] and inside[i, m] and inside[j, k] and inside[j, m]:
                        assert pull[i, k] - pull[j, k] - pull[i, m] + pull[j, m] == pytest.approx(0, abs=1e-6)


def test_selections_do_what_they_say():
    p = draw("feasible", 8, 4, 1)
    chosen = {name: allocate(**p, selection=name) for name in ("centre", "closest", "margin")}
    problem = problem_of(p)
    distance = {name: ((A.R - 1 / 8) ** 2).sum() for name, A in chosen.items()}
    margin = {name: (problem.mixed(A.R) - problem.demand).min() for name, A in chosen.items()}
    barrier = {
        name: np.log(A.R).sum() + np.log(np.maximum(problem.mixed(A.R) - problem.demand, 1e-300)).sum()
        for name, A in chosen.items()
    }
    assert min(distance, key=distance.__getitem__) == "closest"
    assert max(margin, key=margin.__getitem__) == "margin"
    assert max(barrier, key=barrier.__getitem__) == "centre"
    for A in chosen.values():
        assert A.certificate.primal < 1e-12


def test_closest_is_beta_itself_where_beta_will_do():
    A = allocate(ZETA, [None, -np.inf, None], S, selection="closest", beta=[0.5, 0.3, 0.2])
    np.testing.assert_array_equal(A.R, np.tile([0.5, 0.3, 0.2], (3, 1)))
    assert A.gap == 0


def test_nobody_demands_anything():
    A = allocate(ZETA, [None, None, None], S)
    assert A.status == OPTIMAL
    assert A.satisfied.all()
    np.testing.assert_allclose(A.R, 1 / 3, atol=1e-6)  # the analytic centre of the polytope alone


def test_target_weights_set_the_column_sums():
    beta = np.array([0.5, 0.3, 0.2])
    A = allocate(ZETA, [0.35, 0.41, 0.2], S, beta=beta)
    assert A.status == OPTIMAL
    np.testing.assert_allclose(A.R.sum(0), 3 * beta, atol=1e-12)
    np.testing.assert_allclose(A.R.sum(1), 1, atol=1e-12)


def test_margin_eps_raises_every_demand():
    plain = allocate(ZETA, GAMMA, S)
    eps = allocate(ZETA, GAMMA, S, 0.01)
    np.testing.assert_allclose(eps.slack, allocate(ZETA, np.array(GAMMA) + 0.01, S).slack, atol=1e-9)
    assert eps.certificate.primal >= plain.certificate.primal


@pytest.mark.parametrize("unit", [1e-20, 1e-6, 1e6, 1e80])
def test_units_of_utility_do_not_matter(unit):
    p = draw("inflated", 6, 3, 1)
    plain, scaled = allocate(**p), allocate(p["zeta"] * unit, p["gamma"] * unit, p["s"])
    assert scaled.status == OPTIMAL
    np.testing.assert_allclose(scaled.slack / unit, plain.slack, atol=1e-5)
    np.testing.assert_array_equal(scaled.satisfied, plain.satisfied)


def test_participation_objective_is_the_exact_maximum():
    p = draw("inflated", 9, 4, 0)
    A = allocate(**p, objective="participation")
    best = max_participation(p["zeta"], p["gamma"])
    np.testing.assert_allclose(A.alpha, best.alpha)
    assert A.R.shape == (4, 9)
    np.testing.assert_allclose(A.R, np.tile(best.alpha, (4, 1)))
    assert A.satisfied.sum() == best.satisfied.sum() >= allocate(**p).satisfied.sum()


def test_bound_of_the_kernel_is_the_documented_one():
    """An independent evaluation of weak duality at the solution (xi = t) gives the same bound."""
    p = draw("inflated", 7, 3, 2, delta=1.0)
    A = allocate(**p)
    problem = problem_of(p)
    pull = -A.slack * p["s"][:, None] * Quadratic().slope(p["zeta"], A.R)
    inside = A.R > 1e-3
    # lambda from least squares over interior entries: pull + lambda_i + nu_k = 0
    rows, cols = np.nonzero(inside)
    design = np.zeros((len(rows), 3 + 7))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), 3 + cols] = 1
    row = np.linalg.lstsq(design, -pull[inside], rcond=None)[0][:3]
    bound = dual_bound(problem, A.R, A.slack, row, "squared")
    assert bound <= A.certificate.primal * (1 + 1e-12)
    assert bound == pytest.approx(A.certificate.dual, rel=1e-6)


def test_dual_bound_never_exceeds_the_optimum():
    rng = np.random.default_rng(5)
    for kind, n_s in [("inflated", 3), ("hopeless", 1), ("previous", 4)]:
        p = draw(kind, 6, n_s, 4)
        for objective in ("squared", "linear"):
            best = allocate(**p, objective=objective).certificate.primal
            problem = problem_of(p)
            for _ in range(200):
                xi, row = rng.exponential(0.1, 6), rng.normal(0, 0.1, n_s)
                R = rng.dirichlet(np.ones(6), n_s)
                assert dual_bound(problem, R, xi, row, objective) <= best * (1 + 1e-9) + 1e-12


class Logarithm:
    """A smooth concave family that knows nothing of pieces: `u = a log(1 + 5 r) - b r^2`."""

    name, size = "logarithm", 2

    def value(self, zeta, r):
        return zeta[:, 0] * np.log1p(5 * r) - zeta[:, 1] * r**2

    def slope(self, zeta, r):
        return zeta[:, 0] * 5 / (1 + 5 * r) - 2 * zeta[:, 1] * r

    def curvature(self, zeta, r):
        return -zeta[:, 0] * 25 / (1 + 5 * r) ** 2 - 2 * zeta[:, 1] + 0 * r

    def fit(self, r, u, weights):
        raise NotImplementedError

    def interval(self, zeta, gamma):
        return concave_interval(self, zeta, gamma)

    def problem(self, zeta):
        return None


@pytest.mark.parametrize("objective", ["squared", "linear"])
@pytest.mark.parametrize("n_s", [1, 4])
def test_any_smooth_concave_family(objective, n_s):
    rng = np.random.default_rng(1)
    zeta = rng.uniform(0.2, 1, (8, 2))
    gamma = Logarithm().value(zeta, rng.dirichlet(np.ones(8))) + 0.02
    s = rng.dirichlet(np.ones(n_s))
    A = allocate(zeta, gamma, s, family=Logarithm(), objective=objective)
    assert A.status == OPTIMAL, A.reason


def test_spline_of_parabolas_gives_the_same_answer():
    p = draw("inflated", 6, 3, 1)
    r, w = nodes(8)
    zeta = Spline().fit(r, Quadratic().value(p["zeta"], r[:, None]).T, w)
    for selection in ("centre", "closest", "margin"):
        plain = allocate(**p, selection=selection)
        spline = allocate(zeta, p["gamma"], p["s"], family="spline", selection=selection)
        assert spline.status == OPTIMAL
        np.testing.assert_allclose(spline.alpha, plain.alpha, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zeta": [[0.5, 0.6, 0.2], [0.3, float("nan"), 0.4], [0.2, 0.5, 0.1]]}, "client 1: b = nan"),
        ({"zeta": [[0.5, 0.6, 0.2], [0.3, 0.1, float("inf")], [0.2, 0.5, 0.1]]}, "client 1: c = inf"),
        ({"zeta": [[0.5, 0.6, 0.2], [0.3, 0.1, 0.4], [0, 0.5, 0.1]]}, "client 2: a = 0.0 must be positive"),
        ({"zeta": [[0.5, 0.6], [0.3, 0.1], [1, 2]]}, r"zeta has shape \(3, 2\)"),
        ({"zeta": []}, "zeta is empty"),
        ({"zeta": "abc"}, "zeta = 'abc' is not a table of numbers"),
        ({"gamma": [0.1, float("nan"), 0.1]}, "client 1: gamma = nan"),
        ({"gamma": [0.1, 0.2, float("inf")]}, "client 2: gamma = inf"),
        ({"gamma": [0.1, 0.2]}, "gamma has 2 entries for 3 clients"),
        ({"gamma": [0.1, "x", 0.2]}, "gamma = .* is not a list of numbers"),
        ({"s": [0.5, 0.6]}, "s is not a distribution: s sums to 1.1"),
        ({"s": [1.5, -0.5]}, r"s\[1\] = -0.5"),
        ({"s": [float("nan"), 1.0]}, r"s\[0\] = nan"),
        ({"s": []}, "s is empty"),
        ({"s": [[1.0]]}, r"s has shape \(1, 1\)"),
        ({"eps": -1.0}, "eps = -1.0 is not a margin"),
        ({"eps": float("nan")}, "eps = nan"),
        ({"beta": [0.5, 0.5, 0.0]}, "client 2: beta = 0.0 must be positive"),
        ({"beta": [0.5, 0.5]}, "beta has 2 entries for 3 clients"),
        ({"beta": [0.5, 0.2, 0.2]}, "beta sums to"),
        (
            {"zeta": [[0.5, 1e120, 0.2], [0.3, 0.1, 0.4], [1, 2, 3]]},
            "client 0: a curve or threshold holds 1e[+]120, beyond",
        ),
        ({"tolerance": 0.0}, "tolerance = 0.0"),
        ({"family": "cubic"}, "no utility family 'cubic'"),
        ({"selection": "best"}, "selection = 'best' is not known; choose one of centre, closest, margin"),
        ({"objective": "cubed"}, "objective = 'cubed'"),
        ({"solver": "gurobi"}, "solver = 'gurobi'"),
    ],
)
def test_bad_input_is_named(change, message):
    from feduca.errors import InputError

    arguments = {"zeta": ZETA, "gamma": GAMMA, "s": S} | change
    with pytest.raises(InputError, match=message) as caught:
        allocate(**arguments)
    assert "\n" not in str(caught.value)


def test_more_strategies_than_the_memory_holds_are_refused():
    """Their system is strategies by strategies, however few clients there are."""
    many = 10_000_000
    with pytest.raises(ProblemError, match="of memory, most of it for 2 arrays of 10000000 x 10000000 strategies"):
        allocate([[0.5, 0.6, 0.2]], [0.3], np.full(many, 1 / many))
    with pytest.raises(ConfigError, match="of memory, most of it for 2 arrays of 1000000 x 1000000 strategies"):
        feduca.run("quickstart", {"mechanism.n_s": 1_000_000}, rounds=1)


def test_problem_files(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({"zeta": ZETA, "gamma": [0.3, None, 0.2], "s": S, "eps": 0, "selection": "closest"}))
    answer = to_json(allocate(**read_problem(path)))
    assert json.loads(json.dumps(answer)) == answer
    assert answer["status"] == OPTIMAL
    assert {"R", "alpha", "slack", "gap", "satisfied", "reason", "iterations", "primal", "dual", "slack_error"} <= set(
        answer
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "holds a list, not an object"),
        ('{"zeta": [[1,1,1]], "s": [1]}', "has no 'gamma'"),
        ('{"zeta": [[1,1,1]], "gamma": [0], "s": [1], "sigma": 1}', "unknown key 'sigma'"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "problem.json"
    path.write_text(content)
    with pytest.raises(ProblemError, match=message):
        read_problem(path)
    with pytest.raises(ProblemError, match="cannot read"):
        read_problem(tmp_path / "missing.json")


def _fresh_process(code):
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    ).stdout


def test_a_file_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr("feduca.program.files.MOST", 1 << 20)
    with pytest.raises(ProblemError, match="/dev/zero is longer than 1048576 bytes"):
        read_problem("/dev/zero")


def test_imports_are_light():
    out = _fresh_process(
        "import sys, feduca.program; print([m for m in ('torch','numba','cvxpy','scipy') if m in sys.modules])"
    )
    assert out.strip() == "[]"


def test_first_solve_of_a_process_takes_under_a_second():
    """In processor time: wall time would test how busy the machine is."""
    allocate(ZETA, GAMMA, S)  # compiled and cached, here or before
    out = _fresh_process(
        "import time; from feduca.program import allocate; t = time.process_time(); "
        f"allocate({ZETA}, {GAMMA}, {S}); print(time.process_time() - t)"
    )
    assert float(out) < 1.0
