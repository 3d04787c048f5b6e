"""What must hold for every federation, not only for the examples one thinks of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feduca
from feduca import program
from feduca.core import theory
from feduca.core.aggregation import Weighted
from feduca.core.memory import memories
from feduca.core.rng import stream
from feduca.core.utility import Quadratic
from feduca.mechanisms import FedUCA
from feduca.types import Allocation
from numpy_task import NumpyTask

FEW = settings(max_examples=25, deadline=None)


def curves(n: int, seed: int) -> np.ndarray:
    rng = stream(seed, "curves")
    a = np.exp(rng.uniform(np.log(0.05), np.log(3), n))
    return np.stack([a, 2 * a * rng.uniform(-0.2, 1.2, n), rng.uniform(0.2, 0.6, n)], 1)


@st.composite
def instances(draw, columns: bool = False):
    n = draw(st.integers(2, 12))
    n_s = draw(st.integers(2 if columns else 1, 6))
    seed = draw(st.integers(0, 10_000))
    rng = stream(seed, "instance")
    zeta = curves(n, seed)
    prev = rng.dirichlet(np.ones(n))
    gamma = Quadratic().value(zeta, prev) * (1 + draw(st.sampled_from([0.0, 0.02, 0.1])))
    s = rng.dirichlet(np.full(n_s, draw(st.sampled_from([0.3, 1.0, 10.0]))))
    s = np.maximum(s, 1e-9)
    return zeta, gamma, s / s.sum()


@FEW
@given(instances())
def test_strategies_are_feasible_and_jensen_gaps_are_not_negative(instance):
    zeta, gamma, s = instance
    solved = program.allocate(zeta, gamma, s)
    assert solved.R is not None
    assert (solved.R >= -1e-9).all()
    assert solved.R.sum(1) == pytest.approx(np.ones(len(s)), abs=1e-7)
    if len(s) > 1:
        assert solved.R.sum(0) == pytest.approx(np.full(len(zeta), len(s) / len(zeta)), abs=1e-7)
    assert solved.alpha == pytest.approx(s @ solved.R, abs=1e-12)
    assert (theory.jensen_gaps(Quadratic(), zeta, solved.R, s) >= -1e-12).all()


@FEW
@given(instances(columns=True))
def test_discrepancy_stays_under_both_bounds(instance):
    zeta, gamma, s = instance
    n, n_s = len(zeta), len(s)
    alpha = program.allocate(zeta, gamma, s).alpha
    left = ((alpha - 1 / n) ** 2).sum()
    assert left <= n_s / n * ((s - 1 / n_s) ** 2).sum() + 1e-9
    assert left <= (n_s - 1) / n + 1e-9
    assert left == pytest.approx(theory.discrepancy(alpha))


@FEW
@given(instances(), st.integers(0, 1000))
def test_permuting_clients_permutes_the_outcome(instance, seed):
    zeta, gamma, s = instance
    order = stream(seed, "order").permutation(len(zeta))
    plain = program.allocate(zeta, gamma, s, selection="closest")
    mixed = program.allocate(zeta[order], gamma[order], s, selection="closest")
    assert mixed.alpha == pytest.approx(plain.alpha[order], abs=2e-4)
    assert mixed.slack == pytest.approx(plain.slack[order], abs=2e-5)


@FEW
@given(st.integers(2, 12), st.integers(0, 1000))
def test_one_strategy_is_one_vector(n, seed):
    zeta = curves(n, seed)
    solved = program.allocate(zeta, Quadratic().value(zeta, np.full(n, 1 / n)), [1.0])
    assert solved.R.shape == (1, n)
    assert solved.alpha == pytest.approx(solved.R[0])
    assert solved.satisfied.all()


@FEW
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 1000), st.floats(0, 0.2))
def test_closest_keeps_uniform_weights_that_satisfy_everybody(n, n_s, seed, room):
    zeta = curves(n, seed)
    gamma = Quadratic().value(zeta, np.full(n, 1 / n)) - room
    s = stream(seed, "s").dirichlet(np.ones(n_s))
    solved = program.allocate(zeta, gamma, s, selection="closest")
    assert solved.alpha == pytest.approx(np.full(n, 1 / n), abs=1e-4)


@FEW
@given(st.integers(1, 6), st.integers(0, 1000), st.sampled_from(sorted(memories)))
def test_everybody_in_with_uniform_weights_is_fedavg(n, seed, kind):
    rng = stream(seed, "models")
    theta, models, remembered = rng.normal(size=3), rng.normal(size=(n, 3)), rng.normal(size=(n, 3))
    joined, known = np.ones(n, bool), np.ones(n, bool)
    memory = memories[kind]
    fresh, stored = memory.weights(Allocation(np.full(n, 1 / n), "fixed"), joined)
    recalled = memory.recall(remembered, known, theta)
    after = Weighted().next(theta, fresh, theta - models, stored, recalled, joined, parameters=3)[0]
    assert after == pytest.approx(models.mean(0))


@FEW
@given(st.integers(1, 8), st.integers(2, 12), st.integers(0, 1000))
def test_the_random_start_is_feasible(n_s, n, seed):
    _, first = FedUCA(n_s=n_s).init(np.ones(n, int), seed)
    assert (first.R >= 0).all()
    assert first.R.sum(1) == pytest.approx(np.ones(n_s))
    assert first.alpha.sum() == pytest.approx(1)
    if n_s > 1:
        assert first.R.sum(0) == pytest.approx(np.full(n, n_s / n), rel=1e-6)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_constant_weights_keep_everybody_under_eq_2(seed):
    """gamma_k = u_k(alpha_k) makes unchanged weights acceptable to everyone: the reason for the uniform control."""
    base = {"rounds": 4, "task.clients": 4, "local.epochs": 1, "mechanism.name": "uniform"}
    assert feduca.run({}, base, seed=seed, task=NumpyTask(seed=seed)).participation == 1
