"""Offers: what they search, what they cost, when they are taken; the model alone; quitting; conduct.

Most tests drive an offer by hand along a known curve: the score of a client at concession c is `curve(c)`, so that every number
can be checked on paper.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.analysis.audit import Outcome
from feduca.analysis.incentives import METHODS, Claims, incentives, lever, methods_for, sentence
from feduca.client.behaviour import Behaviour
from feduca.client.conduct import KINDS, Conduct, Seen
from feduca.client.memory import blank
from feduca.client.offers import Asked, BestMixture, Global, LeastConcession
from feduca.client.outside import current, plain
from feduca.client.participation import AccuracyImproves, Always, Comparison, Never, Quits, Situation, certainly_more
from feduca.client.requests import Along
from feduca.core import rounds as loop
from feduca.core.utility import Quadratic
from feduca.errors import ConfigError, InputError, RunError
from feduca.federation import InProcess
from feduca.federation.lockstep import together
from feduca.recipes import build as experiment
from feduca.recipes import schema as config
from feduca.runs import standing
from feduca.runs.directory import over_seeds
from feduca.studies.cells import Cell, cells
from feduca.studies.execute import plan
from feduca.studies.summarise import _last, beside, summarise
from feduca.types import Announcements, LocalSpec, Scores
from numpy_task import Merged, NumpyTask
from paper import offers_page

LEAST = {"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "least-concession"}
SMALL = {"rounds": 5, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10}


def scores(values, loss=None) -> Scores:
    values = np.asarray(values, float)
    return Scores(values, -values if loss is None else np.asarray(loss, float))


def search(offer, *curves, n=None, predict=None, loss=None, metric="accuracy"):
    """Drive an offer along curves of c, one client each; returns the offer and every c that was tried, in order."""
    k = len(curves)
    loss = loss or [lambda c, f=f: -f(c) for f in curves]

    def at(c):
        return scores([f(c) for f in curves], [g(c) for g in loss])

    counts = None if n is None else np.full(k, n)
    ends, mine = (at(0.0), at(1.0)), (np.zeros(1), np.ones((k, 1)), np.ones(k, bool))
    asked = Asked(np.arange(k), *mine, *ends, counts, predict, metric)
    steps, tried, answer = offer.of(asked), [], None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return stop.value, tried
        assert isinstance(request, Along)
        tried.append(dict(zip(request.clients.tolist(), request.places.tolist())))
        shape = request.places.shape
        values, losses = np.empty(shape), np.empty(shape)
        for row, client in enumerate(request.clients):
            values[row] = [curves[client](c) for c in request.places[row]]
            losses[row] = [loss[client](c) for c in request.places[row]]
        answer = Scores(values, losses)


def hill(peak, height=0.9, width=1.0):
    return lambda c: height - width * (c - peak) ** 2


# ---------------------------------------------------------------------------------------------------------------------
# The search


def test_least_concession_is_the_smallest_candidate_that_beats_the_own_model():
    # 0.9 - (c - 0.6)^2: the own model (c = 1) scores 0.74, and so does c = 0.2; the first tenth above that is 0.3.
    offered, tried = search(LeastConcession(points=10), hill(0.6))
    assert offered.concession == pytest.approx([0.3])
    assert offered.evaluations.tolist() == [3]
    assert [step[0][0] for step in tried] == pytest.approx([0.1, 0.2, 0.3])
    assert offered.scores.accuracy == pytest.approx([0.9 - 0.09])
    assert offered.theta == pytest.approx(np.array([[0.3]]))  # (1 - c) * 0 + c * 1


def test_consensus_that_already_beats_costs_nothing():
    offered, tried = search(LeastConcession(), hill(0.2))
    assert offered.concession == pytest.approx([0.0])
    assert tried == []


def test_each_client_stops_by_itself():
    offered, tried = search(LeastConcession(points=10), hill(0.6), hill(0.2), hill(0.8))
    assert offered.concession == pytest.approx([0.3, 0.0, 0.7])
    assert offered.evaluations.tolist() == [3, 0, 7]
    assert [sorted(step) for step in tried] == [[0, 2]] * 3 + [[2]] * 4


def test_the_best_point_is_offered_where_none_is_good_enough():
    offered, _ = search(LeastConcession(points=4), lambda c: [0.2, 0.5, 0.4, 0.3, 0.9][round(4 * c)])
    assert offered.concession == pytest.approx([1.0])  # its own model beats all
    offered, _ = search(LeastConcession(margin=0.2, points=4), lambda c: [0.2, 0.5, 0.4, 0.3, 0.4][round(4 * c)])
    assert offered.concession == pytest.approx([0.25])  # better than its own, if not by the margin


def test_margins_absolute_and_relative():
    # own 0.74: an absolute margin of 0.1 asks for more than 0.84 (c = 0.4 scores 0.86), a relative one for more than 0.814.
    assert search(LeastConcession(0.1), hill(0.6))[0].concession == pytest.approx([0.4])
    assert search(LeastConcession(0.1, relative=True), hill(0.6))[0].concession == pytest.approx([0.4])
    assert search(LeastConcession(0.09, relative=True), hill(0.6))[0].concession == pytest.approx([0.3 + 0.0])
    negative = Comparison(metric="loss")  # utility is the negative loss: a relative margin is still an improvement
    flat = search(
        LeastConcession(0.5, better=negative, relative=True), hill(0.6), loss=[lambda c: 1.0 - 0.2 * (c == 0.5)]
    )
    assert flat[0].concession == pytest.approx([0.5])


def test_a_budget_bounds_the_passes():
    offered, tried = search(LeastConcession(points=10, budget=2), hill(0.8), hill(0.6))
    assert offered.evaluations.tolist() == [2, 2]
    assert len(tried) == 2
    assert offered.concession == pytest.approx(
        [1.0, 0.2]
    )  # best so far: own 0.86; and 0.2, which ties with the own model
    best, tried = search(BestMixture(points=10, budget=3), hill(0.5))
    assert best.evaluations.tolist() == [3]
    assert tried[0][0] == pytest.approx([0.25, 0.5, 0.75])


def test_the_guided_search_halves_and_finds_the_same_point_on_a_concave_path():
    for peak in np.linspace(0.5, 0.99, 12):
        slow, _ = search(LeastConcession(points=20), hill(peak))
        fast, _ = search(LeastConcession(points=20, search="guided"), hill(peak))
        assert fast.concession == pytest.approx(slow.concession)
        wins = hill(peak)(slow.concession[0]) > hill(peak)(1.0)
        assert fast.evaluations[0] <= (5 if wins else 19)  # who finds none looks everywhere


def test_a_curve_guides_the_first_look_and_the_realised_point_decides():
    right = search(
        LeastConcession(points=20, search="guided"), hill(0.6), predict=lambda c: np.stack([[hill(0.6)(x)] for x in c])
    )
    assert right[1][0][0] == pytest.approx([0.25])  # where the curve crosses
    wrong = search(LeastConcession(points=20, search="guided"), hill(0.6), predict=lambda c: np.full((len(c), 1), 9.0))
    assert wrong[1][0][0] == pytest.approx([0.05])  # the curve promises everything ...
    assert wrong[0].concession == pytest.approx([0.25])  # ... and is not believed
    none = search(
        LeastConcession(points=20, search="guided"), hill(0.6), predict=lambda c: np.full((len(c), 1), np.nan)
    )
    assert none[1][0][0] == pytest.approx([0.5])


def test_a_curve_is_asked_for_the_margin_too_and_only_about_what_it_is_of():
    curve = {"predict": lambda c: np.stack([[hill(0.6)(x)] for x in c])}
    wide = search(LeastConcession(0.1, points=20, search="guided"), hill(0.6), **curve)
    assert wide[1][0][0] == pytest.approx([0.4])  # the first above 0.74 + 0.1; 0.25 is the first above 0.74
    losses = search(LeastConcession(points=20, search="guided"), hill(0.6), **curve, metric="loss")
    assert losses[1][0][0] == pytest.approx([0.5])  # utility is the negative loss, Eq. 1 asks about accuracy: no hint
    negative = LeastConcession(points=20, better=Comparison(metric="loss"), search="guided")
    assert search(negative, hill(0.6), **curve, metric="loss")[1][0][0] == pytest.approx([0.25])


def test_the_guided_search_loses_nobody():
    def only(c, won=0.1):  # one winner, far from where halving looks
        return 0.9 if abs(c - won) < 1e-9 else 0.8 if c == 1 else 0.7

    for j in range(1, 10):
        found, tried = search(LeastConcession(search="guided"), lambda c, j=j: only(c, j / 10), hill(0.99))
        assert found.concession == pytest.approx([j / 10, 1.0])
        for k in (0, 1):
            places = [step[k][0] for step in tried if k in step]
            assert len(set(places)) == len(places) == found.evaluations[k]  # nothing is tried twice
        assert found.evaluations[1] == 9  # about to decline: it has looked everywhere
    short, _ = search(LeastConcession(search="guided", budget=3), only)
    assert (short.concession.tolist(), short.evaluations.tolist()) == ([1.0], [3])
    # Concave with a margin: those who win by it are an interval off the own model.
    found, _ = search(LeastConcession(0.035, search="guided"), lambda c: np.interp(c, [0, 0.2, 1], [0.7, 0.9, 0.86]))
    assert found.concession == pytest.approx([0.2])


def test_the_best_mixture_asks_nothing_of_silos_without_a_model():
    one = np.ones(2)
    known = np.array([True, False])
    asked = Asked(np.arange(2), np.zeros(1), np.ones((2, 1)), known, scores(0.5 * one), scores([0.6, np.nan]))
    steps = BestMixture(points=4).of(asked)
    request = next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(Scores(np.full(request.places.shape, 0.9), np.full(request.places.shape, 0.1)))
    offered = stop.value.value
    assert offered.evaluations.tolist() == [3, 0]
    assert offered.concession.tolist() == [0.25, 0.0]


def test_no_offer_is_declined_while_another_would_be_accepted():
    # 100 examples at confidence 0.9: .79 to .82 all tie with the own .80, so the loss decides; only .79 has a lower one.
    accuracy = {0: 0.5, 0.25: 0.79, 0.5: 0.82, 0.75: 0.80, 1: 0.80}
    loss = {0: 2.0, 0.25: 0.4, 0.5: 0.6, 0.75: 0.9, 1: 0.5}
    better = Comparison("loss", 0.9)
    for offer in (BestMixture(4, better), LeastConcession(0.3, 4, better), LeastConcession(0.0, 4, better)):
        offered, _ = search(offer, accuracy.__getitem__, n=100, loss=[loss.__getitem__])
        assert offered.concession == pytest.approx([0.25])
        assert better.beats(offered.scores, scores([0.8], [0.5]), np.array([100])).tolist() == [True]
    # A shared model without a score is beaten by any that has one.
    broken, _ = search(BestMixture(), lambda c: np.nan if c == 0 else 0.8 - abs(c - 0.5))
    assert broken.concession == pytest.approx([0.5])


def test_under_eq_2_an_offer_is_judged_where_it_lies():
    """Offer(c) lies at r = a + c (1 - a): the silo's reason says at which r it looked."""
    settings = {**SMALL, "rounds": 6, "participation.rule": "utility", "offer.kind": "best-mixture"}
    result = feduca.run({}, settings, task=NumpyTask())
    seen = 0
    for before, now in zip(result.clients, result.clients[1:]):
        for a, c, why in zip(before["announced"], now["concession"], now["reason"]):
            looked = float(why.removeprefix("u(").partition(")")[0])
            assert looked == pytest.approx(a + c * (1 - a), abs=6e-5)
            seen += 0 < c < 1
    assert seen > 3


# ---------------------------------------------------------------------------------------------------------------------
# What "better" means


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


@pytest.mark.parametrize("ties", ["strict", "loss"])
def test_trained_from_consensus_the_best_mixture_trains_the_same_shared_model(ties):
    """Someone accepts the best point exactly if some point is worth accepting, and what is deployed is not trained."""
    settings = {**SMALL, **LEAST, "rounds": 8, "offer.train_from": "consensus", "participation.ties": ties}
    least, best = (
        feduca.run({}, {**settings, "offer.kind": kind}, task=NumpyTask(validation=25))
        for kind in ("least-concession", "best-mixture")
    )
    assert [r["status"] for r in least.clients] == [r["status"] for r in best.clients]
    assert [r["accuracy"] for r in least.rounds] == [r["accuracy"] for r in best.rounds]
    assert 0 < least.participation < 1
    sought = [np.nansum([r["concession"] for r in run.clients]) for run in (least, best)]
    assert sought[1] > sought[0]


# ---------------------------------------------------------------------------------------------------------------------
# Alone


def test_the_model_alone_equals_the_row_in_which_nobody_joins():
    task = NumpyTask()
    beside_ = feduca.run({}, {**SMALL, **LEAST, "alone": True}, task=task)
    alone = feduca.run({}, {**SMALL, "mechanism.name": "fedavg", "participation.rule": "never"}, task=task)
    for a, b in zip(beside_.clients, alone.clients):
        assert a["test_alone"] == b["test_deployed"]
    assert alone.participation == pytest.approx(1 / 5)  # everybody joins in round 1
    assert beside_.clients[-1]["test_alone"] != beside_.clients[-1]["test_deployed"]
    without = feduca.run({}, {**SMALL, **LEAST}, task=task)
    assert without.clients[-1]["test_alone"] is None
    assert np.array_equal(without.theta, beside_.theta)  # looking does not change anything


def test_alone_has_no_term_of_the_method():
    spec = LocalSpec(prox=0.3, objective="propfair", bound=5.0, lr=0.2)
    assert plain(spec) == LocalSpec(lr=0.2)
    own = {name: {**SMALL, "mechanism.name": name, "alone": True} for name in ("fedavg", "fedprox", "propfair")}
    own["fedprox"]["mechanism.mu"] = 5.0
    runs = {name: feduca.run({}, {**settings}, task=NumpyTask()) for name, settings in own.items()}
    alone = [[record["test_alone"] for record in run.clients] for run in runs.values()]
    assert alone[0] == alone[1] == alone[2]
    assert not np.array_equal(runs["fedavg"].theta, runs["fedprox"].theta)


def test_a_newcomers_model_alone_starts_where_the_run_did():
    task = NumpyTask()
    first, theta = task.init(7), np.full(4, 3.0)  # long since federated
    memory = blank(theta, 2, Quadratic())
    asked = Announcements("run", 5, np.arange(2), theta, *(np.full(2, 0.5),) * 2, np.ones(1), LocalSpec())
    assert np.array_equal(current(memory, asked, lambda: first), [first, first])
    assert np.array_equal(current(memory, replace(asked, round=1)), [theta, theta])  # it is sent the first
    assert current(memory, asked) is None
    assert current(memory, asked, lambda: np.full(4, np.nan)) is None  # nobody knows
    mixed = replace(memory, trained=np.array([True, False]), extra={"alone": np.full((2, 4), 9.0)})
    assert np.array_equal(current(mixed, asked, lambda: first), [np.full(4, 9.0), first])
    assert current(replace(memory, trained=np.array([True, False])), asked, lambda: first) is None


def test_the_model_alone_survives_snapshot_and_lockstep():
    settings = {**SMALL, **LEAST, "participation.quits": 2}
    recipe = api.recipe({}, settings)
    whole = api.run(recipe, seed=1, task=NumpyTask(seed=1))
    first, second = (experiment.build(recipe, 1, NumpyTask(seed=1)) for _ in range(2))
    items = loop.steps(first.server, first.theta, first.task.examples, first.federation)
    state = [next(items) for _ in range(3)][-1][2]
    assert set(first.federation.snapshot()) >= {"extra.alone", "extra.behind"}
    second.federation.restore(first.federation.snapshot())
    rest = list(loop.steps(second.server, second.theta, second.task.examples, second.federation, state=state))
    assert np.array_equal(rest[-1][2].theta, whole.theta)
    assert list(rest[-1][1].status) == whole.clients[-1]["status"]
    pair = [experiment.build(recipe, seed, NumpyTask(seed=seed)) for seed in (1, 2)]
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in pair]
    finals = together(loops, [e.federation for e in pair], Merged([e.task for e in pair]))
    assert np.array_equal(finals[0].theta, whole.theta)


# ---------------------------------------------------------------------------------------------------------------------
# Quitting


def situation(offered, own, alone, extra=None):
    k = len(own)
    return Situation(
        2, scores(own), scores(offered), np.zeros(k), np.zeros((k, 3)), np.zeros(k), Quadratic(), None, scores(alone), extra or {}
    )  # fmt: skip


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


# ---------------------------------------------------------------------------------------------------------------------
# Better off than alone


def test_the_summary_says_who_is_better_off_as_a_study_does():
    results = [
        feduca.run({}, {**SMALL, **LEAST, "alone": True}, task=NumpyTask(seed=seed), seed=seed) for seed in (0, 1)
    ]
    recipe = api.recipe({}, {**SMALL, **LEAST, "alone": True, "task.test_share": 0.5})
    cell = beside([summarise(Cell({"method": "x"}, recipe), [with_task(result) for result in results])])[0]
    said = [result.summary for result in results]
    assert cell["gain_worst"] == min(s["gain_worst"] for s in said)
    for mine, theirs in {
        "alone": "alone_test_mean",
        "better_off": "better_off_share",
        "gain_mean": "gain_mean",
    }.items():
        assert np.mean([s[mine] for s in said]) == pytest.approx(cell[theirs])
    deployed, alone = (np.mean([r[f"test_{what}"] for r in results[0].clients], 0) for what in ("deployed", "alone"))
    gains = np.round(deployed, 5) - np.round(alone, 5)
    assert said[0]["better_off"] == (gains > 0).mean()
    assert said[0]["gain_worst_silo"] == f"silo-{gains.argmin()}"
    assert said[0]["gain_worst"] == pytest.approx(gains.min(), abs=2e-5)
    ends = [result.clients[-1].get("paired") for result in results]
    row = over_seeds([result.row() for result in results], ends, recipe.plain()["task"])
    assert row["gain_worst"] == cell["gain_worst"]
    assert row["gain_worst_silo"] == min(said, key=lambda s: s["gain_worst"])["gain_worst_silo"]
    without = feduca.run({}, {**SMALL, **LEAST}, task=NumpyTask()).summary
    assert not {"alone", "better_off", "gain_mean", "gain_worst", "gain_worst_silo"} & without.keys()


def with_task(result):
    """A study's results come from recipes; this one's task is its own."""
    return replace(result, config={**result.config, "engine": {"device": "cpu", "precision": "fp32"}})


def test_who_is_better_off_by_hand():
    records = [
        {"test_deployed": [0.9, 0.5, None, 0.7], "test_alone": [0.6, 0.6, None, 0.7]},
        {"test_deployed": None, "test_alone": None},  # a round in which nobody answered
        {"test_deployed": [0.7, 0.5, None, 0.7, 0.5], "test_alone": [0.6, 0.6, None, 0.7, 0.3]},  # one came later
    ]
    names = ["a", "b", "c", "d", "e"]
    said = standing.summary(records, names)
    assert said == pytest.approx(
        {"alone": 0.55, "better_off": 0.5, "gain_mean": 0.075, "gain_worst": -0.1, "gain_worst_silo": "b"}
    )
    assert standing.better_off(records, names) == (
        "deployed 62.5 % against 55.0 % alone on untouched data: 2 of 4 silos with such data (of 5) better off,"
        " mean +7.5 points, worst b -10.0"
    )
    assert "mean +0.075, worst b -0.100" in standing.better_off(records, names, "r2")
    assert standing.better_off([{"test_deployed": [0.5], "test_alone": None}], ["a"]) == ""


def test_who_quit_is_said_so_that_nobody_reads_it_the_other_way_round():
    gone = standing.left([(1, ["joined", "joined"]), (2, ["left", "declined"]), (3, ["left", "left"])])
    assert gone == {0: 2, 1: 3}
    records = [{"round": r, "status": words} for r, words in ((1, ["joined", "joined"]), (2, ["declined", "left"]))]
    assert standing.membership([{}, {}], records, ["a", "b"]) == {"still_in": 0.5, "left": {"b": 2}}
    assert standing.membership([{"members": 2}], records[:1], ["a", "b"]) == {"still_in": 1.0, "left": {}}
    by_operator = standing.membership([{"members": 1}], records[:1], ["a", "b"])
    assert by_operator == {"still_in": 0.5, "left": {}}
    assert standing.departed({}, ["a", "b"]) == ""
    assert standing.departed({1: 3}, ["a", "b"]) == "1 of 2 silos quit for good: b (round 3)"
    assert standing.departed(gone, ["a", "b"]) == (
        "2 of 2 silos quit for good: a (round 2), b (round 3); the federation is empty since round 3, and its shared model"
        " stands still"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"participation.rule": "never", "participation.quits": 3}, r"participation\.quits is 3 with .* 'never'"),
        ({**LEAST, "offer.points": 1001}, r"offer\.points is 1001: it should be less than or equal to 1000"),
        ({**LEAST, "offer.margin": 1.0}, r"offer\.margin is 1: accuracies lie between 0 and 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        config.load({}, settings)


def test_settings_that_can_be_meant_are_not_refused():
    config.load({}, {"participation.quits": 3})  # judged by validation data
    config.load({}, {**LEAST, "offer.margin": 1.0, "offer.margin_kind": "relative"})
    by_loss = {"participation.rule": "utility", "utility.metric": "loss", "offer.kind": "least-concession"}
    config.load({}, {**by_loss, "offer.margin": 1.5})
    rows = [{"label": "x", "set": {"participation.rule": "accuracy"}}]
    base = {"participation": {"rule": "never", "quits": 3}}
    assert cells(config.load({**base, "compare": rows}))  # a row settles what its base leaves open
    with pytest.raises(ConfigError, match="under which nobody is in to quit"):
        cells(config.load({**base, "compare": [*rows, {"label": "y", "set": {}}]}))


def test_models_alone_need_somebody_to_be_judged(caplog):
    task = NumpyTask()
    task.test_examples = np.zeros(4, int)
    result = feduca.run({}, {**SMALL, "alone": True}, task=task)
    assert "no silo has test data: who is better off than alone is not judged; give silos test rows" in caplog.text
    assert "better_off" not in result.summary
    feduca.run({}, {**SMALL, "rounds": 1, "participation.quits": 2}, task=task)
    for share, said in (
        (0.0, r"set task\.test_share, such as 0\.5"),
        (0.01, r"raise task\.test_share, which is 0\.01"),
    ):
        with pytest.raises(ConfigError, match=f"no silo has test data.*: {said}, or leave alone out"):
            feduca.run({}, {"alone": True, "task.test_share": share})
    whole = experiment.make_task(api.recipe({}, {"task.test_share": 0.5}), 0)
    rows = {part: kept[:0] if part == "test" else kept for part, kept in whole.members[2].rows.items()}
    lacking = replace(whole, members=(*whole.members[:2], replace(whole.members[2], rows=rows), *whole.members[3:]))
    chosen = api.recipe({}, {"alone": True, "task.test_share": 0.5})
    with pytest.raises(ConfigError, match=r"task\.test_share 0\.5 leaves silo-2 no test data; raise task\.test_share"):
        experiment.build(chosen, 0, lacking)


@pytest.mark.parametrize("offer", [LeastConcession(better=Comparison("loss")), BestMixture(better=Comparison("loss"))])
def test_a_search_that_found_nothing_says_so(offer):
    offered, _ = search(offer, lambda c: 0.5 + 0.5 * c)  # the own model is the best point on the way
    assert offered.concession == [1]
    seen = replace(situation([1.0], [1.0], [0.5]), offered=offered.scores, concession=offered.concession)
    assert AccuracyImproves(Comparison("loss")).decide(seen).reason == [
        "no point on the way beat its own model: accuracy 1.0000, loss -1"
    ]
    assert AccuracyImproves().decide(seen).reason == ["no point on the way beat its own model: accuracy 1.0000"]
    assert AccuracyImproves().decide(replace(seen, concession=None)).reason == ["equal accuracy 1.0000: no gain"]


# ---------------------------------------------------------------------------------------------------------------------
# Conduct


SHARED, GIVEN, NEW = np.zeros((2, 3)), np.ones((2, 3)), np.full((2, 3), 4.0)


def done(kind, round=1, shared=SHARED, kept=None, who=(1,)):
    """What two silos have and send when those of `who` behave like that, and what they keep."""
    conduct, clients = Conduct(kind, who, after=1, noise=0.0), np.array([0, 1])
    seen = Seen(round, 0, clients, shared, GIVEN, NEW, np.full(2, round > 1), conduct.who(clients), kept or {})
    seen = replace(seen, new=conduct.works(seen))
    return seen.new, conduct.sends(seen), conduct.deed.keeps(seen)


def test_conduct_by_hand():
    sent = {kind: done(kind)[1] for kind in KINDS if kind != "copy"}
    for model in sent.values():
        assert np.array_equal(model[0], NEW[0])  # the honest one
    for kind in ("honest", "refuse", "take", "lapse", "stale", "forge"):  # in the first round, that is
        assert np.array_equal(sent[kind][1], NEW[1])
    assert np.array_equal(sent["withhold"][1], SHARED[1])
    for kind in ("echo", "idle", "replay"):
        assert np.array_equal(sent[kind][1], GIVEN[1])
    for kind in ("noise", "fixed"):
        assert np.linalg.norm(sent[kind][1] - SHARED[1]) == pytest.approx(np.linalg.norm(NEW[1] - SHARED[1]))
        assert np.array_equal(sent[kind], done(kind)[1])
    assert not np.array_equal(sent["noise"][1], done("noise", 2)[1][1])  # a new draw every round
    assert np.array_equal(sent["fixed"][1], done("fixed", 2)[1][1])
    assert np.array_equal(done("idle")[0], [[4, 4, 4], [1, 1, 1]])
    clients = np.array([0, 1])
    assert Conduct("refuse", (1,)).willing(clients).tolist() == [True, False]
    assert Conduct("refuse").willing(clients).tolist() == [False, False]
    assert Conduct("take", (1,)).sly(clients).tolist() == [False, True]


def test_deeds_that_remember_by_hand():
    later = SHARED + 2.0
    assert np.array_equal(done("lapse", 2)[1][1], GIVEN[1])
    kept = done("replay")[2]
    assert np.array_equal(done("replay", 2, later, kept)[1], [[4, 4, 4], [4, 4, 4]])  # 2, and the step from 0 to 2
    kept = done("stale")[2]
    assert np.array_equal(done("stale", 2, later, kept)[1][1], [6, 6, 6])  # 2, and the first update, 4
    assert np.array_equal(done("stale", 2, later, kept)[0][1], GIVEN[1])  # it did not train
    assert done("stale", 2, later, kept)[2]["deed.update"][1].tolist() == [4, 4, 4]
    assert done("forge", 2, later, done("forge")[2])[1][1] == pytest.approx(6 - 0.3 * 2)
    have, sent, _ = done("copy", who=(0, 1))
    assert np.array_equal(have[1], GIVEN[1])
    assert np.array_equal(sent[0], sent[1])
    with pytest.raises(ConfigError, match="no other silo to copy from"):
        done("copy")


def test_who_only_says_that_it_declines_deploys_the_offer():
    settings = {**SMALL, "participation.rule": "always"}
    honest = feduca.run({}, settings, task=NumpyTask())
    sly = feduca.run({}, {**settings, "conduct.kind": "take", "conduct.clients": [0]}, task=NumpyTask())
    assert [record["status"][0] for record in sly.clients] == ["joined"] + ["declined"] * 4
    for record in sly.clients[1:]:
        assert record["test_deployed"][0] == record["test_global"][0]
    assert honest.clients[1]["test_deployed"][0] == honest.clients[1]["test_global"][0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "honest"])
def test_every_conduct_runs_and_changes_the_outcome(kind):
    settings = {**SMALL, **LEAST, "participation.ties": "loss"}
    honest = feduca.run({}, settings, task=NumpyTask())
    who = [0, 1] if kind == "copy" else [0]
    more = {"conduct.after": 2} if kind == "lapse" else {}
    other = feduca.run({}, {**settings, **more, "conduct.kind": kind, "conduct.clients": who}, task=NumpyTask())
    assert not np.array_equal(honest.theta, other.theta)
    if kind == "refuse":
        assert [record["status"][0] for record in other.clients] == ["joined"] + ["declined"] * 4
    with pytest.raises(ConfigError, match=r"conduct\.clients names silo 7"):
        config.load({}, {"conduct.clients": [7], "task.clients": 4})


def test_a_silo_may_claim_more_than_it_has():
    task = NumpyTask()
    liar = Claims(task, 0)
    assert liar.examples.tolist() == [200, *task.examples[1:].tolist()]
    assert liar.silos == task.silos
    settings = {**SMALL, "mechanism.name": "fedavg", "participation.rule": "always", "mechanism.beta": "examples"}
    weights = [feduca.run({}, settings, task=t).clients[0]["alpha"][0] for t in (task, liar)]
    assert weights[1] > 3 * weights[0]


def test_incentives_on_the_smallest_federation():
    recipe = api.recipe(
        "quickstart", {"rounds": 2, "local.epochs": 1, "task.test_share": 0.5, "task.max_examples": 600}
    )
    found = incentives(recipe, seeds=(0,), deviators=1, deeds=("refuse", "inflate", "claim"))
    assert [(row["method"][:5], row["deed"]) for row in found["rows"]] == [
        ("least", "refuse"), ("least", "claim"), ("least", "refuse"), ("least", "claim"), ("best ", "refuse"), ("best ", "claim"),
        ("FedUC", "refuse"), ("FedUC", "inflate"), ("FedUC", "claim"),
    ]  # fmt: skip
    assert len(found["verdict"]) == 9
    assert all("one case does not tell" in said for said in found["verdict"])
    assert not lever("inflate", {"name": "fedavg", "beta": "uniform"})  # nobody reads the threshold
    assert not lever("claim", {"name": "random"})  # nor counts
    assert not lever("claim", {"name": "mine", "beta": 0.5})
    with pytest.raises(InputError, match=r"set task\.test_share"):
        incentives(api.recipe("quickstart"))
    with pytest.raises(InputError, match="choose 1 to 10"):
        incentives(recipe, deviators=11)


def test_what_a_recipe_chooses_is_audited_beside_methods_that_are_what_their_labels_say():
    assert list(methods_for(api.recipe("quickstart"))) == list(METHODS)
    mine = {
        "mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "best-mixture",
        "offer.train_from": "consensus", "offer.points": 7, "participation.confidence": 0.9,
    }  # fmt: skip
    own, *ours = methods_for(api.recipe("quickstart", mine)).items()
    assert own[0] == "this recipe (fedavg, accuracy, best-mixture)"
    assert (own[1].offer.points, own[1].participation.confidence) == (7, 0.9)
    assert [label for label, _ in ours] == list(METHODS)
    for label, one in ours:
        assert one.participation.confidence == 0  # Eq. 1 is
        assert one.offer.train_from == ("consensus" if "consensus" in label else "offer")
        assert one.offer.points == (10 if "FedUCA" in label else 7)
    lagged = methods_for(api.recipe("quickstart", {"mechanism.schedule": "lagged"}))
    assert lagged["FedUCA fresh, Eq. 2"].mechanism["schedule"] == "fresh"
    assert "this recipe (feduca, utility, global)" in lagged
    said: list[str] = []
    found = methods_for(api.recipe("quickstart", {"offer.points": 7}), said.append)  # means something to offers only
    assert list(found) == list(METHODS)
    assert said[0].startswith("this recipe (feduca, utility, global): left out, since quickstart: offer.points is 7")


def test_a_lie_is_compared_with_the_truth_under_the_same_weights(monkeypatch):
    """Figures by hand: weights by examples are worth 0.2 to everybody, the claim 0.01 to the liar and -0.03 to the others."""
    few = {"rounds": 1, "task.test_share": 0.5, "task.clients": 3, "task.max_examples": 300}
    recipe = api.recipe("quickstart", few)
    played = []

    def one(chosen, task=None):
        beta, conduct = chosen.mechanism["beta"], chosen.conduct
        played.append((beta, conduct.kind, isinstance(task, Claims)))
        silos = np.full(3, 0.7 if beta == "examples" else 0.5)
        if isinstance(task, Claims):
            silos = silos + np.where(np.arange(3) == task.liar, 0.01, -0.03)
        elif conduct.kind != "honest":
            silos = silos + np.where(np.arange(3) == conduct.clients[0], 0.3, -0.06)
        return Outcome(silos.tolist(), [1 / 3] * 3, [1.0] * 3, 0.5, 1.0)

    monkeypatch.setattr("feduca.analysis.incentives._play", lambda jobs, *_: [one(chosen) for chosen, _ in jobs])
    monkeypatch.setattr("feduca.analysis.incentives.api.run", lambda chosen, seed, task: one(chosen, task))
    monkeypatch.setattr("feduca.analysis.incentives.outcome", lambda ran: ran)
    methods = {"fedavg": recipe.with_settings({"mechanism.name": "fedavg"})}
    found = incentives(recipe, seeds=(0,), deviators=3, methods=methods, deeds=("echo", "claim"))
    rows = {row["deed"]: row for row in found["rows"]}
    assert rows["claim"]["own"]["mean"] == pytest.approx(0.01)
    assert rows["claim"]["others"]["mean"] == pytest.approx(-0.03)
    assert rows["echo"]["own"]["mean"] == pytest.approx(0.3)
    assert rows["echo"]["others"]["mean"] == pytest.approx(-0.06)
    assert played.count(("examples", "honest", False)) == 1  # the truth is played once


def test_a_verdict_needs_two_standard_errors():
    def row(mean, error):
        value = {"mean": mean, "stderr": error}
        base = {"method": "m", "deed": "echo", "gained": 0.5, "lost": 0.5, "cases": 6}
        return {**base, **dict.fromkeys(("own", "others", "accuracy"), value)}

    assert " loses: -3.0 +- 1.0" in sentence(row(-0.03, 0.01))
    assert " gains: +3.0" in sentence(row(0.03, 0.01))
    assert "neither clearly gains nor loses" in sentence(row(-0.03, 0.02))


# ---------------------------------------------------------------------------------------------------------------------
# Summaries and recipes


def cell(rule, deployed=None, **more):
    return {
        "start": "x",
        "train": "x",
        "rule": rule,
        "offer": "global",
        "mechanism": "fedavg",
        "seeds": [0, 1],
        "accuracies": [0.8, 0.6],
        "deployed_test": deployed,
        "alone_test": None,
    } | more


def test_cells_are_judged_by_their_neighbours():
    joined = beside(
        [
            cell("always", [[0.9, 0.9], [0.9, 0.9]]),
            cell("never", [[0.5, 0.7], [0.6, 0.8]]),
            cell("accuracy", [[0.6, 0.6], [0.7, 0.8]], offer="least-concession"),
            cell("accuracy", [[0.6, 0.6], [0.7, 0.8]], start="another task", train="another task"),
            cell("accuracy", [[0.6]], seeds=[7], offer="least-concession"),
        ]
    )
    offer = joined[2]
    assert offer["ceiling_accuracy_mean"] == pytest.approx(0.7)
    assert offer["alone_test_mean"] == pytest.approx(0.65)
    assert offer["better_off_share"] == 0.5
    assert offer["not_worse_share"] == 0.75
    assert offer["gain_mean"] == pytest.approx(0.025)
    assert offer["gain_worst"] == pytest.approx(-0.1)
    assert offer["gain_worst_mean"] == pytest.approx(-0.05)
    assert "ceiling_accuracy_mean" not in joined[3]
    assert "better_off_share" not in joined[4]  # the floor was not run for that seed
    fewer = cell("always", [[0.9, 0.9]], seeds=[0], accuracies=[0.8])  # the same task in another study, with one seed
    for cells_ in ([cell("always"), fewer, joined[2]], [fewer, cell("always"), joined[2]]):
        assert [c["ceiling_accuracy_mean"] for c in beside(cells_) if len(c["seeds"]) == 2] == pytest.approx([0.7, 0.7])
    own = beside([cell("accuracy", [[0.6], [0.7]], alone_test=[[0.5], [0.5]])])[0]
    assert own["better_off_share"] == 1  # a run that trained the models alone itself needs no neighbour


def test_a_summary_is_about_the_last_ten_rounds():
    records = [{"test_deployed": [t / 100, None if t == 12 else 1.0]} for t in range(1, 13)]
    run = SimpleNamespace(clients=records)
    assert _last([run, run], "test_deployed") == [[0.075, 1.0]] * 2  # rounds 3 to 12
    assert _last([run], "test_alone") is None


def test_options_of_a_search_are_refused_where_nothing_is_searched():
    for key, value in {"margin": 0.1, "points": 6, "budget": 3, "search": "guided", "train_from": "consensus"}.items():
        with pytest.raises(ConfigError, match=rf"offer\.{key} is {value!r} with offer\.kind 'global'"):
            config.load({}, {f"offer.{key}": value})
        with pytest.raises(ConfigError, match=rf"offer\.{key} is"):
            api.run("quickstart", {f"offer.{key}": value})  # its rows search, the run itself does not
        assert getattr(config.load({}, {"offer.kind": "least-concession", f"offer.{key}": value}).offer, key) == value


def test_options_of_a_tables_base_are_for_the_rows_that_search():
    plain = {c.label: c.recipe for c in cells(config.load("quickstart"))}
    found = {c.label: c.recipe for c in cells(config.load("quickstart", {"offer.points": 6}))}
    assert found["least concession, Eq. 1"].offer.points == found["best mixture, Eq. 1"].offer.points == 6
    assert found["FedAvg, Eq. 1"].hash() == plain["FedAvg, Eq. 1"].hash()  # the same run as ever
    rows = {
        "compare": [{"label": "x", "set": {"offer.points": 6}}, {"label": "y", "set": {"offer.kind": "best-mixture"}}]
    }
    with pytest.raises(ConfigError, match=r"offer\.points is 6 with offer\.kind 'global'"):
        cells(config.load(rows))


def test_new_options_leave_the_names_of_earlier_runs_alone():
    base = config.load({"offer": {"kind": "best-mixture"}, "task": {"test_share": 0.5}})
    for dotted, value in (
        ("offer.budget", 3),
        ("offer.train_from", "consensus"),
        ("alone", True),
        ("participation.quits", 4),
        ("conduct.kind", "echo"),
    ):
        assert base.with_settings({dotted: value}).hash() != base.hash()
    assert base.with_settings({"study": "ablation", "also": ["paper"]}).hash() == base.hash()


def test_the_small_recipes_hold_what_they_say():
    quick = {c.label: c.recipe for c in cells(config.load("offers-quickstart"))}
    assert quick["forced"].participation.rule == "always"
    assert quick["least-concession, ties by loss"].participation.ties == "loss"
    assert all(
        recipe.seeds == [0, 1, 2, 3, 4] and recipe.memory.kind in ("update", "model") for recipe in quick.values()
    )
    sizes = {c.labels["validation"] for c in cells(config.load("offers-validation"))}
    assert sizes == {"8", "16", "32"}


def test_the_page_shows_what_the_summaries_say():
    root = Path(__file__).parents[3]
    pages = [(root / name).read_text() for name in offers_page.PAGES]
    for page in pages:
        today = offers_page.filled(page, lambda name: offers_page.block(name, root / "results"))
        assert today == page  # else: python -m paper.offers_page
    assert sum(page.count("<!-- table ") for page in pages) == 8
    assert any("| least-concession, ties by loss |" in page for page in pages)
    empty = offers_page.filled(
        "<!-- table offers:main -->\nold\n<!-- end -->", lambda name: offers_page.block(name, root / "nowhere")
    )
    assert (
        empty == "<!-- table offers:main -->\nNot run yet: `feduca reproduce offers --only study=main`.\n<!-- end -->"
    )


def test_few_examples_do_not_break_the_quickstart():
    """The promise of the study, on the committed summary: with ties by loss within 4 points of the forced-in ceiling."""
    found = json.loads((Path(__file__).parents[3] / "results" / "offers-quickstart.json").read_text())
    row = next(c for c in found if c["labels"]["method"] == "least-concession, ties by loss")
    assert row["seeds"] == [0, 1, 2, 3, 4]
    assert row["accuracy_mean"] > row["ceiling_accuracy_mean"] - 0.04


def test_the_parts_of_the_study():
    found = plan("offers")
    assert {c.labels["study"] for c in found} == {"main", "heterogeneity", "silos", "ablation", "quitting"}
    assert all(c.recipe.task.test_share > 0 and c.recipe.name == "offers" for c in found)
    main = [c for c in found if c.labels["study"] == "main"]
    places = {(c.labels["data"], c.labels["split"]) for c in main}
    assert places >= {(data, split) for data in ("cifar10", "fmnist") for split in ("0.5,1.0", "1.0,1.0")}
    quitting = plan("offers", keep={"study": ["quitting"], "data": ["fmnist"]})
    assert quitting
    assert all(c.recipe.participation.quits == 10 and c.recipe.task.data == "fmnist" for c in quitting)
    sizes = [round((1 - c.recipe.task.test_share) * 1200) for c in found if "validation examples" in c.labels["method"]]
    assert sorted(set(sizes)) == [50, 100, 200, 500, 1000]


def test_cells_that_ask_for_the_same_run_share_it(tmp_path):
    recipe = api.recipe("quickstart", {"rounds": 1, "local.epochs": 1, "task.max_examples": 400, **LEAST})
    first, second, other = api.run_many([(recipe, 0), (recipe, 0), (recipe, 1)], out=tmp_path, lockstep=3)
    assert first.run_dir == second.run_dir != other.run_dir
