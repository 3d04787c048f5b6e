"""What docs/offers.md claims, for every path and federation hypothesis can think of, not only for the examples there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import feduca
from feduca.client.offers import Asked, BestMixture, LeastConcession
from feduca.client.participation import AccuracyImproves, Comparison, Situation, certainly_more
from feduca.core.rng import stream
from feduca.core.utility import Quadratic
from feduca.types import Scores
from numpy_task import NumpyTask

FEW = settings(max_examples=60, deadline=None)
paths = st.lists(st.integers(0, 8), min_size=11, max_size=11)  # accuracies in eighths at c = 0, 0.1, ..., 1
losses = st.lists(st.integers(0, 8), min_size=11, max_size=11)


def offered(offer, path, loss):
    """One client on a tabulated path; returns the offer and the places that were looked at."""
    accuracy, loss = np.array(path) / 8, np.array(loss) / 8

    def at(c):
        index = np.round(10 * np.asarray(c)).astype(int)
        return Scores(accuracy[index], loss[index])

    asked = Asked(
        np.arange(1), np.zeros(1), np.ones((1, 1)), np.ones(1, bool), at([0.0]), at([1.0]), np.array([8]), None
    )
    steps, answer, seen = offer.of(asked), None, [0.0]
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return stop.value, seen, at
        seen += request.places[0].tolist()
        answer = at(request.places)


def accepts(found, own, better):
    nothing = np.zeros(1)
    seen = Situation(2, own, found.scores, nothing, nothing, nothing, Quadratic(), np.array([8]))
    return bool(AccuracyImproves(better).decide(seen).join[0])


@FEW
@given(paths, losses, st.sampled_from(["strict", "loss"]), st.sampled_from(["upwards", "guided"]), st.integers(0, 9))
def test_least_concession_is_accepted_iff_a_point_it_looked_at_is_worth_accepting(path, loss, ties, search, budget):
    better = Comparison(ties)
    found, seen, at = offered(LeastConcession(better=better, search=search, budget=budget), path, loss)
    own = at([1.0])
    good = [c for c in seen if better.beats(at([c]), own)[0]]
    assert accepts(found, own, better) == bool(good)  # individual rationality: joins only what beats its own model
    if good:
        assert found.concession[0] == pytest.approx(min(good))
    assert found.evaluations[0] == len(seen) - 1 <= (budget or 9)
    if search == "upwards" and not budget:
        everywhere = [c / 10 for c in range(10) if better.beats(at([c / 10]), own)[0]]
        assert found.concession[0] == pytest.approx(min(everywhere)) if everywhere else not good


@FEW
@given(paths, losses, st.sampled_from(["strict", "loss"]))
def test_best_mixture_is_best_and_is_accepted_iff_anything_is(path, loss, ties):
    better = Comparison(ties)
    found, _, at = offered(BestMixture(better=better), path, loss)
    assert found.scores.accuracy[0] == max(path) / 8
    possible = any(better.beats(at([c / 10]), at([1.0]))[0] for c in range(10))
    assert accepts(found, at([1.0]), better) == possible


@FEW
@given(st.floats(0.01, 5), st.floats(-5, 5), st.integers(2, 40))
def test_on_a_concave_path_acceptance_reaches_from_a_point_to_the_own_model(a, b, points):
    """u concave: {c : u(c) > u(1)} is empty iff u'(1) >= 0, and else an interval that ends at the own model."""
    c = np.linspace(0, 1, 20 * points + 1)
    u = -a * c**2 + b * c
    beats = u[:-1] > u[-1] + 1e-12
    if b - 2 * a >= 0:  # the slope at the own model: moving towards consensus does not help
        assert not beats.any()
    elif beats.any():
        assert beats[np.argmax(beats) :].all()


@FEW
@given(st.integers(1, 60), st.data())
def test_the_sign_test_assumes_the_worst_pairing(n, data):
    old = data.draw(st.integers(0, n))
    new = data.draw(st.integers(0, n))
    level = data.draw(st.sampled_from([0.5, 0.8, 0.9, 0.99]))
    pairings = []
    for b in range(n + 1):  # b examples gained, c lost
        c = b - (new - old)
        if 0 <= c <= old and b <= n - old:
            pairings.append(binom.sf(b - 1, b + c, 0.5))
    worst = max(pairings)
    said = bool(certainly_more(np.array([new * 1.0]), np.array([old * 1.0]), np.array([n]), level)[0])
    if abs(worst - (1 - level)) > 1e-9:
        assert said == (new > old and worst <= 1 - level)


def test_equally_good_models_rarely_pass_a_confidence():
    rng = stream(0, "coverage")
    n, trials, level = 60, 4000, 0.9
    shared = rng.random((trials, n)) < 0.5  # examples on which the two models agree
    first, second = rng.random((2, trials, n)) < 0.7
    right = np.where(shared, first, second).sum(1)
    passed = certainly_more(right.astype(float), first.sum(1).astype(float), np.full(trials, n), level)
    assert passed.mean() <= 1 - level
    assert passed.mean() > 0  # careful, not deaf


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["least-concession", "best-mixture", "global"]))
def test_nobody_ever_deploys_less_than_its_own_model_on_the_data_it_decides_by(seed, kind):
    how = {"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": kind}
    base = {"rounds": 5, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10}
    for record in feduca.run({}, {**base, **how}, seed=seed, task=NumpyTask(seed=seed)).clients[1:]:
        for status, new, own in zip(record["status"], record["offered_accuracy"], record["own_accuracy"]):
            assert (status == "joined") == (new > own)


# ---------------------------------------------------------------------------------------------------------------------
# Convergence (docs/offers.md, "What it costs the shared model"): silos with quadratic losses h_k/2 ||x - x_k||^2


def quadratic(seed, n=5, same=True):
    rng = stream(seed, "quadratic")
    goals, h = rng.normal(size=(n, 3)), np.full(n, 0.5) if same else rng.uniform(0.2, 0.8, n)
    q = (1 - 0.5 * h) ** 4  # four steps of gradient descent at rate 0.5 shrink the distance to the goal by q
    return goals, q, lambda x: goals + q[:, None] * (x - goals)


@FEW
@given(st.integers(0, 1000), st.booleans())
def test_one_round_drifts_by_no_more_than_the_spread_of_concessions(seed, same):
    goals, q, train = quadratic(seed, same=same)
    rng = stream(seed, "concessions")
    c = rng.uniform(0, 1, len(goals))
    own = train(np.zeros(3) + goals.mean(0))
    theta = own.mean(0)  # everybody in, uniform weights: the deviations d_k average to nothing
    d = own - theta
    drift = train(theta + c[:, None] * d).mean(0) - train(np.broadcast_to(theta, d.shape)).mean(0)
    crude = (q[:, None] * c[:, None] * d).mean(0)
    assert drift == pytest.approx(crude, abs=1e-12)
    assert np.linalg.norm(drift) <= (c * np.linalg.norm(d, axis=1)).mean() + 1e-12  # the mean concession bounds it
    if same:  # and with equal curvature only the spread of concessions matters
        bound = q[0] * c.std() * np.sqrt((d**2).sum(1).mean())
        assert np.linalg.norm(drift) <= bound + 1e-12
        level = train(theta + 0.6 * d).mean(0)
        assert level == pytest.approx(train(np.broadcast_to(theta, d.shape)).mean(0))  # equal concessions cost nothing


@FEW
@given(st.integers(0, 1000), st.floats(0, 0.95))
def test_silos_spread_further_apart_the_more_they_are_conceded(seed, c):
    goals, q, train = quadratic(seed)
    own = train(np.zeros((5, 3)))
    for _ in range(400):
        theta = own.mean(0)
        own = train(theta + c * (own - theta))
    assert own.mean(0) == pytest.approx(goals.mean(0), abs=1e-6)  # the shared model is FedAvg's, whatever c
    spread = (1 - q[0]) / (1 - q[0] * c) * (goals - goals.mean(0))
    assert own - own.mean(0) == pytest.approx(spread, abs=1e-6)


@FEW
@given(st.floats(0.1, 5), st.floats(0, 5), st.floats(-3, 3), st.floats(-3, 3))
def test_dittos_model_is_a_point_on_the_path_for_quadratic_losses(h, lam, goal, theta):
    grid = np.linspace(-4, 4, 80001)
    best = grid[np.argmin(h / 2 * (grid - goal) ** 2 + lam / 2 * (grid - theta) ** 2)]
    c = h / (h + lam)
    assert best == pytest.approx((1 - c) * theta + c * goal, abs=2e-4)
