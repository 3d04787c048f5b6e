"""Several federations in lockstep give exactly what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from feduca import api
from feduca.core import rounds as loop
from feduca.federation.lockstep import together
from feduca.recipes import build as experiment
from feduca.tasks import build_task, merge
from feduca.tasks.task import TorchTask
from numpy_task import Merged, NumpyTask

RUNS = [
    ({"mechanism.name": "feduca"}, 0),
    ({"mechanism.name": "feduca", "mechanism.schedule": "lagged"}, 1),
    ({"mechanism.name": "fedavg", "participation.rule": "accuracy"}, 0),
    ({"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "least-concession"}, 2),
    ({"mechanism.name": "random", "rounds": 2}, 3),  # ends before the others
    (
        {
            "mechanism.schedule": "one-alpha",
            "participation.check": "realised",
            "participation.threshold": "own-accuracy",
            "participation.average": 2,
        },
        1,
    ),
    ({"mechanism.name": "aaggff", "participation.rule": "accuracy", "reporting.decliners": "silent"}, 0),
]


def test_lockstep_equals_one_after_another():
    alone, experiments = [], []
    for settings, seed in RUNS:
        recipe = api.recipe({}, {"rounds": 4, "local.epochs": 1, "task.clients": 4, **settings})
        alone.append(api.run(recipe, seed=seed, task=NumpyTask(4, seed)).theta)
        experiments.append(experiment.build(recipe, seed, NumpyTask(4, seed)))
    merged = Merged([e.task for e in experiments])
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], merged)
    for theta, state in zip(alone, states):
        assert np.array_equal(theta, state.theta)
    assert merged.calls == [28, 28, 24, 24]  # one training call per round for all runs that are still going


def test_the_clocks_of_runs_side_by_side_add_up_to_the_groups(tmp_path, monkeypatch):
    """A clock that only moves while silos train: two seconds per call, whoever asked for it."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    seconds: dict[int, list[float]] = {0: [], 1: [], 2: []}
    experiments, loops = [], []
    for i, rounds in enumerate((4, 4, 2)):
        recipe = api.recipe({}, {"rounds": rounds, "local.epochs": 1, "task.clients": 4, "mechanism.name": "fedavg"})
        experiments.append(e := experiment.build(recipe, i, NumpyTask(4, i)))

        def keep(record, clients, state, i=i):
            assert record.seconds["exchange"] == record.seconds["round"]
            seconds[i].append(record.seconds["round"])

        loops.append(loop.rounds(e.server, e.theta, e.task.examples, on_round=keep))
    merged = Merged([e.task for e in experiments])
    train = merged.train

    def slow(*told, **more):
        now[0] += 2.0
        return train(*told, **more)

    monkeypatch.setattr(merged, "train", slow)
    together(loops, [e.federation for e in experiments], merged)
    third, half = 2 / 3, 1.0
    assert seconds == {0: [third, third, half, half], 1: [third, third, half, half], 2: [third, third]}
    assert np.isclose(sum(map(sum, seconds.values())), now[0])


def test_run_many_gives_what_run_gives(tmp_path):
    settings = {"rounds": 2, "local.epochs": 1}
    jobs = [
        (api.recipe("quickstart", {**settings, **more}), seed)
        for more in ({}, {"mechanism.name": "fedavg", "participation.rule": "accuracy"})
        for seed in (0, 1)
    ]
    merged = api.run_many(jobs, out=tmp_path / "merged", lockstep=3)
    for (recipe, seed), together_ in zip(jobs, merged):
        alone = api.run(recipe, seed=seed, out=tmp_path / "alone")
        assert [r["participation"] for r in together_.rounds] == [r["participation"] for r in alone.rounds]
        assert np.allclose(together_.theta, alone.theta, atol=1e-5)
    again = api.run_many(jobs, out=tmp_path / "merged", lockstep=3)
    assert [result.summary for result in again] == [result.summary for result in merged]  # read back, not repeated


class Dropping(nn.Module):
    """Dropout that is not a module."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.two(nn.functional.dropout(torch.relu(self.one(x)), 0.5, self.training))


def dropping():
    return nn.Sequential(nn.Linear(64, 12), nn.Dropout(0.5), nn.Linear(12, 10))


@pytest.mark.parametrize("model", [dropping, Dropping])
@pytest.mark.parametrize(("kind", "calls"), [("stacked", 4), ("sequential", 2)])
def test_dropout_is_what_each_federation_has_alone(model, kind, calls, monkeypatch):
    recipe = api.recipe("quickstart", {"rounds": 2, "local.epochs": 1, "mechanism.name": "fedavg"})
    tasks = [build_task(model=model, seed=seed, engine=kind) for seed in (0, 1)]
    alone = [api.run(recipe, seed=seed, task=task).theta for seed, task in enumerate(tasks)]
    experiments = [experiment.build(recipe, seed, task) for seed, task in enumerate(tasks)]
    trained, train = [], TorchTask.train
    monkeypatch.setattr(
        TorchTask, "train", lambda self, theta, *a, **k: (trained.append(1), train(self, theta, *a, **k))[1]
    )
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], merge(tasks))
    for theta, state in zip(alone, states):
        np.testing.assert_allclose(theta, state.theta, rtol=1e-4, atol=1e-6)
    assert len(trained) == calls


def test_whether_a_model_draws_is_found_without_touching_it():
    assert build_task().trains_together
    task = build_task(model=Dropping)
    before = torch.get_rng_state()
    assert not task.trains_together
    assert torch.equal(before, torch.get_rng_state())
    norm = build_task(model=lambda: nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)))
    assert norm.trains_together
    assert not norm.engine.module[1].running_mean.any()
