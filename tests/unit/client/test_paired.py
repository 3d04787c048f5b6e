"""What a silo deploys against its model alone, example by example: only sums leave it, the same wherever it computes."""

import numpy as np
import pytest

from feduca import api
from feduca.client.paired import sums
from feduca.client.requests import Answers
from feduca.recipes.schema import load
from feduca.tasks import build_task
from feduca.types import Answered

RECIPE = {
    "name": "paired", "rounds": 3, "alone": True,
    "task": {"clients": 3, "classes_per_client": 10, "model": "logistic", "max_examples": 300,
             "validation_share": 0.4, "test_share": 0.5},
    "mechanism": {"name": "fedavg"}, "participation": {"rule": "always"}, "local": {"epochs": 1},
}  # fmt: skip


def test_sums_by_hand():
    nan = np.nan
    ours = Answered(
        np.array([[1, 1, 0, 1], [1, 0, nan, nan], [nan] * 4]),
        np.array([[1.0, 2, 3, 4], [1, 1, nan, nan], [nan] * 4]),
        np.array([4, 2, 0]),
    )
    theirs = Answered(
        np.array([[0, 1, 1, 0], [1, 0, nan, nan], [nan] * 4]),
        np.array([[2.0, 2, 2, 2], [1, 1, nan, nan], [nan] * 4]),
        np.array([4, 2, 0]),
    )
    found = sums(ours, theirs)
    np.testing.assert_array_equal(found["examples"], [4, 2, nan])
    np.testing.assert_array_equal(found["gained"], [2, 0, nan])
    np.testing.assert_array_equal(found["lost"], [1, 0, nan])
    np.testing.assert_array_equal(found["loss_gain"], [-0.5, 0, nan])
    np.testing.assert_array_equal(found["loss_variance"], [np.var([1, 0, -1, -2]), 0, nan])


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_answers_add_up_to_the_scores(engine):
    task = build_task(clients=3, max_examples=200, validation_share=0.4, test_share=0.5, engine=engine, chunk=7)
    theta = task.init(0).expand(3, -1)
    clients = np.arange(3)
    for split in ("train", "test"):
        scores, found = task.evaluate(theta, clients, split), Answers(theta, clients, split).on(task)
        assert found is not None
        for k, n in enumerate(found.counts):
            assert found.right[k, :n].mean() == pytest.approx(scores.accuracy[k])
            assert found.loss[k, :n].mean() == pytest.approx(scores.loss[k])


def test_a_run_records_and_judges_it_and_lockstep_gives_the_same(tmp_path):
    single = [api.run(RECIPE, seed=seed, out=None) for seed in (0, 1)]
    chosen = load(RECIPE)
    both = api.run_many([(chosen, 0), (chosen, 1)], out=tmp_path, lockstep=2)
    for one, other in zip(single, both):
        assert [c["paired"] for c in one.clients] == [c["paired"] for c in other.clients]
        last = one.clients[-1]
        gains = np.subtract(last["paired"]["gained"], last["paired"]["lost"]) / last["paired"]["examples"]
        np.testing.assert_allclose(gains, np.subtract(last["test_deployed"], last["test_alone"]), atol=1e-9)
        shares = [one.summary[f"{word}_share"] for word in ("better", "worse", "same", "undecided")]
        assert sum(shares) == pytest.approx(1)
    first = single[0].clients[0]["paired"]  # nobody has trained yet: what is deployed is the model alone
    assert first["gained"] == first["lost"] == [0, 0, 0]


def test_without_models_alone_there_is_nothing_to_compare():
    found = api.run({**RECIPE, "alone": False}, out=None, rounds=1)
    assert found.clients[0]["paired"] is None
    assert "better_share" not in found.summary
