"""Which parameters travel: what the words mean, that the rest stays, and that it helps where silos differ in just that."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import feduca
from feduca.core import rounds as loop
from feduca.core.rng import stream
from feduca.core.share import share_of
from feduca.errors import ConfigError
from feduca.federation import InProcess, Recording
from feduca.federation.lockstep import together
from feduca.mechanisms import registry
from feduca.recipes import build as experiment
from feduca.runs import checkpoint
from numpy_task import DIMENSION, Merged, NumpyTask

BODY = ["body.*"]
BASE = {"rounds": 4, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10, "mechanism.name": "fedavg"}


class Named:
    def __init__(self, *names: str, norm_names=None, frozen_names=()):
        self.parameter_names = {name: i + 1 for i, name in enumerate(names)}
        self.frozen_names = frozen_names
        if norm_names is not None:
            self.norm_names = norm_names


NET = Named(
    "conv.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias", "bn1.running_mean", "bn1.num_batches_tracked"
)


@pytest.mark.parametrize(
    ("wanted", "private"),
    [
        ("but-bias", ["fc.bias"]),
        ("body", ["fc.weight", "fc.bias"]),
        ("head", ["conv.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.num_batches_tracked"]),
        ("but-norm", ["bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.num_batches_tracked"]),
        (["*", "!*.bias"], ["bn1.bias", "fc.bias"]),
        (["!*.bias", "bn1.bias"], ["fc.bias"]),
        ("fc.*", ["conv.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.num_batches_tracked"]),
    ],
)
def test_what_the_words_mean(wanted, private):
    share = share_of(wanted, NET)
    assert [name for name in NET.parameter_names if name not in share.names] == private
    assert share.mask.sum() == sum(NET.parameter_names[name] for name in share.names)
    assert len(share.mask) == sum(NET.parameter_names.values())


def test_everything_is_no_share_at_all():
    assert share_of("all", object()) is None
    assert share_of("*", NET) is None


def test_what_is_frozen_stays_where_it_is():
    net = Named("conv.weight", "fc.weight", "fc.bias", frozen_names=("conv.weight",))
    for wanted, names in (
        ("all", ("fc.weight", "fc.bias")),
        ("but-bias", ("fc.weight",)),
        (["*"], ("fc.weight", "fc.bias")),
    ):
        share = share_of(wanted, net)
        assert share.names == names
        assert not share.mask[0]
    with pytest.raises(ConfigError, match="shares nothing"):
        share_of("body", net)


@pytest.mark.parametrize(
    ("wanted", "task", "says"),
    [
        ("body", object(), "does not say what its parameters are called: give it `parameter_names`"),
        ("bodi", NET, "the pattern 'bodi', which fits no parameter: the model has conv.weight"),
        ("!*", NET, "shares nothing"),
        ("body", Named("w.weight", "w.bias"), "shares nothing"),
        ("but-norm", Named("a.weight", "b.weight"), "leaves nothing private here: the model has a.weight, b.weight"),
        ("but-bias", Named("a.weight", "b.weight"), "leaves nothing private"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(wanted, task, says):
    with pytest.raises(ConfigError) as seen:
        share_of(wanted, task)
    assert says in str(seen.value)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize("share", ["", []])
def test_an_empty_share_is_refused(share):
    with pytest.raises(ConfigError, match=r"share is .*name what travels: all, but-bias"):
        feduca.recipe({}, {"share": share})


def test_a_torch_task_names_its_parts_and_its_norms():
    def module():
        return nn.Sequential(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))

    task = feduca.tasks.build_task(clients=2, model=module)
    assert sum(task.parameter_names.values()) == task.size
    private = [name for name in task.parameter_names if name not in share_of("but-norm", task).names]
    assert private == ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    share = share_of("body", task)
    assert isinstance(share.completed(task.init(0), torch.ones(2, task.size), np.array([True, False])), torch.Tensor)
    assert [name for name in task.parameter_names if name not in share.names] == ["3.weight", "3.bias"]


def test_of_a_half_frozen_network_only_what_trains_is_sent():
    def module():
        net = nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
        net[0].requires_grad_(False)
        return net

    task = feduca.tasks.build_task(clients=2, model=module)
    trained = 6 * 10 + 10
    assert (task.parameters, task.frozen_names) == (trained, ("0.weight", "0.bias"))
    settings = {"mechanism.name": "fedavg", "participation.rule": "always", "rounds": 2, "task.clients": 2}
    result = feduca.run({}, settings, task=task)
    assert [record["bytes_up"] // (4 * trained) for record in result.rounds] == [
        2,
        2,
    ]  # two silos; what they tell is less
    assert torch.equal(torch.as_tensor(result.theta)[trained:], task.init(0)[trained:])
    assert share_of("but-bias", task).names == ("2.weight",)


def test_the_default_changes_no_name():
    plain = feduca.recipe({}, {})
    assert plain.hash() == feduca.recipe({}, {"share": "all"}).hash()
    assert len({feduca.recipe({}, {"share": share}).hash() for share in ("all", "body", BODY)}) == 3


def play(settings, state=None, snapshot=None, task=None):
    task = task or NumpyTask()
    one = experiment.build(feduca.recipe({}, {**BASE, **settings}), 0, task)
    federation = Recording(one.federation)
    if snapshot is not None:
        federation.restore(snapshot)
    items, shots = [], []

    def kept(*item):
        items.append(item)
        shots.append(dict(federation.snapshot()))

    loop.play(loop.rounds(one.server, one.theta, task.examples, on_round=kept, state=state), federation)
    return items, federation.reports, shots


def test_private_parts_stay_and_complete_the_shared_model():
    """By hand, round by round: the shared part is FedAvg's, the private part each silo's own."""
    task, spec = NumpyTask(), feduca.types.LocalSpec(epochs=1, batch_size=10)
    items, reports, shots = play({"share": BODY, "participation.rule": "always"})
    first, clients = task.init(0), np.arange(4)
    theta, own = first, np.tile(first, (4, 1))
    for t, ((record, each, state), report) in enumerate(zip(items, reports), 1):
        whole = np.tile(theta, (4, 1))
        whole[:, -1] = own[:, -1]
        assert each.global_accuracy == pytest.approx(task.evaluate(whole, clients, "validation").accuracy)
        own = task.train(whole, clients, spec, t, 0)
        assert shots[t - 1]["own"] == pytest.approx(own)
        assert (report.theta[:, -1] == first[-1]).all()  # what a silo sends says nothing of it
        theta = np.append(own[:, :-1].mean(0), first[-1])
        assert state.theta == pytest.approx(theta)
        assert state.theta[-1] == first[-1]
        assert record.accuracy is None  # the server's model is not whole


@pytest.mark.parametrize("name", sorted(registry))
def test_every_mechanism_memory_and_offer_keeps_the_server_blind(name):
    first = NumpyTask().init(0)
    for memory, offer in itertools.product(("update", "model", "none"), ("global", "least-concession", "best-mixture")):
        settings = {"mechanism.name": name, "memory.kind": memory, "offer.kind": offer, "share": BODY}
        items, reports, shots = play({**settings, "participation.rule": "accuracy"})
        assert all(state.theta[-1] == first[-1] for _, _, state in items)
        assert all((report.theta[report.joined][:, -1] == first[-1]).all() for report in reports)
        assert len(np.unique(shots[-1]["own"][:, -1])) == 4


OTHERS = [
    {"aggregation.optimiser": "adam"},
    {"aggregation.kind": "median"},
    {"offer.search": "guided", "offer.kind": "least-concession", "participation.rule": "utility"},
    {"utility.leave_out": "contributed", "diagnostics": True},
    {"conduct.kind": "noise"},
    {"participation.against": "outside", "mechanism.name": "fedprox"},
]


@pytest.mark.parametrize("more", OTHERS)
def test_with_other_choices_of_server_and_silo(more):
    items, reports, _ = play({"share": BODY, "participation.rule": "accuracy", **more})
    first = NumpyTask().init(0)
    assert all(state.theta[-1] == first[-1] for _, _, state in items)
    assert all((report.theta[report.joined][:, -1] == first[-1]).all() for report in reports)


def test_a_run_resumes_to_the_bit(tmp_path):
    settings = {
        "share": BODY,
        "mechanism.name": "ditto",
        "participation.rule": "accuracy",
        "offer.kind": "best-mixture",
    }
    whole, _, shots = play(settings)
    path = checkpoint.write(tmp_path, 2, checkpoint.Checkpoint("run", whole[1][2], shots[1]))
    back = checkpoint.read(path)
    rest, _, ends = play(settings, back.state, back.clients)
    assert np.array_equal(rest[-1][2].theta, whole[-1][2].theta)
    assert all(np.array_equal(ends[-1][name], shots[-1][name], equal_nan=True) for name in ends[-1])


def test_lockstep_and_one_at_a_time_equal_runs_of_their_own():
    recipes = [
        feduca.recipe({}, {**BASE, "participation.rule": "accuracy", "mechanism.name": name, "share": share})
        for name, share in (("fedprox", BODY), ("fedavg", "all"), ("ditto", BODY), ("feduca", ["head.*"]))
    ]
    alone = []
    for seed, recipe in enumerate(recipes):
        task = NumpyTask(4, seed)
        one = experiment.build(recipe, seed, task)
        alone.append(loop.play(loop.rounds(one.server, one.theta, task.examples), one.federation))
        single = InProcess(task, experiment.behaviour_of(recipe, seed, task), one_at_a_time=True)
        apart = loop.play(loop.rounds(one.server, one.theta, task.examples), single)
        assert apart.theta == pytest.approx(
            alone[-1].theta, abs=1e-12 if recipe.mechanism["name"] != "feduca" else 1e-9
        )
    experiments = [experiment.build(recipe, seed, NumpyTask(4, seed)) for seed, recipe in enumerate(recipes)]
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], Merged([e.task for e in experiments]))
    assert all(np.array_equal(a.theta, b.theta) for a, b in zip(alone, states))


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_real_models_and_their_engines(kind):
    settings = {"rounds": 2, "task.clients": 3, "task.max_examples": 200, "share": "body", "engine.kind": kind}
    result = feduca.run("quickstart", {**settings, "mechanism.name": "fedprox", "participation.rule": "always"})
    task = experiment.make_task(feduca.recipe("quickstart", settings), 0)
    head = ~share_of("body", task).mask
    theta, first = np.asarray(result.theta), np.asarray(task.init(0))
    assert np.array_equal(theta[head], first[head])
    assert not np.isclose(theta[~head], first[~head]).all()


class Prevalence(NumpyTask):
    """Silos that agree on everything but how common the outcome is: the last entry of theta multiplies a constant."""

    def __init__(self):
        super().__init__(6, validation=200)
        for (k, split), (x, _) in list(self._data.items()):
            x[:, -1] = 1
            rng = stream(1, "prevalence", k, ("train", "validation", "test").index(split))
            shift = np.append(np.ones(DIMENSION - 1), 4.0 * (-1) ** k)
            self._data[k, split] = x, (x @ shift + 0.3 * rng.normal(size=len(x)) > 0).astype(float)


def test_a_private_bias_helps_where_prevalence_differs():
    settings = {"participation.rule": "always", "rounds": 10, "task.clients": 6, "local.epochs": 5}
    scores = {}
    for name, share in (("all", "all"), ("but-bias", "but-bias")):
        items, _, _ = play({**settings, "share": share}, task=Prevalence())
        scores[name] = np.mean(items[-1][1].global_accuracy)
    assert scores["but-bias"] > scores["all"] + 0.1


def test_traffic_counts_what_travels():
    always = {"participation.rule": "always"}
    whole, part = (play({**always, "share": share})[0][0][0] for share in ("all", BODY))
    assert whole.bytes_up - part.bytes_up == 4 * 4  # one float32 of each of four silos
    assert whole.bytes_down == part.bytes_down


def test_export_writes_whole_models_of_silos(tmp_path):
    settings = {"rounds": 2, "task.clients": 3, "task.max_examples": 200, "share": "body"}
    result = feduca.run("quickstart", settings, out=tmp_path / "runs")
    exported = feduca.export_models(result.run_dir, tmp_path / "out")
    names = list(exported.models["global"])
    heads = [exported.models[silo][names[-1]] for silo in result.silos]
    assert not np.array_equal(heads[0], heads[1])
    assert "the rest of `global` is as at the start" in (tmp_path / "out" / "README.md").read_text()
    assert exported.card["share"] == "body"
    assert result.accuracy is None
