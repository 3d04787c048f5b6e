"""The stacked engine against the sequential reference, and both against plain PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from feduca import api
from feduca.client.requests import Train
from feduca.errors import ConfigError
from feduca.tasks import Dataset, build_task
from feduca.tasks.data.batches import plan
from feduca.tasks.data.pool import flip_and_crop
from feduca.tasks.engines import Keys
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.models import MLP
from feduca.tasks.models.networks import dense
from feduca.tasks.models.resnet import ResNet18
from feduca.tasks.task import Settings, Silo, TorchTask, precision
from feduca.types import LocalSpec

SPEC = LocalSpec(epochs=2, batch_size=10, lr=0.1)


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(64, 12, bias=False), nn.BatchNorm1d(12), nn.Linear(12, 10)

    def forward(self, x):
        return self.two(torch.relu(self.norm(self.one(x))))


def ragged(task: TorchTask, sizes=(7, 23, 40, 61)) -> TorchTask:
    """The same task with silos of unequal size: 1, 3, 4 and 7 steps of 10 an epoch, last batches of 7, 3, 10 and 1."""
    members = [
        Silo(
            s.name,
            {**s.rows, "train": s.rows["train"][:n], "validation": s.rows["validation"][: 3 + n // 10]},
            s.client,
        )
        for s, n in zip(task.members, sizes)
    ]
    return replace(task, members=tuple(members))


def both(model="mlp", **changes):
    return [ragged(build_task(model=model, engine=kind, **changes)) for kind in ("stacked", "sequential")]


SPECS = {
    "plain": SPEC,
    "decay and clip": replace(SPEC, weight_decay=1e-2, clip=0.5),
    "clip": replace(SPEC, clip=0.2, batch_size=5),
    "momentum": replace(SPEC, momentum=0.9, clip=1.0),
    "adam": replace(SPEC, optimiser="adam", lr=1e-3, weight_decay=1e-3, clip=1.0),
    "prox": replace(SPEC, prox=0.5),
    "propfair": replace(SPEC, objective="propfair", bound=2.5),
    "big batch": replace(SPEC, batch_size=1000),
}


class Tanh(MLP):
    """One of ours with a forward pass of its own."""

    def __init__(self):
        super().__init__(64, [12], 10)

    def forward(self, x):
        return self.layers[1](torch.tanh(self.layers[0](x.flatten(1))))


class TanhThroughout(Tanh):
    """One whose pass over K models is its own, too."""

    def rest(self, params, h):
        return dense(params, "layers.1", torch.tanh(h))


class WithMore(MLP):
    """One with a parameter that a perceptron does not have; it comes first in theta."""

    def __init__(self):
        super().__init__(64, [12], 10)
        self.more = nn.Parameter(torch.ones(3))


class HalfFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 12), nn.Linear(12, 10)
        self.one.requires_grad_(False)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


class FrozenMLP(MLP):
    """One of ours whose first layer is frozen."""

    def __init__(self):
        super().__init__(64, [12], 10)
        self.layers[0].requires_grad_(False)


class Scaled(nn.Module):
    """A scalar parameter, and one that the outputs do not depend on."""

    def __init__(self):
        super().__init__()
        self.one, self.unused, self.scale = nn.Linear(64, 10), nn.Linear(3, 4), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.one(x) * self.scale


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
@pytest.mark.parametrize(
    "spec", [SPECS[name] for name in ("decay and clip", "momentum", "adam")], ids=lambda s: s.optimiser
)
def test_clients_may_have_learning_rates_of_their_own(kind, spec):
    task = ragged(build_task(engine=kind))
    theta, rates = task.init(1).expand(4, -1), np.array([0.05, 0.1, 0.05, 0.002])
    got = task.train(theta, np.arange(4), spec, round=3, seed=9, rates=rates)
    for k, rate in enumerate(rates):
        want = task.train(theta[k : k + 1], np.array([k]), replace(spec, lr=rate), round=3, seed=9)
        torch.testing.assert_close(got[k], want[0], rtol=1e-5, atol=1e-6)
    plain = task.train(theta, np.arange(4), spec, round=3, seed=9)
    assert not torch.allclose(got, plain, atol=1e-3)


@pytest.mark.parametrize("rates", [[0.1] * 3, [0.1] * 5, 0.1, [0.1, 0.1, -0.1, 0.1], [0.1, 0.1, float("nan"), 0.1]])
def test_rates_that_cannot_be(rates):
    task = build_task()
    with pytest.raises(ConfigError, match="give 4 numbers of at least 0, one per client"):
        task.train(task.init(0).expand(4, -1), np.arange(4), SPEC, 1, 0, rates=np.array(rates))


def test_a_task_that_knows_one_rate_is_asked_rate_by_rate():
    theta, clients = np.zeros((3, 1)), np.arange(3)
    seen = []

    class Plain:
        def __getattr__(self, name):  # one that passes everything else on to ours
            return getattr(build_task(), name)

        def train(self, theta, clients, spec, round, seed, anchor=None):
            seen.append((clients.tolist(), spec.lr, np.asarray(seed).tolist(), anchor.tolist()))
            return theta + spec.lr

    asked = Train(theta, clients, SPEC, 1, np.array([5, 6, 7]), np.ones((3, 1)), rates=np.array([0.2, 0.3, 0.2]))
    assert asked.on(Plain())[:, 0] == pytest.approx([0.2, 0.3, 0.2])
    assert seen == [([0, 2], 0.2, [5, 7], [[1.0], [1.0]]), ([1], 0.3, [6], [[1.0]])]
    assert not theta.any()  # what was handed in stays as it was


@pytest.mark.parametrize(
    "model", ["mlp", "logistic", WithBatchNorm, Tanh, TanhThroughout, WithMore, HalfFrozen, FrozenMLP, Scaled]
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_stacked_equals_sequential_on_unequal_silos(model, spec):
    if model is WithBatchNorm:  # PyTorch refuses batches of one there
        spec = replace(spec, batch_size=8 if spec.batch_size <= 10 else spec.batch_size)
    results = []
    for task in both(model):
        theta = task.init(1).expand(4, -1)
        anchor = torch.stack([task.init(20 + k) for k in range(4)])  # each its own
        out = task.train(theta, np.arange(4), spec, round=3, seed=9, anchor=anchor)
        assert torch.isfinite(out).all()
        results.append((out, task.evaluate(out, np.arange(4), "validation")))
    (a, sa), (b, sb) = results
    torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(sa.loss, sb.loss, rtol=1e-3)
    assert (a - theta).abs().amax(1).min() > 1e-4  # everybody moved


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
@pytest.mark.parametrize("model", [HalfFrozen, FrozenMLP])
def test_frozen_parameters_stay_as_they_are(model, kind):
    task = ragged(build_task(model=model, engine=kind))
    name = "one" if model is HalfFrozen else "layers.0"
    assert task.parameters == 12 * 10 + 10
    assert task.size == task.parameters + 64 * 12 + 12
    theta, anchor = task.init(1).expand(4, -1), torch.zeros(task.size)
    for spec in SPECS.values():
        out = task.train(theta, np.arange(4), replace(spec, weight_decay=0.1, prox=0.5), 1, 5, anchor=anchor)
        before, after = task.layout.unpack(theta), task.layout.unpack(out)
        for part in ("weight", "bias"):
            assert torch.equal(before[f"{name}.{part}"], after[f"{name}.{part}"])
        assert (out - theta).abs().amax(1).min() > 1e-4


def test_frozen_parameters_stay_as_they_are_in_a_whole_run():
    task = build_task(model=HalfFrozen, clients=7)
    settings = {"mechanism.name": "feduca", "task.clients": 7, "local.epochs": 1, "local.weight_decay": 0.1}
    result = api.run("quickstart", settings, rounds=3, task=task)
    start, end = task.init(0), torch.as_tensor(result.theta)
    assert torch.equal(start[task.parameters :], end[task.parameters :])
    assert not torch.equal(start[: task.parameters], end[: task.parameters])


def test_frozen_filters_stay_as_they_are_in_the_graph_trainer():
    def make():
        module = ResNet18(4, widths=((4, 1), (6, 2)))
        module.conv1.requires_grad_(False)
        module.layer2.requires_grad_(False)
        return module

    x, y = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), dtype=np.uint8), np.arange(80) % 4
    data = Dataset("noise", x, y, x[:9], y[:9], 4, (), np.full(3, 0.5), np.full(3, 0.25))
    task = build_task(data=data, model=make, clients=2, classes_per_client=4, engine="sequential", validation_share=0.4)
    theta, anchor = task.init(0).expand(2, -1), task.init(1).expand(2, -1)
    spec = LocalSpec(epochs=1, batch_size=4, lr=0.1, weight_decay=0.3, prox=0.2, clip=3.0)
    batches = plan([silo.rows["train"][:6] for silo in task.members], np.arange(2), spec, 0, np.zeros(2, int))
    want = task.engine.train(theta, batches, spec, anchor, Keys(np.zeros(2, int), 0, np.arange(2)))
    got = AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion).train(
        theta, batches, spec, anchor
    )
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    assert torch.equal(got[:, task.parameters :], theta[:, task.parameters :])
    assert (got - theta).abs().amax(1).min() > 1e-3


def test_compiled_training_depends_neither_on_threads_nor_on_others():
    task = ragged(build_task(model="mlp"))
    spec = replace(SPEC, clip=0.2, weight_decay=1e-3)
    theta = task.init(0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        together = task.train(theta.expand(4, -1), np.arange(4), spec, 1, 5)
        torch.set_num_threads(3)
        assert torch.equal(together, task.train(theta.expand(4, -1), np.arange(4), spec, 1, 5))
        assert torch.equal(together[[2]], task.train(theta[None], np.array([2]), spec, 1, 5))
    finally:
        torch.set_num_threads(before)


def test_training_from_several_threads_leaves_blas_as_it_was():
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import ThreadpoolController

    task = build_task(model="mlp")
    theta = task.init(0).expand(10, -1)
    alone = task.train(theta, np.arange(10), SPEC, 1, 5)
    blas = ThreadpoolController().select(user_api="blas")
    with blas.limit(limits=2):
        before = [library["num_threads"] for library in blas.info()]
        with ThreadPoolExecutor(3) as threads:
            done = list(threads.map(lambda _: task.train(theta, np.arange(10), SPEC, 1, 5), range(6)))
        assert [library["num_threads"] for library in blas.info()] == before
    assert all(torch.equal(alone, other) for other in done)


def test_images_too_large_to_copy_are_left_to_autograd(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (200, 4, 4, 3), dtype=np.uint8), rng.integers(0, 3, 200)
    half = np.full(3, 0.5)
    results = []
    for limit in (2**30, 100):
        monkeypatch.setattr("feduca.tasks.data.pool.READY_BYTES", limit)
        data = Dataset("noise", x, y, x, y, 3, tuple("abc"), half, half)
        task = build_task(data=data, model="mlp", clients=3, classes_per_client=3)
        assert (task.pool.ready() is None) == (limit == 100)
        results.append(task.train(task.init(0).expand(3, -1), np.arange(3), SPEC, 1, 5))
    torch.testing.assert_close(*results, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_a_client_does_not_depend_on_who_else_trains(kind):
    task = ragged(build_task(engine=kind))
    theta = task.init(0)
    together = task.train(theta.expand(4, -1), np.arange(4), SPEC, 1, 5)
    alone = torch.cat([task.train(theta[None], np.array([k]), SPEC, 1, 5) for k in (3, 1)])
    torch.testing.assert_close(together[[3, 1]], alone, rtol=1e-4, atol=1e-6)


def test_one_step_by_hand():
    """theta - lr * (gradient + decay * theta), worked out with plain autograd."""
    task = build_task(model="logistic", clients=2, classes_per_client=10)
    spec = LocalSpec(epochs=1, batch_size=10_000, lr=0.5, weight_decay=0.1)
    theta = task.init(0)
    rows = task.members[1].rows["train"]
    weight = theta[:640].view(64, 10).clone().requires_grad_()
    bias = theta[640:].clone().requires_grad_()
    nn.functional.cross_entropy(task.pool.x[rows] @ weight + bias, task.pool.y[rows]).backward()
    want = theta - 0.5 * (torch.cat([weight.grad.flatten(), bias.grad]) + 0.1 * theta)
    got = task.train(theta.expand(2, -1), np.arange(2), spec, 0, 0)[1]
    torch.testing.assert_close(got, want)


def test_training_is_bit_equal_again():
    task = ragged(build_task())
    runs = [task.train(task.init(0).expand(4, -1), np.arange(4), SPEC, 1, 5) for _ in range(2)]
    assert torch.equal(*runs)
    other = task.train(task.init(0).expand(4, -1), np.arange(4), SPEC, 2, 5)
    assert not torch.equal(runs[0], other)


@pytest.mark.parametrize("model", ["mlp", "logistic", WithBatchNorm])
@pytest.mark.parametrize("chunk", [7, 100, 10_000])
def test_along_is_evaluate_at_every_place(model, chunk):
    places = np.random.default_rng(0).random((4, 5))
    for task in both(model, chunk=chunk):
        start, end = (torch.stack([task.init(4 * j + i) for i in range(4)]) for j in range(2))
        along = task.along(start, end, places, np.arange(4), "validation")
        for m in range(5):
            r = torch.tensor(places[:, m : m + 1], dtype=torch.float32)
            there = task.evaluate((1 - r) * start + r * end, np.arange(4), "validation")
            np.testing.assert_allclose(along.accuracy[:, m], there.accuracy)
            np.testing.assert_allclose(along.loss[:, m], there.loss, rtol=1e-5)


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_no_more_examples_at_a_time_than_the_chunk_says(kind, monkeypatch):
    task = ragged(build_task(engine=kind, chunk=12))
    engine, seen = type(task.engine), []
    outputs, between = engine.outputs, engine.between

    def watched_between(self, start, end, x):
        at = between(self, start, end, x)
        return lambda r: (seen.append(r.numel() * x.shape[1]), at(r))[1]

    monkeypatch.setattr(
        engine, "outputs", lambda self, theta, x: (seen.append(x.shape[0] * x.shape[1]), outputs(self, theta, x))[1]
    )
    monkeypatch.setattr(engine, "between", watched_between)
    theta = task.init(0).expand(4, -1)
    task.evaluate(theta, np.arange(4), "validation")
    assert max(seen) == 12
    assert len(seen) == 3  # up to 9 examples of a silo, 3 of each at a time
    task.test(theta[0])
    task.along(theta, theta, np.linspace(0, 1, 5), np.arange(4), "validation")
    assert max(seen) == 12
    few = replace(task, settings=replace(task.settings, chunk=3))
    seen.clear()
    few.along(theta, theta, np.linspace(0, 1, 5), np.arange(4), "validation")
    assert max(seen) == 4  # one of each silo in any case


def test_models_along_a_path_are_few_at_a_time_where_they_are_large(monkeypatch):
    task = build_task(clients=2, classes_per_client=10, model="logistic", max_examples=100)
    ends, places = [task.init(seed).expand(2, -1) for seed in (0, 1)], np.linspace(0, 1, 7)
    whole = task.along(*ends, places, np.arange(2), "validation")
    seen = []
    between = type(task.engine).between

    def watched(*args):
        at = between(*args)
        return lambda r: (seen.append(r.shape[1]), at(r))[1]

    monkeypatch.setattr(type(task.engine), "between", watched)
    monkeypatch.setattr("feduca.tasks.task.ROOM", 4 * task.size)
    some = task.along(*ends, places, np.arange(2), "validation")
    assert max(seen) == 2
    assert sum(seen) == 7
    np.testing.assert_allclose(some.loss, whole.loss, rtol=1e-6)


def test_scores_are_float64_and_nan_without_data():
    task = build_task()
    scores = task.evaluate(task.init(0).expand(2, -1), np.array([0, 1]), "test")
    assert np.isnan(scores.accuracy).all()
    assert np.isnan(scores.loss).all()
    assert scores.accuracy.dtype == np.float64
    with_test = build_task(test_share=0.5)
    assert np.isfinite(with_test.evaluate(task.init(0).expand(2, -1), np.array([0, 1]), "test").loss).all()


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_bf16_computes_in_bf16(kind):
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            seen.add(out.dtype)
            return out

    task, exact = (
        build_task(model=lambda: Watched(64, 10, bias=False), engine=kind, precision=p) for p in ("bf16", "fp32")
    )
    theta = task.init(0).expand(10, -1)
    seen.clear()  # the model was tried when the task was built
    trained = task.train(theta, np.arange(10), SPEC, 1, 5)
    assert seen == {torch.bfloat16}
    assert trained.dtype == torch.float32
    seen.clear()
    loss = task.evaluate(trained, np.arange(10), "validation").loss
    task.along(theta, trained, np.array([0.5]), np.arange(10), "validation")
    task.test(trained[0])
    assert seen == {torch.bfloat16}
    seen.clear()
    other = exact.evaluate(trained, np.arange(10), "validation").loss
    assert seen == {torch.float32}
    assert 0 < np.abs(loss - other).max() < 0.05


def test_pytorchs_switches_are_left_as_they_were():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        for switches in ((True, False), (False, True)):
            matmul.allow_tf32, cudnn.allow_tf32 = switches
            for kind, inside in (("fp32", False), ("bf16", True)):
                with precision(Settings(precision=kind)):
                    assert (matmul.allow_tf32, cudnn.allow_tf32) == (inside, inside)
                    assert torch.is_autocast_enabled("cpu") == (kind == "bf16")
                assert (matmul.allow_tf32, cudnn.allow_tf32) == switches
            with pytest.raises(RuntimeError, match="inside"), precision(Settings(precision="bf16")):
                raise RuntimeError("inside")
            assert (matmul.allow_tf32, cudnn.allow_tf32) == switches
            assert not torch.is_autocast_enabled("cpu")
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def pictures():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (90, 8, 8, 1), dtype=np.uint8), np.arange(90) % 3
    return Dataset("pictures", x, y, x[:12], y[:12], 3, tuple("abc"), np.array([0.4]), np.array([0.2]))


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_images_are_augmented_in_training_and_only_there(kind, monkeypatch):
    task = build_task(data=pictures(), model="logistic", clients=2, classes_per_client=3, engine=kind)
    spec = LocalSpec(epochs=1, batch_size=1000, lr=0.1, augment=True)
    theta = task.init(0).expand(2, -1)
    plain = task.train(theta, np.arange(2), replace(spec, augment=False), 0, 0)
    moved = task.train(theta, np.arange(2), spec, 0, 0)
    assert (plain - moved).abs().max() > 1e-3
    batches = plan([silo.rows["train"] for silo in task.members], np.arange(2), spec, 0, np.zeros(2, int))
    x = task.pool.examples(torch.from_numpy(batches.index[0]))
    want = flip_and_crop(x.flatten(0, 1).movedim(1, 3), torch.from_numpy(batches.augment[0].flatten())).movedim(3, 1)
    assert not torch.equal(x.flatten(0, 1), want)
    torch.testing.assert_close(
        task.pool.examples(torch.from_numpy(batches.index[0]), torch.from_numpy(batches.augment[0])).flatten(0, 1), want
    )
    monkeypatch.setattr(
        "feduca.tasks.data.pool.flip_and_crop", lambda x, code: pytest.fail("augmented in an evaluation")
    )
    task.evaluate(theta, np.arange(2), "train")
    task.along(theta, moved, np.array([0.5]), np.arange(2), "validation")
    task.test(theta[0])


def test_the_global_test_set_is_standardised_as_the_training_set():
    data = pictures()
    task = build_task(data=data, model="logistic", clients=2, classes_per_client=3)
    want = (data.x_test[:, :, :, 0] / 255 - 0.4) / 0.2
    np.testing.assert_allclose(task.test_pool.examples(torch.arange(12))[:, 0], want, rtol=1e-5, atol=1e-5)
    some = build_task(data=data, model="logistic", clients=2, classes_per_client=3, max_examples=60)
    theta = task.init(0)
    outputs = torch.from_numpy(want.reshape(12, -1)).float() @ theta[:192].view(64, 3) + theta[192:]
    loss = nn.functional.cross_entropy(outputs, torch.from_numpy(data.y_test)).item()
    assert task.test(theta).loss == pytest.approx([loss], rel=1e-4)
    assert some.test(theta).loss == pytest.approx([loss], rel=1e-4)  # fewer than 60 there, so all


@pytest.mark.parametrize("kind", ["stacked", "sequential"])
def test_dropout_is_keyed(kind):
    def make():
        return nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))

    task = build_task(model=make, engine=kind)
    theta = task.init(0).expand(3, -1)
    before = torch.get_rng_state()
    a, b = (task.train(theta, np.arange(3), SPEC, 1, 5) for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.allclose(a, task.train(theta, np.arange(3), SPEC, 2, 5))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (replace(SPEC, optimiser="lion"), "local.optimiser is 'lion'"),
        (replace(SPEC, optimiser="adam", momentum=0.9), "momentum belongs to sgd"),
        (replace(SPEC, objective="median"), "local.objective is 'median'"),
        (replace(SPEC, objective="propfair"), "local.bound is 0.0"),
        (replace(SPEC, batch_size=0), "local.batch_size 0"),
        (replace(SPEC, lr=float("nan")), "local.lr is nan"),
        (replace(SPEC, augment=True), r"local.augment is true, but examples of shape \(64,\) are no images"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(spec, says):
    for task in both():
        with pytest.raises(ConfigError, match=says):
            task.train(task.init(0).expand(4, -1), np.arange(4), spec, 0, 0)
