"""The outside option kept alive: what it is to the bit, that nobody is spoilt by it, what it costs, and how it survives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.client.memory import blank
from feduca.client.offers import Asked, BestMixture, LeastConcession
from feduca.client.outside import Outside
from feduca.client.participation import AccuracyImproves, Comparison, Quits, Situation
from feduca.client.requests import drive
from feduca.core import rounds as loop
from feduca.core.utility import Quadratic
from feduca.errors import ConfigError
from feduca.recipes import build as experiment
from feduca.recipes.schema import load
from feduca.types import Announcements, LocalSpec, Scores
from numpy_task import NumpyTask
from other_ways import check_other_ways

SMALL = {"rounds": 6, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10, "mechanism.name": "fedavg"}
OUTSIDE = {**SMALL, "participation.rule": "accuracy", "participation.ties": "loss", "participation.against": "outside"}
BEST_KEPT, SELDOM = {"outside.kind": "best-kept"}, {"outside.every": 3}
VARIANTS = pytest.mark.parametrize("settings", [{}, BEST_KEPT, SELDOM], ids=["private", "best-kept", "every 3"])


def declined(row):
    return np.array([word == "declined" for word in row["status"]])


def test_the_private_model_is_the_model_alone_to_the_bit():
    """Whatever a silo accepts: it deploys, when it declines, exactly what the row under the rule `never` deploys."""
    task = NumpyTask()
    alone = feduca.run({}, {**SMALL, "participation.rule": "never"}, task=task)
    for rule in ("accuracy", "loss", "always", "never", "utility"):
        run = feduca.run({}, {**OUTSIDE, "participation.rule": rule, "offer.kind": "best-mixture"}, task=task)
        for row, other in zip(run.clients[1:], alone.clients[1:]):
            assert row["test_own"] == row["test_alone"] == other["test_deployed"]
            out = declined(row)
            assert np.array_equal(np.array(row["test_deployed"])[out], np.array(other["test_deployed"])[out])


def test_a_silo_that_declines_after_having_joined_deploys_its_private_model_and_says_so():
    run = feduca.run({}, {**OUTSIDE, "rounds": 10}, task=NumpyTask(validation=12))
    rows = run.clients
    left = [(t, k) for t in range(1, 10) for k in range(4) if declined(rows[t])[k] and not declined(rows[t - 1])[k]]
    assert left  # somebody left the shared training after having been in it
    for t, k in left:
        assert rows[t]["test_deployed"][k] == rows[t]["test_alone"][k]
        assert "own" not in rows[t]["reason"][k]
    assert any("does not beat alone" in text for row in rows for text in row["reason"])


def test_against_the_current_model_the_same_silo_is_spoilt():
    """What the option is for: what a decliner deploys under `current` is no longer what it would have had alone."""
    settings = {**OUTSIDE, "participation.against": "current", "alone": True, "offer.kind": "best-mixture"}
    spoilt = [
        k
        for row in feduca.run({}, settings, task=NumpyTask()).clients[1:]
        for k in np.flatnonzero(declined(row))
        if row["test_own"][k] != row["test_alone"][k]
    ]
    assert spoilt


@VARIANTS
def test_nobody_deploys_what_its_validation_data_call_worse(settings):
    """At every decision the deployed model is at least as good as the outside option, by the comparison in force."""
    recipe = api.recipe({}, {**OUTSIDE, "rounds": 8, "offer.kind": "least-concession", **settings})
    built = experiment.build(recipe, 0, NumpyTask())
    for _, row, _ in loop.steps(built.server, built.theta, built.task.examples, built.federation):
        joined = np.array([word == "joined" for word in row.status])
        own, offered = np.array(row.own_accuracy), np.array(row.offered_accuracy)
        if row.round > 1:
            assert (offered[joined] >= own[joined]).all()


def test_the_best_kept_model_never_gets_worse_on_validation_data():
    run = feduca.run({}, {**OUTSIDE, **BEST_KEPT, "rounds": 12, "offer.kind": "best-mixture"}, task=NumpyTask())
    own = np.array([row["own_accuracy"] for row in run.clients[1:]], float)
    assert (np.diff(own, axis=0) >= 0).all()
    assert (np.diff(own, axis=0) > 0).any()


def test_the_best_kept_is_the_better_of_two_by_hand():
    """Scores of theta: accuracy theta[0], loss theta[1]. Silo 0 keeps, silo 1 replaces, silo 2 ties and has a lower loss."""

    class Task:
        def evaluate(self, theta, clients, split):
            return Scores(theta[:, 0], theta[:, 1])

    kept = np.array([[0.9, 0.1], [0.5, 0.1], [0.7, 0.4]])
    own = np.array([[0.8, 0.0], [0.6, 0.9], [0.7, 0.3]])
    memory = replace(blank(np.zeros(2), 3, Quadratic()), trained=np.ones(3, bool), own=own, extra={"outside": kept})
    asked = Announcements("run", 5, np.arange(3), np.zeros(2), *(np.full(3, 1 / 3),) * 2, np.ones(1), LocalSpec())
    option = Outside("best-kept")
    model, found = drive(option.before(memory, asked, Scores(own[:, 0], own[:, 1])), Task())  # type: ignore[arg-type]
    assert np.array_equal(model, [kept[0], own[1], own[2]])
    assert found.accuracy.tolist() == [0.9, 0.6, 0.7]
    assert found.loss.tolist() == [0.1, 0.9, 0.3]
    assert option.trains(5, np.array([True, False, True])).tolist() == [1]  # only who declines


def test_how_often_a_private_model_trains():
    join = np.array([True, False, True])
    assert Outside().trains(2, join).tolist() == [0, 1, 2]
    assert Outside(every=3).trains(2, join).tolist() == [1]
    assert Outside(every=3).trains(4, join).tolist() == [0, 1, 2]
    run = feduca.run({}, {**OUTSIDE, **SELDOM}, task=NumpyTask())
    for row in run.clients:
        in_, due = ~declined(row), (row["round"] - 1) % 3 == 0
        assert row["noted"]["trainings"] == (in_.astype(float) + (due | ~in_)).tolist()
    kept = feduca.run({}, {**OUTSIDE, **BEST_KEPT}, task=NumpyTask())
    assert all(row["noted"]["trainings"] == [1.0] * 4 for row in kept.clients)
    assert feduca.run({}, {**OUTSIDE, "participation.against": "current"}, task=NumpyTask()).clients[0]["noted"] is None


def test_under_eq_2_the_threshold_is_what_the_private_model_is_worth():
    run = feduca.run({}, {**OUTSIDE, "participation.rule": "utility", "mechanism.name": "feduca"}, task=NumpyTask())
    for row, later in zip(run.clients, run.clients[1:]):
        assert row["gamma"] == later["own_accuracy"]
        assert row["advice"] is None or not any("asks for" in text for text in row["advice"])


def test_an_offer_may_end_at_the_trained_model_where_that_beats_the_outside_option():
    def offer(kind, bar):
        ends = Scores(np.array([0.2]), np.array([0.9])), Scores(np.array([0.8]), np.array([0.3]))
        asked = Asked(
            np.arange(1),
            np.zeros(1),
            np.ones((1, 1)),
            np.ones(1, bool),
            *ends,
            outside=Scores(np.array([bar]), np.ones(1)),
        )
        return drive(kind.of(asked), Line())  # type: ignore[arg-type]

    class Line:
        def along(self, start, end, places, clients, split):
            return Scores(0.2 + 0.6 * places, 0.9 - 0.6 * places)

    assert offer(BestMixture(), 0.5).concession == [1.0]  # the best, and better than 0.5
    assert offer(LeastConcession(), 0.5).concession == pytest.approx([0.6])  # 0.56 is the first above 0.5
    assert offer(LeastConcession(), 0.75).concession == [1.0]


def test_quitting_compares_with_the_outside_option():
    rule = Quits(1, AccuracyImproves(Comparison("loss")), Comparison("loss"))
    values = Scores(np.array([0.6]), np.array([0.5])), Scores(np.array([0.5]), np.array([0.6]))
    seen = Situation(3, values[0], values[1], *(np.zeros(1),) * 3, Quadratic(), None, values[0], called="best kept")
    assert rule.decide(seen).reason == [
        "left for good: 1 round without beating its best kept model; at last equal accuracy 0.6000, loss 0.5 = 0.5"
    ]
    seen = replace(seen, offered=Scores(np.array([0.7]), np.array([0.4])))
    assert rule.decide(seen).reason == ["offered 0.7000 beats best kept 0.6000"]


METHODS = pytest.mark.parametrize("method", ["scaffold", "feddyn", "finetune"])


@METHODS
def test_what_a_method_keeps_on_the_silo_does_not_touch_the_private_model(method):
    """Corrections, penalties and tuned models belong to the shared training; the option is trained as if they were not."""
    own = {**OUTSIDE, "mechanism.name": method, "rounds": 8}
    task = NumpyTask(validation=12)
    alone = feduca.run({}, {**SMALL, "participation.rule": "never", "rounds": 8}, task=task)
    run = feduca.run({}, own, task=task)
    assert any(declined(row).any() for row in run.clients[1:])
    assert any((~declined(row)).any() for row in run.clients[1:])
    for row, other in zip(run.clients[1:], alone.clients[1:]):
        assert row["test_own"] == row["test_alone"] == other["test_deployed"]
        out = declined(row)
        assert np.array_equal(np.array(row["test_deployed"])[out], np.array(other["test_deployed"])[out])


@METHODS
def test_with_everybody_in_the_shared_training_is_the_same_with_and_without_an_option(method):
    settings = {**OUTSIDE, "mechanism.name": method, "participation.rule": "always"}
    beside, without = (
        feduca.run({}, {**settings, "participation.against": against}, task=NumpyTask())
        for against in ("outside", "current")
    )
    assert np.array_equal(beside.theta, without.theta)
    assert [r["test_deployed"] for r in beside.clients] == [r["test_deployed"] for r in without.clients]


@pytest.mark.parametrize(("method", "kept"), [("scaffold", "control"), ("feddyn", "penalty")])
def test_who_declines_learns_nothing_of_the_shared_training_and_goes_on_where_it_left(method, kept):
    recipe = api.recipe({}, {**OUTSIDE, "mechanism.name": method, "rounds": 8})
    built, before, seen = experiment.build(recipe, 0, NumpyTask(validation=12)), np.zeros((4, 4)), 0
    for _, row, _ in loop.steps(built.server, built.theta, built.task.examples, built.federation):
        now = np.array(built.federation.snapshot()[f"extra.{kept}"])
        out = np.array([word == "declined" for word in row.status])
        assert np.array_equal(now[out], before[out])
        assert (now[~out] != before[~out]).any(1).all()
        before, seen = now, seen + out.sum()
    assert seen


@VARIANTS
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn", "finetune"])
def test_it_survives_snapshots_lockstep_and_silos_of_their_own(settings, method):
    offer = {"participation.quits": 3, "offer.kind": "best-mixture", "mechanism.name": method}
    check_other_ways(api.recipe({}, {**OUTSIDE, **offer, **settings}))


def test_a_silo_that_comes_later_starts_its_private_model_from_what_it_is_sent():
    theta = np.full(4, 3.0)
    memory = blank(theta, 1, Quadratic())
    asked = Announcements("run", 5, np.arange(1), theta, *(np.ones(1),) * 2, np.ones(1), LocalSpec())
    unknown = Scores(np.full(1, np.nan), np.full(1, np.nan))
    model, _ = drive(Outside().before(memory, asked, unknown, lambda: np.full(4, np.nan)), NumpyTask(1))
    assert np.array_equal(model, [theta])
    model, _ = drive(Outside().before(memory, asked, unknown, lambda: np.zeros(4)), NumpyTask(1))
    assert np.array_equal(model, [np.zeros(4)])  # where it is known, from the run's first


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"outside.every": 2}, r"outside\.every is 2 with participation\.against 'current'"),
        ({"outside.kind": "best-kept"}, r"outside\.kind is 'best-kept' with participation\.against 'current'"),
        ({**OUTSIDE, **BEST_KEPT, "outside.every": 2}, r"outside\.every is 2 with outside\.kind 'best-kept'"),
        (
            {**OUTSIDE, "participation.threshold": "local-baseline"},
            r"participation\.threshold is 'local-baseline' with",
        ),
        ({**OUTSIDE, "outside.every": 0}, r"outside\.every is 0: it should be greater than or equal to 1"),
        ({"participation.rule": "loss", "participation.confidence": 0.9}, r"with participation\.rule 'loss': correct"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        load({}, settings)


def test_each_outside_option_is_a_run_of_its_own():
    names = {load({}, {**OUTSIDE, **more}).hash() for more in ({}, BEST_KEPT, SELDOM)}
    assert len(names | {load({}, SMALL).hash()}) == 4
