"""Faulty silos do what they are told, as a function of (seed, round, silo); blurred reports stay curves."""

from __future__ import annotations

import numpy as np
import pytest

from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import Always
from feduca.client.reporting import Blurred, Inflate, Truthful
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic, families
from feduca.errors import InputError
from feduca.federation import Faulty, InProcess
from feduca.mechanisms import FedAvg
from feduca.types import LocalSpec, Needs
from numpy_task import NumpyTask

FAMILY = Quadratic()


def parts(**options):
    task = NumpyTask(4)
    server = Server(FedAvg(), memories["update"], FAMILY, LocalSpec(epochs=1), 30, seed=1)
    inner = InProcess(task, Behaviour(Always(), Global(), FAMILY, seed=1, needs=Needs(curve=True)))
    return task, server, inner, Faulty(inner, (1, 2), seed=3, **options)


def asked(task, server):
    return loop.announce(server, loop.begin(server, task.init(0), task.examples))


@pytest.mark.parametrize("kind", ["absent", "nan", "inflated", "flipped", "reversed"])
def test_each_fault(kind):
    task, server, _, faulty = parts(kinds=(kind,), factor=7.0)
    announcement = asked(task, server)
    seen = faulty.exchange(announcement)
    honest = parts()[2].exchange(announcement)
    delta, true = announcement.theta - seen.theta, announcement.theta - honest.theta
    assert np.array_equal(seen.theta[[0, 3]], honest.theta[[0, 3]])
    if kind == "absent":
        assert list(seen.status) == ["joined", "absent", "absent", "joined"]
        assert np.isnan(seen.gamma[1:3]).all()
    elif kind == "nan":
        assert np.isnan(seen.theta[1:3]).all()
    else:
        assert delta[1:3] == pytest.approx({"inflated": 7.0, "flipped": -1.0, "reversed": -7.0}[kind] * true[1:3])


def test_stale_silos_send_what_they_sent_before():
    task, server, _, faulty = parts(kinds=("stale",), lag=3)
    sent = []
    state = loop.begin(server, task.init(0), task.examples)
    for _ in range(7):
        announcement = loop.announce(server, state)
        reports = faulty.exchange(announcement)
        sent.append(reports.theta.copy())
        state, _ = loop.advance(server, state, reports)
    assert np.array_equal(sent[3][1], sent[4][1])
    assert not np.array_equal(sent[3][1], sent[6][1])
    assert not np.array_equal(sent[3][0], sent[4][0])


def test_kinds_are_drawn_by_round_and_silo_and_known():
    faulty = parts()[3]
    drawn = [[faulty.kind(t, k) for k in range(4)] for t in range(1, 60)]
    assert all(row[0] is None and row[3] is None for row in drawn)
    assert {row[1] for row in drawn} == {"absent", "nan", "stale", "inflated", "flipped"}
    assert drawn == [[faulty.kind(t, k) for k in range(4)] for t in range(1, 60)]
    with pytest.raises(InputError, match="there is no fault 'rude'"):
        parts(kinds=("rude",))


def test_faults_survive_a_snapshot():
    task, server, _, one = parts()
    state = loop.begin(server, task.init(0), task.examples)
    for _ in range(4):
        announcement = loop.announce(server, state)
        _, admitted = loop.admit(server, state, announcement, one.exchange(announcement))
        state, _ = loop.advance(server, state, admitted.reports)
    other = parts()[3]
    other.restore(one.snapshot())
    announcement = loop.announce(server, state)
    assert np.array_equal(one.exchange(announcement).theta, other.exchange(announcement).theta, equal_nan=True)


# Blurred reports


@pytest.mark.parametrize("name", families)
def test_blurred_curves_stay_in_their_family(name):
    family = families[name]
    rng = np.random.default_rng(0)
    r = np.linspace(0, 1, 8)
    zeta = family.fit(r, rng.uniform(size=(50, 8)), np.full(8, 1 / 8))
    gamma = family.value(zeta, np.full(50, 0.1))
    gamma[7], zeta[7] = np.nan, np.nan  # one has no curve
    told, curve = Blurred(Truthful(), family, seed=0, step=0.05, noise=0.2).report(gamma, zeta, np.arange(50), 3)
    known = np.arange(50) != 7
    assert family.problem(curve[known]) is None
    assert np.isnan(told[7])
    assert np.isnan(curve[7]).all()
    assert told[known] / 0.05 == pytest.approx(np.round(told[known] / 0.05), abs=1e-9)


def test_rounding_tells_no_more_than_it_says():
    zeta = np.array([[0.5, 0.6, 0.33], [0.52, 0.61, 0.33]])  # u(0), u(1/2), u(1) round to the same
    gamma = np.array([0.41, 0.38])
    told, curve = Blurred(Truthful(), FAMILY, seed=0, step=0.1).report(gamma, zeta, np.arange(2), 1)
    assert told == pytest.approx([0.4, 0.4])
    assert curve[0] == pytest.approx(curve[1])
    assert FAMILY.value(curve, np.zeros(2)) == pytest.approx([0.3, 0.3])


def test_noise_is_a_function_of_round_and_silo_and_goes_on_top_of_a_policy():
    zeta, gamma = np.tile([0.5, 0.6, 0.3], (3, 1)), np.full(3, 0.4)
    blur = Blurred(Inflate(0.5), FAMILY, seed=1, noise=0.01)
    together, _ = blur.report(gamma, zeta, np.arange(3), 2)
    alone, _ = blur.report(gamma[1:2], zeta[1:2], np.array([1]), 2)
    later, _ = blur.report(gamma, zeta, np.arange(3), 3)
    assert alone[0] == together[1]
    assert not np.array_equal(later, together)
    assert together == pytest.approx([0.6] * 3, abs=0.06)
