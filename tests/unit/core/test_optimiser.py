"""The server's optimiser: every kind by hand over two rounds, and that a run with it stops, resumes and repeats to the bit."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

import feduca
from feduca.core import rounds as loop
from feduca.core.aggregation import Weighted
from feduca.core.optimiser import ServerOptimiser
from feduca.errors import ConfigError
from feduca.federation.lockstep import together
from feduca.recipes import build as experiment
from feduca.runs import checkpoint
from numpy_task import Merged, NumpyTask

KINDS = ("momentum", "adagrad", "yogi", "adam")
# eta_s = 0.5, beta1 = 0.5, beta2 = 0.75, tau = 1; g = 2 and then 1, from theta = 10. m and v start at 0 and 1.
BY_HAND = {
    "sgd": (9.0, 8.5),
    "momentum": (9.0, 8.0),  # m = 2; then 0.5 * 2 + 1 = 2
    # m = 1; then 1. v = 1 + 4 = 5; then 6.
    "adagrad": (10 - 0.5 / (sqrt(5) + 1), 10 - 0.5 / (sqrt(5) + 1) - 0.5 / (sqrt(6) + 1)),
    # v = 1 + 0.25 * 4 = 2 (v < g^2: it grows); then 2 - 0.25 * 1 = 1.75 (v > g^2: it shrinks)
    "yogi": (10 - 0.5 / (sqrt(2) + 1), 10 - 0.5 / (sqrt(2) + 1) - 0.5 / (sqrt(1.75) + 1)),
    # v = 0.75 + 0.25 * 4 = 1.75; then 0.75 * 1.75 + 0.25 = 1.5625, whose root is 1.25
    "adam": (10 - 0.5 / (sqrt(1.75) + 1), 10 - 0.5 / (sqrt(1.75) + 1) - 0.5 / 2.25),
}


@pytest.mark.parametrize("kind", BY_HAND)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_two_rounds_by_hand(kind, library):
    how = Weighted(0.5, optimiser=kind, beta1=0.5, beta2=0.75, tau=1.0)
    theta, moments, nobody, alpha = np.array([10.0]), {}, np.zeros(2), np.array([0.25, 0.75])
    if library == "torch":
        theta = torch.from_numpy(theta)
    for deltas, expected in zip(([[5.0], [1.0]], [[1.0], [1.0]]), BY_HAND[kind]):
        delta = np.array(deltas) if library == "numpy" else torch.tensor(deltas, dtype=torch.float64)
        theta, moments = how.next(theta, alpha, delta, nobody, 0 * delta, np.ones(2, bool), 1, moments)
        assert float(theta[0]) == pytest.approx(expected, abs=1e-14)
        assert type(theta) is type(delta)
    assert sorted(moments) == {"sgd": [], "momentum": ["m"]}.get(kind, ["m", "v"])


def test_yogi_leaves_a_coordinate_whose_square_is_what_it_remembers():
    _, after = ServerOptimiser("yogi", tau=0.5).step(np.zeros(1), np.array([0.5]), {})
    assert after["v"].tolist() == [0.25]


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_moves_stays_and_buffers_are_averaged_plainly(kind):
    theta = np.array([1.0, 2.0, 7.0])  # two parameters, one running statistic
    delta = np.array([[0.3, 0.0, 1.0], [0.5, 0.0, 3.0]])
    both, nothing = np.ones(2, bool), np.zeros((2, 3))
    after, _ = Weighted(optimiser=kind).next(theta, np.full(2, 0.5), delta, np.zeros(2), nothing, both, 2)
    assert after[0] < 1
    assert after[1:] == pytest.approx([2, 5], abs=0)


def settings(kind, **more):
    base = {
        "rounds": 6,
        "local.epochs": 1,
        "task.clients": 4,
        "mechanism.name": "fedavg",
        "participation.rule": "always",
    }
    return {**base, "aggregation.optimiser": kind, "aggregation.eta_s": 0.3, **more}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_follows_the_formula_and_resumes_to_the_bit(kind, tmp_path):
    task, recipe = NumpyTask(), feduca.recipe({}, settings(kind))
    one = experiment.build(recipe, 0, task)
    states, shots = [], []

    def kept(record, clients, state):
        states.append(state)
        shots.append(dict(one.federation.snapshot()))

    loop.play(loop.rounds(one.server, one.theta, task.examples, on_round=kept), one.federation)
    optimiser, theta, moments = ServerOptimiser(kind, 0.3), one.theta, {}
    for state, shot in zip(states, shots):  # everybody joins with weight 1/4: the combined update is theta - mean
        theta, moments = optimiser.step(theta, theta - shot["contributed"].mean(0), moments)
        assert state.theta == pytest.approx(theta, abs=1e-9)

    path = checkpoint.write(tmp_path, 3, checkpoint.Checkpoint("run", states[2], shots[2]))
    back = checkpoint.read(path)
    other = experiment.build(recipe, 0, task)
    other.federation.restore(back.clients)
    final = loop.play(loop.rounds(other.server, other.theta, task.examples, state=back.state), other.federation)
    assert np.array_equal(final.theta, states[-1].theta)


def test_a_checkpoint_of_before_there_were_optimisers_is_read():
    task = NumpyTask()
    one = experiment.build(feduca.recipe({}, settings("sgd")), 0, task)
    state = loop.begin(one.server, one.theta, task.examples)
    older = {name: value for name, value in vars(state).items() if name != "moments"}
    encoded = {"$type": "ServerState", **checkpoint._encode(older, arrays := {}, "")}
    assert checkpoint._decode(encoded, arrays, None).moments == {}


@pytest.mark.parametrize(
    "extra", [{}, {"memory.kind": "model"}, {"offer.kind": "best-mixture"}, {"mechanism.name": "qfedavg"}]
)
def test_optimisers_in_lockstep_equal_runs_of_their_own(extra):
    alone, experiments = [], []
    for seed, kind in enumerate(KINDS):
        recipe = feduca.recipe({}, settings(kind, **{"participation.rule": "accuracy", **extra}))
        one, other = (experiment.build(recipe, seed, NumpyTask(4, seed)) for _ in range(2))
        alone.append(loop.play(loop.rounds(one.server, one.theta, one.task.examples), one.federation))
        experiments.append(other)
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], Merged([e.task for e in experiments]))
    for a, b in zip(alone, states):
        assert np.array_equal(a.theta, b.theta)
        assert all(np.array_equal(a.moments[name], b.moments[name]) for name in a.moments)


def test_defaults_leave_the_names_of_earlier_runs():
    plain = feduca.recipe({}, {})
    assert plain.hash() == feduca.recipe({}, {"aggregation.optimiser": "sgd"}).hash()
    assert plain.hash() != feduca.recipe({}, {"aggregation.optimiser": "adam"}).hash()


@pytest.mark.parametrize(
    ("kind", "key", "value", "says"),
    [
        ("sgd", "beta1", 0.5, "which has no use for it; use aggregation.optimiser = 'momentum' or"),
        ("momentum", "tau", 0.1, "which has no use for it"),
        ("adagrad", "beta2", 0.5, "use aggregation.optimiser = 'yogi' or 'adam'"),
        ("adam", "beta1", 1.0, "less than 1"),
        ("adam", "tau", 0.0, "greater than 0"),
        ("rmsprop", "eta_s", 1.0, "'sgd', 'momentum', 'adagrad', 'yogi' or 'adam'"),
    ],
)
def test_options_without_use_are_refused_in_one_line(kind, key, value, says):
    with pytest.raises(ConfigError) as seen:
        feduca.recipe({}, {"aggregation.optimiser": kind, f"aggregation.{key}": value})
    assert says in str(seen.value)
    assert "\n" not in str(seen.value)
