"""Methods that reach into local training: two rounds of each by hand, the seam in every engine, and every federation alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import feduca
from feduca.client.requests import drive
from feduca.core import rounds as loop
from feduca.core.rng import stream
from feduca.core.share import share_of
from feduca.errors import ConfigError, RunError
from feduca.federation import InProcess
from feduca.federation.lockstep import together
from feduca.flower import client_app
from feduca.flower.server import Settings, serve
from feduca.mechanisms import FedRep
from feduca.recipes import build as experiment
from feduca.runs import checkpoint
from feduca.types import Announcements, LocalSpec
from local_grid import LocalGrid, Node
from needed import needed
from numpy_task import Merged, NumpyTask

BASE = {"rounds": 4, "task.clients": 4, "local.epochs": 2, "local.batch_size": 8, "local.lr": 0.1}
NONE = {"memory.kind": "none"}
MIXED = {"participation.rule": "always", "conduct.kind": "refuse", "conduct.clients": [1]}  # which joins once
NAMES = ("scaffold", "feddyn", "finetune", "fedrep")


def play(settings, task=None, state=None, snapshot=None, one_at_a_time=False):
    task, recipe = task or NumpyTask(), feduca.recipe({}, {**BASE, **needed(settings["mechanism.name"]), **settings})
    one = experiment.build(recipe, 0, task)
    federation = InProcess(task, experiment.behaviour_of(recipe, 0, task), one_at_a_time=one_at_a_time)
    if snapshot is not None:
        federation.restore(snapshot)
    items, shots = [], []

    def kept(record, clients, state):
        items.append((record, clients, state))
        shots.append(dict(federation.snapshot()))

    loop.play(loop.rounds(one.server, one.theta, task.examples, on_round=kept, state=state), federation)
    return items, shots


def steps(task, k, theta, t, gradient, epochs=2, batch=8, lr=0.1):
    """Local training of silo k by hand, mini-batch by mini-batch: `gradient(g, y)` is what a step follows."""
    (x, y), theta, taken = task._data[k, "train"], theta.copy(), 0
    rng = stream(0, "batches", t, k)
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for i in range(0, len(y), batch):
            b = order[i : i + batch]
            g = x[b].T @ (1 / (1 + np.exp(-(x[b] @ theta))) - y[b]) / len(b)
            theta, taken = theta - lr * gradient(g, theta), taken + 1
    return theta, taken


def test_scaffold_by_hand():
    """Option II as the paper's Algorithm 1 writes it, with whoever joins as the sample."""
    task = NumpyTask()
    items, shots = play({"mechanism.name": "scaffold", **MIXED, **NONE}, task)
    joined = [np.array([word == "joined" for word in each.status]) for _, each, _ in items]
    assert any(0 < j.sum() < 4 for j in joined)  # some declined
    theta, c, own_c, own = task.init(0), np.zeros(4), np.zeros((4, 4)), np.zeros((4, 4))
    for t, join in enumerate(joined, 1):
        change, deltas = np.zeros(4), []
        for k in range(4):
            if not join[k]:
                own[k], _ = steps(task, k, own[k], t, lambda g, y: g)
                continue
            own[k], taken = steps(task, k, theta, t, lambda g, y, d=c - own_c[k]: g + d)
            new = own_c[k] - c + (theta - own[k]) / (taken * 0.1)
            change, own_c[k] = change + (new - own_c[k]) / 4, new
            deltas.append(theta - own[k])
        theta, c = theta - (np.mean(deltas, 0) if deltas else 0), c + change
        assert items[t - 1][2].theta == pytest.approx(theta, abs=1e-12)
        assert items[t - 1][2].mechanism == pytest.approx(c, abs=1e-12)
        assert shots[t - 1]["extra.control"] == pytest.approx(own_c, abs=1e-12)
        assert shots[t - 1]["own"] == pytest.approx(own, abs=1e-12)


def test_scaffold_with_everybody_keeps_c_the_mean_of_the_controls():
    items, shots = play({"mechanism.name": "scaffold", "participation.rule": "always", "offer.kind": "best-mixture"})
    for (record, _, state), shot in zip(items, shots):
        assert state.mechanism == pytest.approx(shot["extra.control"].mean(0), abs=1e-12)
        assert record.joined == 4
    down = [record.bytes_down for record, _, _ in items]
    assert down[1] - down[0] == 4 * 4 * 4  # from round 2 on, a second vector to each of four silos


def test_feddyn_by_hand():
    """Algorithm 1 in its own symbols: g_k, h, alpha."""
    task, alpha = NumpyTask(), 0.2
    settings = {"mechanism.name": "feddyn", "mechanism.alpha": alpha, **MIXED}
    items, shots = play(settings, task)
    joined = [np.array([word == "joined" for word in each.status]) for _, each, _ in items]
    assert any(0 < j.sum() < 4 for j in joined)
    theta, h, g_k, own = task.init(0), np.zeros(4), np.zeros((4, 4)), np.zeros((4, 4))
    for t, join in enumerate(joined, 1):
        for k in range(4):
            linear = g_k[k] if join[k] else 0  # who declines: the proximal term alone, from its own model
            start = theta if join[k] else own[k]
            own[k], _ = steps(task, k, start, t, lambda g, y, a=linear, x=theta: g - a + alpha * (y - x))
            if join[k]:
                g_k[k] -= alpha * (own[k] - theta)
        if join.any():
            h = h - alpha / 4 * (own[join] - theta).sum(0)
            theta = own[join].mean(0) - h / alpha
        assert items[t - 1][2].theta == pytest.approx(theta, abs=1e-11)
        assert shots[t - 1]["own"] == pytest.approx(own, abs=1e-11)
        assert shots[t - 1]["extra.penalty"] == pytest.approx(g_k / alpha, abs=1e-11)


def test_a_round_in_which_nobody_joins_moves_feddyn_nowhere():
    items, _ = play({"mechanism.name": "feddyn", "participation.rule": "never"})
    assert [record.joined for record, _, _ in items] == [4, 0, 0, 0]
    assert all(np.array_equal(state.theta, items[0][2].theta) for _, _, state in items)


def test_finetune_by_hand():
    task = NumpyTask()
    items, _ = play({"mechanism.name": "finetune", "mechanism.epochs": 3, "participation.rule": "accuracy"}, task)
    clients, theta = np.arange(4), task.init(0)
    for t, (_, each, state) in enumerate(items, 1):
        tuned = np.array([steps(task, k, theta, t, lambda g, y: g, epochs=3)[0] for k in clients])
        assert each.offered_accuracy == pytest.approx(task.evaluate(tuned, clients, "validation").accuracy)
        joined = np.array(each.status) == "joined"
        assert each.test_deployed[joined] == pytest.approx(task.evaluate(tuned, clients, "test").accuracy[joined])
        theta = state.theta
    shared, _ = play({"mechanism.name": "fedavg", "participation.rule": "always"})
    same, _ = play({"mechanism.name": "finetune", "participation.rule": "always"})
    assert np.array_equal(shared[-1][2].theta, same[-1][2].theta)  # the shared model is FedAvg's


def test_fedrep_by_hand():
    """Algorithm 1: three entries are the body phi, the last one is the head h_k."""
    task, head, body = NumpyTask(), np.array([0, 0, 0, 1.0]), np.array([1.0, 1, 1, 0])
    items, shots = play({"mechanism.name": "fedrep", "mechanism.head_epochs": 3, **MIXED, **NONE}, task)
    joined = [np.array([word == "joined" for word in each.status]) for _, each, _ in items]
    assert any(0 < j.sum() < 4 for j in joined)
    first = task.init(0)
    phi, own, clients = first[:3], np.tile(first, (4, 1)), np.arange(4)
    for t, join in enumerate(joined, 1):
        received = np.column_stack([np.tile(phi, (4, 1)), own[:, 3]])
        tried = np.array([steps(task, k, received[k], t, lambda g, y: g * head, epochs=3)[0] for k in clients])
        assert np.array_equal(tried[:, :3], received[:, :3])
        each = items[t - 1][1]
        assert each.offered_accuracy == pytest.approx(task.evaluate(tried, clients, "validation").accuracy)
        assert each.test_deployed[join] == pytest.approx(task.evaluate(tried, clients, "test").accuracy[join])
        for k in clients:
            if join[k]:
                own[k], _ = steps(task, k, tried[k], t, lambda g, y: g * body)
            else:
                own[k], _ = steps(task, k, own[k], t, lambda g, y: g)
        phi = own[join, :3].mean(0) if join.any() else phi
        assert items[t - 1][2].theta == pytest.approx(np.append(phi, first[3]), abs=1e-12)
        assert shots[t - 1]["own"] == pytest.approx(own, abs=1e-12)


@pytest.mark.parametrize("share", ["all", "*", ["body.*", "head.*"]])
def test_fedrep_without_a_private_head_is_refused_in_one_line(share):
    with pytest.raises(ConfigError, match=r"share is .*, and FedRep needs a private head: set share = 'body'") as seen:
        play({"mechanism.name": "fedrep", "share": share})
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_fedrep_leaves_the_body_s_running_statistics_to_the_body(kind):
    def module():
        return torch.nn.Sequential(
            torch.nn.Linear(64, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 10)
        )

    task = feduca.tasks.build_task(clients=2, max_examples=100, model=module, engine=kind)
    mask = share_of("body", task).mask
    asked = Announcements(
        "", 1, np.arange(2), torch.rand(2, task.size), *[np.zeros(2)] * 3, LocalSpec(epochs=2, lr=0.1)
    )
    made = drive(FedRep().personal.sharing(share_of("body", task)).prepare(None, asked, 0), task)
    assert torch.equal(made.model[:, mask], asked.theta[:, mask])
    assert not torch.allclose(made.model[:, ~mask], asked.theta[:, ~mask], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"share": ["body.*"]}, {"participation.against": "outside"}])
def test_resumed_in_lockstep_or_one_by_one_it_is_the_same_run(name, more, tmp_path):
    settings = {"mechanism.name": name, "participation.rule": "accuracy", "offer.kind": "best-mixture", **more}
    whole, shots = play(settings)
    path = checkpoint.write(tmp_path, 2, checkpoint.Checkpoint("run", whole[1][2], shots[1]))
    back = checkpoint.read(path)
    rest, ends = play(settings, state=back.state, snapshot=back.clients)
    assert np.array_equal(rest[-1][2].theta, whole[-1][2].theta)
    assert all(np.array_equal(ends[-1][key], shots[-1][key], equal_nan=True) for key in ends[-1])
    apart, _ = play(settings, one_at_a_time=True)
    assert apart[-1][2].theta == pytest.approx(whole[-1][2].theta, abs=1e-12)
    tasks = [NumpyTask(4, seed) for seed in (0, 1)]
    recipes = [
        feduca.recipe({}, {**BASE, **needed(name), **settings}),
        feduca.recipe({}, {**BASE, "mechanism.name": "fedavg"}),
    ]
    runs = [experiment.build(recipe, 0, task) for recipe, task in zip(recipes, tasks)]
    loops = [loop.rounds(run.server, run.theta, task.examples) for run, task in zip(runs, tasks)]
    states = together(loops, [run.federation for run in runs], Merged(tasks))
    assert np.array_equal(states[0].theta, whole[-1][2].theta)
    if more.get("share") or needed(name):
        assert whole[-1][2].theta[-1] == NumpyTask().init(0)[-1]
        assert len(np.unique(shots[-1]["own"][:, -1])) == 4  # what is private is trained, not held


@pytest.mark.parametrize("name", NAMES)
def test_a_deployment_equals_the_simulation(name, tmp_path):
    class App:
        recipe = feduca.recipe(
            {}, {**BASE, **needed(name), "task.clients": 3, "mechanism.name": name, "participation.rule": "accuracy"}
        )

        def server(self, config):
            return NumpyTask(3)

        def silo(self, name, index, config):
            return NumpyTask(3)

    app = App()
    flower = client_app(app)
    nodes = {
        10 + k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}")
        for k in range(3)
    }
    path = serve(app, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))
    final = checkpoint.read(checkpoint.existing(path / "checkpoint")[0]).state
    items, _ = play(
        {"task.clients": 3, "mechanism.name": name, "participation.rule": "accuracy"}, NumpyTask(3), one_at_a_time=True
    )
    assert np.array_equal(final.theta, items[-1][2].theta)


# The seam ------------------------------------------------------------------------------------------------------------

SPEC = LocalSpec(epochs=2, batch_size=16, lr=0.1, weight_decay=0.01)


@pytest.fixture(scope="module")
def tasks():
    return {
        kind: feduca.tasks.build_task(clients=3, max_examples=150, hidden=[8], engine=kind)
        for kind in ("stacked", "sequential")
    }


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_engines_add_a_drift_and_hold_what_is_not_free(tasks, kind):
    task, clients = tasks[kind], np.arange(3)
    theta = task.init(0).repeat(3, 1)
    nothing, everything = torch.zeros_like(theta), torch.ones_like(theta)
    plain = task.train(theta, clients, SPEC, 1, 0)
    same = task.train(theta, clients, SPEC, 1, 0, drift=nothing, free=everything)
    assert torch.allclose(plain, same, atol=1e-6)
    held = everything.clone()
    held[:, ::2] = 0
    moved = task.train(theta, clients, SPEC, 1, 0, free=held)
    assert torch.equal(moved[:, ::2], theta[:, ::2])
    assert not torch.allclose(moved[:, 1::2], theta[:, 1::2], atol=1e-3)
    # One full-batch step without decay moves by the drift, exactly.
    one = LocalSpec(epochs=1, batch_size=10_000, lr=0.5)
    drift = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    shifted = task.train(theta, clients, one, 1, 0, drift=drift)
    assert torch.allclose(task.train(theta, clients, one, 1, 0) - shifted, 0.5 * drift, atol=1e-5)


def test_both_engines_agree(tasks):
    clients = np.arange(3)
    theta = tasks["stacked"].init(0).repeat(3, 1)
    drift = 0.1 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))
    free = (torch.rand(theta.shape, generator=torch.Generator().manual_seed(2)) > 0.5).float()
    both = [task.train(theta, clients, SPEC, 1, 0, drift=drift, free=free) for task in tasks.values()]
    assert torch.allclose(*both, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_real_models_learn(name):
    settings = {"rounds": 10, "task.clients": 3, "task.max_examples": 600, "mechanism.name": name}
    result = feduca.run("quickstart", {**settings, **needed(name), "participation.rule": "always"})
    assert np.isfinite(np.asarray(result.theta)).all()
    assert (result.accuracy or result.summary["deployed"]) > 0.5


def test_a_task_that_cannot_is_told_so():
    class Plain(NumpyTask):
        def train(self, theta, clients, spec, round, seed, anchor=None):
            return super().train(theta, clients, spec, round, seed, anchor)

    with pytest.raises(RunError, match="the task's `train` takes no `drift`; give it one") as seen:
        play({"mechanism.name": "scaffold"}, Plain())
    assert "\n" not in str(seen.value)
    play({"mechanism.name": "feddyn"}, Plain())  # whose terms are proximal


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mechanism.name": "scaffold", "local.momentum": 0.9}, "got momentum 0.9"),
        ({"mechanism.name": "scaffold", "local.optimiser": "adam"}, "got adam"),
        ({"mechanism.name": "feddyn", "mechanism.alpha": 0.0}, "mechanism.alpha must be above 0, got 0.0"),
        ({"mechanism.name": "fedrep", "mechanism.head_epochs": -1}, "mechanism.head_epochs must be 0 or more, got -1"),
        ({"mechanism.name": "finetune", "mechanism.epochs": -1}, "mechanism.epochs must be 0 or more, got -1"),
    ],
)
def test_bad_options_are_one_line(settings, says):
    with pytest.raises(ConfigError) as seen:
        play(settings)
    assert says in str(seen.value)
    assert "\n" not in str(seen.value)
