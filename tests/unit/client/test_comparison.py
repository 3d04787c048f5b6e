"""What "better" means: ties, confidence, unknown scores, and what a reason says."""

from __future__ import annotations

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global, LeastConcession
from feduca.client.participation import AccuracyImproves, Always, Comparison, Quits, Situation, certainly_more
from feduca.core import rounds as loop
from feduca.core.utility import Quadratic
from feduca.errors import ConfigError, RunError
from feduca.federation import InProcess
from feduca.recipes import build as experiment
from feduca.recipes import schema as config
from numpy_task import NumpyTask
from offered import LEAST, SMALL, scores, search


def test_ties_are_decided_by_loss_only_if_asked():
    new, old = scores([1.0, 1.0, 0.9], [0.1, 0.3, 0.0]), scores([1.0, 1.0, 1.0], [0.2, 0.2, 0.2])
    assert Comparison().beats(new, old).tolist() == [False, False, False]
    assert Comparison("loss").beats(new, old).tolist() == [True, False, False]


def test_a_saturated_silo_leaves_under_the_strict_rule_and_stays_with_ties_by_loss():
    perfect = [lambda c: 1.0]
    fit = [lambda c: (c - 0.5) ** 2]
    for ties, joins in (("strict", False), ("loss", True)):
        better = Comparison(ties)
        offered, _ = search(LeastConcession(better=better), *perfect, loss=fit)
        situation = Situation(2, scores([1.0], [0.25]), offered.scores, *(np.zeros((1,)),) * 3, Quadratic())
        assert AccuracyImproves(better).decide(situation).join.tolist() == [joins]


def test_confidence_by_hand():
    n = np.array([10])
    # 9 of 10 against 5 of 10: at most b = 5 differ for the better, then c = 1. P[Bin(6, 1/2) >= 5] = 7/64 = .109.
    assert certainly_more(np.array([9.0]), np.array([5.0]), n, 0.89).tolist() == [True]
    assert certainly_more(np.array([9.0]), np.array([5.0]), n, 0.90).tolist() == [False]
    # 10 of 10 against 7 of 10: b = 3, c = 0. P = 1/8.
    assert certainly_more(np.array([10.0]), np.array([7.0]), n, 0.87).tolist() == [True]
    assert certainly_more(np.array([10.0]), np.array([7.0]), n, 0.88).tolist() == [False]
    assert certainly_more(np.array([7.0]), np.array([7.0]), n, 0.0).tolist() == [False]


def test_a_confidence_turns_small_differences_into_ties():
    n = np.array([100, 100, 100])
    new, old = scores([0.95, 0.82, 0.60], [0.1, 0.1, 0.1]), scores([0.80, 0.80, 0.80], [0.2, 0.2, 0.2])
    assert Comparison(confidence=0.9).beats(new, old, n).tolist() == [True, False, False]
    # With ties by loss "cannot tell" goes to the lower loss; what is certainly worse stays worse.
    assert Comparison("loss", 0.9).beats(new, old, n).tolist() == [True, True, False]
    assert Comparison(confidence=0.9).beats(new, old, n, margin=0.14).tolist() == [False, False, False]
    # 0.98 and a margin of 0.05 ask for more correct answers than there are examples: no tie that a loss could decide.
    perfect = scores([1.0], [0.1]), scores([0.98], [0.5]), n[:1]
    assert Comparison("loss", 0.9).beats(*perfect, margin=0.05).tolist() == [False]
    assert Comparison("loss", 0.9).beats(*perfect, margin=0.01).tolist() == [True]


def test_reasons_say_what_decided():
    new = scores([0.8, 0.6, 0.75, 0.75, 0.75], [0.9, 0.1, 0.21, 0.25, 0.2])
    old = scores([0.7, 0.75, 0.75, 0.75, 0.75], [0.2, 0.2, 0.25, 0.21, 0.2])

    def said(better, new=new, old=old, n=None):
        zeros = (np.zeros(len(new.accuracy)),) * 3
        decision = AccuracyImproves(better).decide(Situation(2, old, new, *zeros, Quadratic(), n))
        assert decision.join.tolist() == better.beats(new, old, n).tolist()
        return list(zip(decision.join.tolist(), decision.reason))

    assert said(Comparison("loss")) == [
        (True, "offered 0.8000 beats own 0.7000"),
        (False, "offered 0.6000 does not beat own 0.7500"),
        (True, "equal accuracy 0.7500, loss 0.21 < 0.25"),
        (False, "equal accuracy 0.7500, loss 0.25 > 0.21"),
        (False, "equal accuracy 0.7500, loss 0.2 = 0.2"),
    ]
    assert said(Comparison())[2:4] == [(False, "equal accuracy 0.7500: no gain")] * 2
    unsure = scores([0.82, 0.8, np.nan], [0.1, 0.1, 0.1]), scores([0.8, 0.8, 0.8], [0.2, 0.2, 0.2])
    n = np.array([100, 100, 100])
    assert said(Comparison("loss", 0.9), *unsure, n) == [
        (True, "offered 0.8200 and own 0.8000 tie at confidence 0.9, loss 0.1 < 0.2"),
        (True, "equal accuracy 0.8000, loss 0.1 < 0.2"),
        (False, "offered nan does not beat own 0.8000"),
    ]
    assert said(Comparison(confidence=0.9), *unsure, n)[0] == (
        False, "offered 0.8200 and own 0.8000 tie at confidence 0.9: no gain",
    )  # fmt: skip
    close = scores([0.5], [0.2000001]), scores([0.5], [0.2000002])  # never "0.2 < 0.2"
    assert said(Comparison("loss"), *close) == [(True, "equal accuracy 0.5000, loss 0.2000001 < 0.2000002")]


def test_confidence_without_counts_says_what_is_missing():
    with pytest.raises(RunError, match="give it `validation_examples`, or set the confidence to 0"):
        Comparison(confidence=0.9).beats(scores([1.0]), scores([0.0]))


def test_nothing_beats_or_is_beaten_by_an_unknown_score():
    assert Comparison("loss").beats(scores([0.5], [0.0]), scores([np.nan], [1.0])).tolist() == [False]


def test_rule_and_offer_share_one_comparison():
    recipe = config.load({}, {**LEAST, "participation.ties": "loss", "participation.confidence": 0.7})
    how = experiment.make_behaviour(recipe, 0)
    assert how.rule.better == how.offer.better == Comparison("loss", 0.7)
    quitting = experiment.make_behaviour(recipe.with_settings({"participation.quits": 3}), 0).rule
    assert quitting == Quits(3, how.rule, Comparison("loss", 0.7))
    by_loss = config.load({}, {**LEAST, "utility.metric": "loss"})
    assert experiment.make_behaviour(by_loss, 0).offer.better.metric == "accuracy"  # Eq. 1 is about accuracy
    with pytest.raises(ConfigError, match="losses cannot"):
        config.load({}, {"participation.confidence": 0.5, "utility.metric": "loss", "participation.rule": "utility"})


def test_a_confidence_makes_silos_choosier():
    shares = [
        feduca.run({}, {**SMALL, **LEAST, "participation.confidence": level}, task=NumpyTask()).participation
        for level in (0.0, 0.6, 0.95)
    ]
    assert shares[0] >= shares[1] >= shares[2]
    assert shares[0] > shares[2]


def test_a_silos_scores_rest_on_as_many_examples_as_its_task_says():
    told = []

    class Spy(Always):
        def decide(self, situation):
            told.append(situation.validation.tolist())
            return super().decide(situation)

    task = NumpyTask(3)
    task.validation_examples = np.array([40, 41, 42])
    e = experiment.build(api.recipe({}, {**SMALL, "task.clients": 3}), 0, task)
    asked = loop.announce(e.server, loop.begin(e.server, e.theta, task.examples))
    InProcess(task, Behaviour(Spy(), Global(), Quadratic(), 0)).exchange(asked)
    InProcess(task, Behaviour(Spy(), Global(), Quadratic(), 0), one_at_a_time=True).exchange(asked)
    assert told == [[40, 41, 42], [40], [41], [42]]
