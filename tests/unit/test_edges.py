"""Edges that a stranger found: silence, silos never heard, weights and bounds that must say what really happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import program
from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import AccuracyImproves, Always
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.messages import silent
from feduca.core.rounds import Server
from feduca.core.share import share_of
from feduca.core.utility import Quadratic, Spline, nodes
from feduca.federation import InProcess
from feduca.mechanisms import FedAvg, FedUCA, registry
from feduca.types import Allocation, LocalSpec, Round
from numpy_task import NumpyTask


def seen(zeta, gamma, n_s: int = 2) -> Round:
    n = len(gamma)
    previous = Allocation(np.full(n, 1 / n), "initial", R=np.full((n_s, n), 1 / n), s=np.full(n_s, 1 / n_s))
    here = np.ones(n, bool)
    nothing = np.full(n, np.nan)
    return Round(1, here, here, np.array(gamma), np.array(zeta), np.ones(n, int), nothing, np.zeros((n, 1)), previous)


def test_a_binding_mixture_by_hand(monkeypatch):
    # Two clients, two strategies: rows and columns sum to 1, so R = [[x, 1 - x], [1 - x, x]]. With s = (3/4, 1/4) and
    # u(r) = 2 r - r^2, client 0's mixture is 1/4 + 3/2 x - x^2, at most 13/16, at x = 3/4.
    monkeypatch.setattr(FedUCA, "_draw_s", lambda self, seed, round: np.array([0.75, 0.25]))
    zeta = [[1.0, 2.0, 0.0]] * 2
    _, reached = FedUCA(n_s=2, selection="closest").allocate(None, seen(zeta, [0.8, 0.0]), 0)
    x = (1.5 - np.sqrt(1.5**2 - 4 * 0.55)) / 2  # 1/4 + 3/2 x - x^2 = 4/5, the root nearer to 1/2
    assert pytest.approx(np.array([[x, 1 - x], [1 - x, x]]), abs=1e-5) == reached.R
    assert reached.alpha == pytest.approx([0.75 * x + 0.25 * (1 - x), 0.75 * (1 - x) + 0.25 * x], abs=1e-5)
    assert reached.slack == pytest.approx([0, 0], abs=1e-6)
    _, short = FedUCA(n_s=2).allocate(None, seen(zeta, [1.0, -1.0]), 0)
    assert short.slack == pytest.approx([1 - 13 / 16, 0], abs=1e-5)
    assert short.alpha == pytest.approx([0.75 * 0.75 + 0.25 * 0.25, 0.375], abs=1e-3)


def test_a_silo_never_heard_does_not_hide_that_nobody_is_satisfied():
    curve = [2.0, 2.2, 0.0]  # peak .605 at .55
    zeta = [curve, curve, curve, [np.nan] * 3]
    _, solved = FedUCA(n_s=3).allocate(None, seen(zeta, [0.6, 0.6, 0.6, np.nan], 3), 0)
    assert solved.fallback is not None
    assert not solved.satisfied[3]
    assert solved.alpha[3] == 0
    _, hopeless = FedUCA(n_s=3).allocate(None, seen(zeta, [5.0, 5.0, 5.0, np.nan], 3), 0)
    assert hopeless.fallback == "keep"


@pytest.mark.parametrize("name", sorted(registry))
def test_a_round_that_nobody_answers_keeps_the_weights(name):
    task, mechanism = NumpyTask(), registry[name]()
    server = Server(mechanism, memories["update"], Quadratic(), LocalSpec(epochs=1), 3, seed=1)
    personal = getattr(mechanism, "personal", None)
    how = Behaviour(Always(), Global(), Quadratic(), 1, needs=mechanism.needs)
    how = how if personal is None else replace(how, personal=personal)
    if hasattr(personal, "sharing"):
        share = share_of("body", task)
        how = replace(how, personal=personal.sharing(share), share=share)
    federation = InProcess(task, how)

    class Outage:
        silos = federation.silos

        def exchange(self, asked):
            return (
                silent(asked, "absent", "no answer", Quadratic().size)
                if asked.round == 2
                else federation.exchange(asked)
            )

    items = list(loop.steps(server, task.init(1), task.examples, Outage(), evaluate=task.test))
    assert [record.joined for record, _, _ in items] == [4, 0, 4]
    assert items[1][0].status == "unknown"
    assert "No silo answered" in items[1][0].reason


def test_without_memory_the_formed_weights_are_the_renormalised_ones():
    task = NumpyTask()
    server = Server(FedAvg(), memories["none"], Quadratic(), LocalSpec(epochs=1), 4, seed=1)
    federation = InProcess(task, Behaviour(AccuracyImproves(), Global(), Quadratic(), 1))
    partial = 0
    for record, clients, state in loop.steps(server, task.init(1), task.examples, federation):
        joined = np.array([word == "joined" for word in clients.status])
        if joined.any():
            assert state.formed.alpha == pytest.approx(joined / joined.sum())
            partial += not joined.all()
        assert record.joined == joined.sum()
    assert partial


@pytest.mark.parametrize(
    "settings",
    [
        {"mechanism.objective": "participation", "reporting.kind": "inflate", "reporting.share": 0.05},
        {"mechanism.aggregation": "sampled"},
        {"mechanism.fallback": "printed", "reporting.kind": "inflate", "reporting.share": 0.5},
        {"memory.kind": "none", "participation.rule": "accuracy"},
    ],
)
def test_no_bound_is_recorded_that_does_not_hold(settings):
    base = {"rounds": 5, "task.clients": 4, "local.epochs": 1, "mechanism.delta": 1000.0}
    for record in feduca.run({}, {**base, **settings}, task=NumpyTask()).rounds:
        bound = record["discrepancy_bound"]
        assert bound is None or record["discrepancy"] <= bound + 1e-9


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_more_strategies_than_clients_with_splines(n):
    family, (r, weights) = Spline(), nodes(8)
    for seed in range(20):
        rng = np.random.default_rng([seed, n])
        u = np.where(r[None, :] > rng.uniform(0.5, 0.95, (n, 1)), 0.1, rng.uniform(0.5, 0.9, (n, 1)))  # cliffs
        zeta = family.fit(r, u, weights)
        gamma = family.value(zeta, rng.dirichlet(np.ones(n))) * 1.02
        solved = program.allocate(zeta, gamma, rng.dirichlet(np.ones(5)), family="spline")
        assert solved.status == "optimal", solved.reason
