"""Offers: what they search, what they cost, when they are taken.

Most tests drive an offer by hand along a known curve: the score of a client at concession c is `curve(c)`, so that every number
can be checked on paper.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca.client.offers import Asked, BestMixture, LeastConcession
from feduca.client.participation import AccuracyImproves, Comparison
from feduca.types import Scores
from numpy_task import NumpyTask
from offered import LEAST, SMALL, hill, scores, search, situation


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
