"""Offers mixed from several models: the weights and their certificate, what is deployed, and whom few examples may not fool."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feduca
from feduca import api
from feduca.client.offers import Asked, Mixture
from feduca.client.requests import Predict, drive
from feduca.client.simplex import likeliest
from feduca.client.stack import Stack, compare, mixed_scores, true_class
from feduca.core import rounds as loop
from feduca.core.share import share_of
from feduca.errors import ConfigError, DataError
from feduca.mechanisms.ditto import Pulled
from feduca.recipes import build as experiment
from feduca.recipes.schema import load
from feduca.tasks import build_task
from feduca.types import Predictions, Scores
from numpy_task import NumpyTask
from other_ways import check_other_ways

STACK = {
    "rounds": 6, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10, "mechanism.name": "fedavg",
    "participation.rule": "loss", "participation.against": "outside", "participation.warm_start": 3, "offer.kind": "stack",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def log_loss(p, a, w):
    return -(a * np.log(p @ w)).sum() / a.sum()


def test_weights_by_hand():
    """Model 0 is right on two examples of three with 0.9 and 0.1 otherwise, model 1 the other way round: w = (0.75, 0.25).

    (1 / 3) (2 * 0.8 / q - 0.8 / (1 - q)) = 0 at the mixture's q = 0.1 + 0.8 w = 2 / 3.
    """
    p = np.array([[[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]])
    w, gap = likeliest(p, np.ones((1, 3)))
    assert 0.1 + 0.8 * w[0, 0] == pytest.approx(2 / 3, abs=1e-4)
    assert gap <= 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 4), st.floats(0.05, 30.0))
def test_the_certificate_holds_and_no_other_weights_are_better(seed, n, m, sharpness):
    rng = np.random.default_rng(seed)
    p = rng.random((3, n, m)) ** sharpness
    a = rng.integers(0, 2, (3, n)).astype(float)
    a[:, 0] = 1
    w, gap = likeliest(p, a)
    assert (gap <= 1e-7).all()
    assert (w >= 0).all()
    assert w.sum(1) == pytest.approx(1)
    for k in range(3):
        found = log_loss(p[k], a[k], w[k])
        for other in (*np.eye(m), *rng.dirichlet(np.ones(m), 20), 0.99 * w[k] + 0.01 * rng.dirichlet(np.ones(m))):
            with np.errstate(divide="ignore"):
                assert found <= log_loss(p[k], a[k], other) + 1e-7


def test_a_model_that_is_not_there_gets_no_weight_and_problems_do_not_touch_each_other():
    rng = np.random.default_rng(0)
    p, a = rng.random((5, 20, 3)), np.ones((5, 20))
    together_, _ = likeliest(p, a)
    apart = np.concatenate([likeliest(p[k : k + 1], a[k : k + 1])[0] for k in range(5)])
    assert together_ == pytest.approx(apart, abs=1e-9)
    p[:, :, 1] = 0
    assert (likeliest(p, a)[0][:, 1] < 1e-6).all()


def test_a_comparison_by_hand():
    """Two examples of class 0: the mixture gives 0.8 and 0.4, the last model 0.4 and 0.4."""
    chances = np.array([[[[0.9, 0.1], [0.4, 0.6]], [[0.4, 0.6], [0.4, 0.6]]]])  # [1, n, M, C]
    weights = np.array([[[0.8, 0.2], [0.5, 0.5]]])
    gain, error, better = compare(chances, np.zeros((1, 2), int), weights)
    assert gain == pytest.approx(np.log(2) / 2)
    assert error == pytest.approx(np.log(2) / 2)  # standard deviation log(2) / sqrt(2), over sqrt(2)
    assert better == pytest.approx(0.5)
    assert true_class(chances, np.array([[0, 1]]))[0].tolist() == [[0.9, 0.4], [0.6, 0.6]]


class Said:
    """A task whose model number m (its only parameter) gives the true class these probabilities."""

    def __init__(self, chances):  # [models][n]
        self.chances = np.array(chances, float)

    def predict(self, theta, clients, split):
        p = self.chances[np.asarray(theta)[:, 0].astype(int)]
        return Predictions(np.stack([p, 1 - p], 2), np.zeros(p.shape, int))


def offered(stack, chances):
    """Silo 0's offer of models 0 (shared), 1 (tuned) and 2 (private)."""
    unknown = Scores(np.array([0.5]), np.array([1.0]))
    asked = Asked(
        np.arange(1), np.zeros(1), np.ones((1, 1)), np.ones(1, bool), unknown, unknown,
        outside=Scores(np.array([0.4]), np.array([0.7])), option=np.full((1, 1), 2.0),
    )  # fmt: skip
    return drive(stack.of(asked), Said(chances))  # type: ignore[arg-type]


def test_an_offer_is_as_much_better_than_the_outside_option_as_the_mixture_is():
    offer = offered(Stack(), [[0.9, 0.9, 0.2, 0.9], [0.1] * 4, [0.3, 0.3, 0.9, 0.3]])
    w = offer.mixture.weights[0]
    assert w[1] == 0
    q = w[0] * np.array([0.9, 0.9, 0.2, 0.9]) + w[2] * np.array([0.3, 0.3, 0.9, 0.3])
    assert offer.scores.loss == pytest.approx(0.7 - np.log(q / np.array([0.3, 0.3, 0.9, 0.3])).mean())
    assert offer.scores.accuracy == pytest.approx(0.4 + (q > 0.5).mean() - 0.25)
    assert offer.concession == pytest.approx(w[2])
    assert offer.why == [""]


def test_without_a_gain_the_outside_option_is_left_as_it_is_and_the_reason_says_so():
    offer = offered(Stack(), [[0.3] * 4, [0.2] * 4, [0.6] * 4])
    assert offer.mixture.weights.tolist() == [[0, 0, 1]]
    assert (offer.scores.accuracy, offer.scores.loss) == (0.4, 0.7)
    best = "no mixture with the shared model beats the private model alone"
    assert offer.why == [f"{best}; the shared model's own log-loss is 0.3 higher"]  # 1.0 where it has 0.7
    offer = offered(Stack(errors=2.0), [[0.9, 0.9, 0.2, 0.9], [0.1] * 4, [0.3, 0.3, 0.9, 0.3]])
    assert offer.mixture.weights.tolist() == [[0, 0, 1]]
    assert "within 2 standard errors" in offer.why[0]


def test_one_example_chooses_nothing():
    offer = offered(Stack(), [[0.9], [0.2], [0.1]])
    assert offer.mixture.weights.tolist() == [[0, 0, 1]]
    assert offer.why == ["fewer than 2 validation examples: no weights can be chosen"]


def test_folds_judge_by_weights_found_elsewhere():
    """The shared model is right on the even examples, wrong on the odd ones: each half recommends what the other suffers from."""
    shared, private = [0.9, 0.1] * 4, [0.5] * 8
    weights, by_example = Stack(folds=2)._weights(
        np.stack([shared, private, private], 1)[None], np.ones((1, 8), bool), np.array([[True, False, True]])
    )
    assert by_example[0, ::2, 0] == pytest.approx(0, abs=1e-4)  # found on the odd examples
    assert by_example[0, 1::2, 0] == pytest.approx(1, abs=1e-4)
    assert weights[0, 1] == 0
    offer = offered(Stack(folds=2), [shared, private, private])
    assert offer.mixture.weights.tolist() == [[0, 0, 1]]
    assert "judged on examples that did not choose it, the best one's log-loss is" in offer.why[0]


# ---------------------------------------------------------------------------------------------------------------------
# In a run


@pytest.mark.parametrize(
    "more", [{}, {"offer.folds": 3}, {"offer.errors": 1.0}, {"offer.space": "parameters"}], ids=str
)
def test_nobody_deploys_what_its_validation_data_call_worse_and_decliners_have_their_model_alone(more):
    run = feduca.run({}, {**STACK, **more, "rounds": 8}, task=NumpyTask())
    alone = feduca.run({}, {**STACK, "offer.kind": "global", "participation.rule": "never"}, task=NumpyTask())
    assert any("declined" in row["status"] for row in run.clients)
    for row, other in zip(run.clients[1:], alone.clients[1:]):
        for k, status in enumerate(row["status"]):
            if status == "declined":
                assert row["test_deployed"][k] == other["test_alone"][k]
            weights = [row["noted"][f"weight_{name}"][k] for name in ("shared", "tuned", "private")]
            assert sum(weights) == pytest.approx(1)
            assert row["concession"][k] == pytest.approx(weights[2])


def test_on_digits_silos_do_mix():
    run = feduca.run("quickstart", {**STACK, "rounds": 5, "task.test_share": 0.3, "compare": []})
    weights = np.array([row["noted"]["weight_private"] for row in run.clients[3:]])
    assert ((weights > 0) & (weights < 1)).any()


def test_everybody_in_costs_nobody_what_it_deploys():
    """Under `always` all train together, and who gains nothing from it deploys its private model all the same."""
    run = feduca.run({}, {**STACK, "participation.rule": "always", "rounds": 8}, task=NumpyTask())
    assert run.participation == 1
    kept = [(row, k) for row in run.clients[1:] for k in range(4) if row["noted"]["weight_private"][k] == 1]
    assert kept
    assert all(row["test_deployed"][k] == row["test_alone"][k] for row, k in kept)


def test_what_is_trained_starts_from_the_shared_model():
    """The first round after the warm start: the same shared model as with the plain offer, whatever is deployed."""
    plain = feduca.run({}, {**STACK, "offer.kind": "global", "rounds": 3}, task=NumpyTask())
    assert np.array_equal(feduca.run({}, {**STACK, "rounds": 3}, task=NumpyTask()).theta, plain.theta)


@pytest.mark.parametrize("more", [{"offer.folds": 3}, {"offer.space": "parameters"}], ids=str)
def test_it_survives_snapshots_lockstep_and_silos_of_their_own(more):
    check_other_ways(api.recipe({}, {**STACK, **more}), lambda seed: NumpyTask(seed=seed, validation=25 * seed))


# ---------------------------------------------------------------------------------------------------------------------
# The seam


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_predictions_are_those_behind_the_scores(engine):
    task = build_task(data="digits", clients=3, validation_concentration=0.3, test_share=0.3, engine=engine, chunk=40)
    theta = torch.stack([task.init(seed) for seed in range(3)])
    for split in ("validation", "test"):
        said, scores = task.predict(theta, np.arange(3), split), task.evaluate(theta, np.arange(3), split)
        counts = (said.targets >= 0).sum(1)
        assert counts.tolist() == list(task.validation_examples if split == "validation" else task.test_examples)
        one = Mixture({"it": theta}, np.ones((3, 1)))
        mixed = drive(mixed_scores(one, np.arange(3), split), task)
        assert mixed.accuracy == pytest.approx(scores.accuracy)
        assert mixed.loss == pytest.approx(scores.loss, abs=1e-6)


def test_a_mixture_is_scored_as_what_it_predicts():
    task = NumpyTask(2)
    thetas = [np.random.default_rng(m).normal(size=(2, 4)) for m in range(2)]
    scores = drive(
        mixed_scores(Mixture(dict(zip("ab", thetas)), np.array([[0.3, 0.7], [1, 0]])), np.arange(2), "test"), task
    )
    said = [task.predict(theta, np.arange(2), "test") for theta in thetas]
    q = 0.3 * said[0].probabilities[0] + 0.7 * said[1].probabilities[0]
    truth = said[0].targets[0]
    assert scores.accuracy[0] == pytest.approx((q.argmax(1) == truth).mean())
    assert scores.loss[0] == pytest.approx(-np.log(q[np.arange(30), truth]).mean())
    assert scores.loss[1] == pytest.approx(task.evaluate(thetas[0], np.arange(2), "test").loss[1])


def test_a_task_that_cannot_predict_says_what_to_do():
    with pytest.raises(ConfigError, match=r"offer\.space is 'outputs', but the task cannot say .* 'parameters'"):
        Predict(np.zeros((1, 1)), np.arange(1)).on(object())  # type: ignore[arg-type]
    task = build_task(data="digits", clients=2, max_examples=100)
    object.__setattr__(task, "criterion", type(task.criterion)(task.criterion.loss, lambda o, t: 0.0, "auc"))
    with pytest.raises(ConfigError, match="with the metric 'auc'"):
        task.predict(torch.stack([task.init(0)] * 2), np.arange(2), "test")
    with pytest.raises(ConfigError, match="with the metric 'auc'"):
        experiment.behaviour_of(load({}, STACK), 0, task)


def test_a_silo_with_one_validation_example_is_refused_by_name():
    task = NumpyTask()
    task.validation_examples = np.array([9, 1, 9, 9])
    with pytest.raises(DataError, match=r"silo silo-1 has 1 validation example, and offer\.kind 'stack' needs 2"):
        feduca.run({}, STACK, task=task)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"participation.against": "current"}, r"offer\.kind is 'stack' with participation\.against 'current'"),
        ({"participation.rule": "utility"}, r"'stack' with participation\.rule 'utility'"),
        ({"offer.space": "parameters", "offer.folds": 5}, r"offer\.folds is 5 with offer\.space 'parameters'"),
        ({"offer.space": "parameters", "offer.errors": 1.0}, r"offer\.errors is 1 with offer\.space 'parameters'"),
        ({"offer.folds": 1}, r"offer\.folds is 1: use at least 2"),
        ({"offer.train_from": "consensus"}, r"offer\.train_from is 'consensus' with offer\.kind 'stack'"),
        ({"offer.kind": "global", "offer.errors": 1.0}, r"offer\.errors is 1\.0 with offer\.kind 'global'"),
        *(
            (
                {"mechanism.name": name, "offer.space": space},
                rf"'stack' with mechanism\.name '{name}', which keeps a personal",
            )
            for name in ("ditto", "apfl", "finetune", "fedrep")
            for space in ("outputs", "parameters")
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(more, said):
    with pytest.raises(ConfigError, match=said):
        load({}, {**STACK, **more})


@pytest.mark.parametrize("space", ["outputs", "parameters"])
def test_a_personal_model_that_its_method_does_not_announce_is_refused_in_the_run(space, monkeypatch):
    monkeypatch.setattr(Pulled, "deploys", False)
    with pytest.raises(ConfigError, match="deploys that, not a stack; use another"):
        feduca.run({}, {**STACK, "mechanism.name": "ditto", "offer.space": space}, task=NumpyTask())


class Asking(NumpyTask):
    """It remembers the models whose predictions on validation data it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def predict(self, theta, clients, split):
        if split == "validation":
            self.asked.append(np.array(theta))
        return super().predict(theta, clients, split)


@pytest.mark.parametrize("share", ["but-bias", "body"])
def test_where_only_a_part_travels_the_shared_candidate_is_completed_by_the_silo(share):
    recipe, task = api.recipe({}, {**STACK, "share": share, "participation.rule": "always"}), Asking()
    built, own = experiment.build(recipe, 0, task), None
    theta, private, mixed = built.theta, share_of(share, task).mask == 0, []
    assert private.tolist() == [False, False, False, True]
    for _, row, state in loop.steps(built.server, built.theta, task.examples, built.federation):
        if own is not None:
            shared, tuned, _ = task.asked[:3]
            assert np.array_equal(shared[:, ~private], np.tile(theta[~private], (4, 1)))
            assert np.array_equal(shared[:, private], own[:, private])
            assert not np.array_equal(shared[:, private], np.tile(theta[private], (4, 1)))
            assert np.array_equal(tuned, own)
            mixed.append(np.array(row.noted["weight_shared"]) > 0)
        task.asked.clear()
        theta, own = state.theta, np.array(built.federation.snapshot()["own"])
        assert np.array_equal(theta[private], built.theta[private])  # it never left
    assert np.any(mixed)


def test_the_record_is_plain_json():
    run = feduca.run({}, {**STACK, "rounds": 2}, task=NumpyTask())
    assert set(json.loads(json.dumps(run.clients[1]))["noted"]) == {
        "trainings", "weight_shared", "weight_tuned", "weight_private"
    }  # fmt: skip
