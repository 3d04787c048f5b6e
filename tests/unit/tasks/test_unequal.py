"""Silos of very unequal size: what each gets is what it gets alone, and nobody computes padding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feduca import api
from feduca.core import rounds as loop
from feduca.federation.lockstep import together
from feduca.recipes import build as experiment
from feduca.tasks import Dataset, build_task, merge
from feduca.tasks.data.batches import plan
from feduca.tasks.engines import Keys, Sequential, Stacked
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.models.networks import StackedModel
from feduca.tasks.tally import PADDING, SPARE
from feduca.tasks.task import Silo, TorchTask
from feduca.types import LocalSpec

SPEC = LocalSpec(epochs=2, batch_size=10, lr=0.1, weight_decay=1e-3, clip=1.0)
MOMENTUM = replace(SPEC, momentum=0.9, prox=0.1)
APART = (3, 1, 300, 40, 90, 9, 1, 30)  # 1 to 300 examples: fewer than a batch, one, more than all others
SIZES = st.lists(st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 120)), min_size=1, max_size=7)

_rng = np.random.default_rng(0)
_x, _y = _rng.integers(0, 256, (1500, 16, 16, 3), dtype=np.uint8), _rng.integers(0, 10, 1500)
NOISE = Dataset("noise", _x, _y, _x[:40], _y[:40], 10, (), np.full(3, 0.5), np.full(3, 0.25))


def unequal(sizes, model="mlp", seed=0, **changes) -> TorchTask:
    """Silos with so many examples to train on; as many to decide by, in the reverse order."""
    base = build_task(data=NOISE, clients=2, classes_per_client=10, model=model, hidden=[12], seed=seed, **changes)
    order, begin, members = np.random.default_rng(seed).permutation(len(base.pool.y)), 0, []
    for k, (n, m) in enumerate(zip(sizes, sizes[::-1])):
        rows = {"train": order[begin : begin + n], "validation": order[begin + n : begin + n + m]}
        members.append(Silo(f"silo-{k}", rows, k))
        begin += n + m
    return replace(base, members=tuple(members))


def starts(task, first=0):
    return torch.stack([task.init(first + k) for k in range(len(task.members))])


@given(sizes=SIZES, batch=st.integers(1, 15))
@settings(max_examples=25, deadline=None)
def test_a_silo_gets_to_the_bit_what_it_gets_alone(sizes, batch):
    """In compiled code; whatever the others' sizes."""
    task, spec = unequal(sizes), replace(SPEC, batch_size=batch)
    theta = starts(task)
    whole = task.train(theta, np.arange(len(sizes)), spec, 1, 5)
    for k in range(len(sizes)):
        alone = replace(task, members=(task.members[k],))
        own = replace(spec, batch_size=min(batch, sizes[k]))
        assert torch.equal(whole[[k]], alone.train(theta[[k]], np.array([0]), own, 1, 5))
        assert not torch.equal(whole[k], theta[k])


@pytest.mark.parametrize("spec", [SPEC, MOMENTUM], ids=["clip", "momentum"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@settings(max_examples=8, deadline=None)
@given(sizes=SIZES)
def test_the_stack_that_shrinks_is_the_sequential_reference(model, spec, sizes):
    if model == "cnn":
        sizes = [min(n, 25) for n in sizes]
    task = unequal(sizes, model)
    theta, who = starts(task), np.arange(len(sizes))
    batches = plan([silo.rows["train"] for silo in task.members], who, spec, 1, np.full(len(sizes), 5))
    anchor = starts(task, 20)
    want, got = (
        kind(task.make(), task.layout, task.pool, task.criterion).train(
            theta, batches, spec, anchor, Keys(np.full(len(sizes), 5), 1, who)
        )
        for kind in (Sequential, Stacked)
    )
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("spec", [SPEC, replace(MOMENTUM, prox=0.0)], ids=["clip", "momentum"])
def test_graphs_of_fewer_and_fewer_silos_train_them_all(spec, in_order):
    sizes = sorted(APART, reverse=True) if in_order else APART
    sizes = [min(n, 50) for n in sizes]
    task = unequal(sizes, "cnn")
    theta, who = starts(task), np.arange(len(sizes))
    batches = plan([silo.rows["train"] for silo in task.members], who, spec, 1, np.zeros(len(sizes), int))
    module = task.engine.module
    assert isinstance(module, StackedModel)
    trainers = AutogradTrainers(module, task.layout, task.pool, task.criterion)
    got = trainers.train(theta, batches, spec, None)
    (trainer,) = trainers.made.values()
    # 2, 6, 8 or 10 steps: how many silos are in the graph of each
    assert trainer.graphs.prepare(batches) == ([8] * 2 + [4] * 8 if in_order else [8] * 6 + [6] * 4)
    again = trainers.train(theta, batches, spec, None)
    reference = Sequential(task.engine.module, task.layout, task.pool, task.criterion)
    want = reference.train(theta, batches, spec, None, Keys(np.zeros(len(sizes), int), 1, who))
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)
    assert torch.equal(got, again)  # the buffers are used again


@given(sizes=SIZES, chunk=st.sampled_from([1, 7, 50, 10_000]))
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_each_silo_alone(sizes, chunk):
    task = unequal(sizes, chunk=chunk)
    start, end, who = starts(task), starts(task, 20), np.arange(len(sizes))
    places = np.random.default_rng(0).random((len(sizes), 3))
    scores, path = task.evaluate(start, who, "validation"), task.along(start, end, places, who, "validation")
    answers, said = task.answers(start, who, "validation"), task.predict(start, who, "validation")
    for k, n in enumerate(sizes[::-1]):
        alone, only = replace(task, members=(task.members[k],)), np.array([0])
        own = start[[k]], end[[k]]
        one = alone.evaluate(own[0], only, "validation")
        assert scores.accuracy[k] == one.accuracy[0]
        assert scores.loss[k] == pytest.approx(one.loss[0], rel=1e-5)
        assert path.loss[k] == pytest.approx(
            alone.along(own[0], own[1], places[[k]], only, "validation").loss[0], rel=1e-5
        )
        each = alone.answers(own[0], only, "validation")
        assert answers.counts[k] == n
        np.testing.assert_array_equal(answers.right[k, :n], each.right[0])
        np.testing.assert_allclose(answers.loss[k, :n], each.loss[0], rtol=1e-4, atol=1e-6)
        assert scores.loss[k] == pytest.approx(answers.loss[k, :n].mean(), rel=1e-5)
        assert (said.targets[k] >= 0).sum() == n
        np.testing.assert_array_equal(said.targets[k, :n], task.pool.y[task.members[k].rows["validation"]])
        one = alone.predict(own[0], only, "validation").probabilities[0]
        np.testing.assert_allclose(said.probabilities[k, :n], one, atol=1e-5)


def test_a_users_score_is_of_each_silos_own_outputs():
    def mean_of_first(outputs, targets):
        return float(outputs[:, 0].mean() + 100 * len(targets))

    task = unequal(APART, chunk=40, metric=mean_of_first)
    theta, who = starts(task), np.arange(len(APART))
    scores = task.evaluate(theta, who, "validation").accuracy
    for k, silo in enumerate(task.members):
        x = task.pool.examples(torch.from_numpy(silo.rows["validation"])[None])
        outputs = task.engine.outputs(theta[[k]], x)[0]
        assert scores[k] == pytest.approx(float(outputs[:, 0].mean()) + 100 * APART[::-1][k], abs=1e-4)


def test_a_silo_without_untouched_data_has_no_score_beside_others_that_have_some():
    task = unequal((5, 30, 60))
    members = [replace(s, rows={**s.rows, "test": s.rows["validation"][:n]}) for s, n in zip(task.members, (4, 0, 20))]
    scores = replace(task, members=tuple(members)).evaluate(starts(task), np.arange(3), "test")
    assert np.isnan(scores.loss).tolist() == [False, True, False]


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_nobody_computes_padding(model, monkeypatch):
    """Examples that go through a model, in training and in evaluation, over those that there are."""
    sizes = [int(n) for n in np.geomspace(2, 200, 12)]
    task, seen = unequal(sizes, model), []
    forward = Stacked.forward
    monkeypatch.setattr(
        Stacked, "forward", lambda self, e, x: (seen.append(x.shape[0] * x.shape[1]), forward(self, e, x))[1]
    )
    theta, who = starts(task), np.arange(len(sizes))
    task.train(theta, who, replace(MOMENTUM, epochs=1), 1, 5)  # momentum is not for compiled code
    batches = sum(10 * -(-n // 10) for n in sizes)  # a last one that is not full is padded
    assert sum(seen) == batches
    assert len(seen) == 20  # as many steps as the longest has
    seen.clear()
    task.evaluate(theta, who, "validation")
    assert sum(seen) <= (1 + PADDING) * sum(sizes) + SPARE * len(seen)
    assert len(seen) <= 6
    seen.clear()
    few = replace(task, settings=replace(task.settings, chunk=60))
    few.evaluate(theta, who, "validation")
    assert max(seen) <= 60
    assert len(seen) <= 4 * sum(sizes) / 60  # who has most is not evaluated by fives to the end


def test_federations_of_unequal_sizes_go_in_lockstep_as_alone():
    runs = [(APART, 1, "feduca"), (APART[::-1], 2, "fedavg"), ((20,) * 8, 3, "fedavg")]
    alone, experiments = [], []
    for sizes, seed, name in runs:
        more = {"participation.rule": "accuracy"} if name == "fedavg" else {}
        recipe = api.recipe({}, {"rounds": 3, "local.epochs": 1, "task.clients": 8, "mechanism.name": name, **more})
        task = unequal(sizes, seed=0)
        alone.append(api.run(recipe, seed=seed, task=task))
        experiments.append(experiment.build(recipe, seed, task))
    merged = merge([e.task for e in experiments])
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], merged)
    for result, state in zip(alone, states):
        np.testing.assert_allclose(result.theta, state.theta, rtol=1e-5, atol=1e-6)
