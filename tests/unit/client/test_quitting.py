"""Silos that quit for good: when, what they deploy, and what the others see of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.client.participation import AccuracyImproves, Always, Never, Quits
from feduca.core import rounds as loop
from feduca.federation import InProcess
from feduca.recipes import build as experiment
from feduca.runs import standing
from numpy_task import NumpyTask
from offered import LEAST, SMALL, situation


def test_quitting_by_hand():
    rule = Quits(2, Always())
    first = rule.decide(situation([0.9, 0.5, 0.5], [0.1] * 3, [0.6] * 3))
    assert first.join.tolist() == [True, True, True]
    assert first.extra["behind"].tolist() == [0, 1, 1]
    second = rule.decide(situation([0.9, 0.7, 0.6], [0.1] * 3, [0.6] * 3, first.extra))
    assert second.extra["behind"].tolist() == [0, 0, 2]  # 0.6 does not beat 0.6
    assert second.left.tolist() == [False, False, True]
    assert second.join.tolist() == [True, True, False]
    assert second.reason[2] == (
        "left for good: 2 rounds without beating its model alone; at last equal accuracy 0.6000: no gain"
    )
    third = rule.decide(situation([1.0] * 3, [0.1] * 3, [0.6] * 3, second.extra))
    assert third.left.tolist() == [False, False, True]  # for good, however good the offer
    assert third.reason[2] == "left for good: 2 rounds without beating its model alone"


def test_a_decliner_deploys_its_own_model():
    rule = Quits(1, AccuracyImproves())
    decided = rule.decide(situation([0.5, 0.5], [0.7, 0.55], [0.6, 0.6]))
    assert decided.join.tolist() == [False, False]
    assert decided.left.tolist() == [False, True]
    assert decided.reason[1] == (
        "left for good: 1 round without beating its model alone; at last deployed 0.5500 does not beat alone 0.6000"
    )


def test_who_cannot_know_its_model_alone_does_not_quit():
    decided = Quits(1, Always()).decide(situation([0.5, 0.5], [0.1, 0.1], [np.nan, 0.6]))
    assert decided.left.tolist() == [False, True]
    assert decided.extra["behind"].tolist() == [0, 1]


def test_whoever_left_counts_no_more():
    fresh, stored = loop.without(np.array([False, True, False]), np.array([0.2, 0, 0.3]), np.array([0, 0.5, 0.0]))
    assert fresh == pytest.approx([0.4, 0, 0.6])
    assert stored == pytest.approx([0, 0, 0])
    fresh, stored = loop.without(np.ones(3, bool), np.array([0.2, 0, 0.3]), np.array([0, 0.5, 0.0]))
    assert not fresh.any()
    assert not stored.any()


@pytest.mark.parametrize("rule", ["accuracy", "utility"])
def test_runs_with_quitting_record_who_is_left(rule):
    settings = {**SMALL, "rounds": 8, "mechanism.name": "fedavg", "participation.rule": rule, "participation.quits": 2}
    result = feduca.run({}, settings, task=NumpyTask(validation=8))
    members = [record["members"] for record in result.rounds]
    left = [sum(word == "left" for word in record["status"]) for record in result.clients]
    assert members == [4 - n for n in left]
    assert members == sorted(members, reverse=True)
    assert members[-1] < 4  # eight examples tie often, and a tie beats nothing
    gone = next(k for k, word in enumerate(result.clients[-1]["status"]) if word == "left")
    first = next(t for t, record in enumerate(result.clients) if record["status"][gone] == "left")
    assert all(record["status"][gone] == "left" for record in result.clients[first:])


@pytest.mark.parametrize("mechanism", ["fedavg", "feduca"])
def test_when_everybody_has_left_the_shared_model_stands_still(mechanism):
    settings = {**SMALL, "rounds": 6, "mechanism.name": mechanism, "participation.rule": "never"}
    built = experiment.build(api.recipe({}, settings), 0, NumpyTask())
    how = replace(experiment.make_behaviour(api.recipe({}, settings), 0), rule=Quits(2, Never()))
    thetas, members = [], []
    for record, _, state in loop.steps(built.server, built.theta, built.task.examples, InProcess(built.task, how)):
        thetas.append(state.theta)
        members.append(record.members)
    assert members == [4, 4, 0, 0, 0, 0]  # own models are the models alone: rounds 2 and 3 do not beat them
    assert np.array_equal(thetas[3], thetas[5])


def test_nothing_is_offered_to_whoever_has_left():
    settings = {**SMALL, "rounds": 8, **LEAST, "participation.quits": 2}
    result = feduca.run({}, settings, task=NumpyTask(validation=8))
    gone = standing.left((record["round"], record["status"]) for record in result.clients)
    assert gone
    for record in result.clients:
        for k in range(4):
            after = k in gone and record["round"] > gone[k]
            assert (record["offered_accuracy"][k] is None) == (record["concession"][k] is None) == after
            assert not (after and record["evaluations"][k])
            assert record["test_deployed"][k] is not None  # its own model, which it goes on training
    assert any(e for record in result.clients for e in record["evaluations"])
