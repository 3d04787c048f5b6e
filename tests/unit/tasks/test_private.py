"""Training that hides single examples: clipping, lots and noise, against what is computed one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from feduca import own_task
from feduca.errors import ConfigError
from feduca.tasks import build_task
from feduca.tasks.engines import private
from feduca.types import LocalSpec, Private

CLIENTS = np.arange(3)


def digits(model="mlp", **more):
    return build_task(
        data="digits", clients=3, model=model, hidden=None if model == "logistic" else [8], seed=0, **more
    )


def some(task, count=6):
    """Entries, inputs, targets and which are real: three silos, the last with fewer examples."""
    torch.manual_seed(0)
    theta = torch.stack([task.init(k) for k in range(3)])
    entries = {n: e.clone() for n, e in task.layout.unpack(theta).items()}
    index = torch.arange(3 * count).reshape(3, count)
    real = torch.ones(3, count)
    real[2, 2:] = 0
    return entries, task.pool.examples(index), task.pool.targets(index), real


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_every_way_clips_every_example_as_a_loop_does(model, clip):
    task = digits(model)
    what = some(task)
    slow = private.one_by_one(task.engine, *what, clip)
    for way in (private.mapped, private.of_perceptron):
        for fast, reference in zip(way(task.engine, *what, clip), slow):
            torch.testing.assert_close(fast, reference, rtol=1e-4, atol=1e-6)
    if clip == 0.05:  # every example is shortened: no sum is longer than they are together
        lengths = torch.stack([s.flatten(1).square().sum(1) for s in slow]).sum(0).sqrt()
        assert (lengths <= clip * torch.tensor([6.0, 6.0, 2.0])).all()


def test_a_cnn_and_a_users_module_are_clipped_alike(fashion):
    what = some(fashion, 3)
    slow = private.one_by_one(fashion.engine, *what, 0.3)
    for fast, reference in zip(private.mapped(fashion.engine, *what, 0.3), slow):
        torch.testing.assert_close(fast, reference, rtol=1e-3, atol=1e-5)


@pytest.fixture
def fashion():
    """Three silos of small random images, under the paper's CNN."""
    rng = np.random.default_rng(0)
    from feduca.tasks.models.networks import CNN

    def part(n):
        return rng.integers(0, 255, (n, 16, 16, 1)).astype(np.uint8), np.arange(n) % 3

    return own_task(
        {f"s{k}": (*part(12), *part(6)) for k in range(3)},
        model=lambda: CNN((1, 16, 16), [8], 3, filters=4),
    )


def test_portions_of_examples_add_up(monkeypatch):
    task = digits()
    what = some(task)
    whole = private.mapped(task.engine, *what, 0.5)
    monkeypatch.setitem(private.ROOM, "cpu", 1)  # one example at a time
    for a, b in zip(whole, private.mapped(task.engine, *what, 0.5)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def train(task, noise, spec=None, clients=CLIENTS, round=1, seed=0, secret=False, clip=0.5):
    theta = torch.stack([task.init(0)] * len(clients))
    how = Private(clip, np.full(len(clients), float(noise)), secret)
    return task.train_private(theta, clients, spec or LocalSpec(1, 16, 0.1), round, seed, how) - theta


def test_the_noise_has_the_deviation_that_the_accountant_reckons_with():
    """One step at rate 1: the change is lr / n times clipped sum plus noise, on every parameter."""
    task = digits("logistic")
    n = task.examples
    spec = LocalSpec(1, int(n.max()), 1.0)
    quiet = train(task, 1e-12, spec)
    draws = torch.stack([train(task, 3.0, spec, seed=s) - quiet for s in range(40)])
    deviation = draws.std(0).mean(1).numpy() * n
    np.testing.assert_allclose(deviation, 3.0 * 0.5, rtol=0.02)
    assert abs(float(draws.mean())) < 4 * 1.5 / n.min() / np.sqrt(draws.numel())
    flat = draws.flatten(0, 0)[:, 0] * float(n[0]) / 1.5
    assert 0.97 < float((flat.abs() < 1.96).float().mean()) / 0.95 < 1.03  # and is normal


def test_secret_noise_is_as_large_and_never_the_same():
    task = digits("logistic")
    spec = LocalSpec(1, int(task.examples.max()), 1.0)
    quiet = train(task, 1e-12, spec)
    draws = torch.stack([train(task, 3.0, spec, secret=True) - quiet for _ in range(40)])
    assert not torch.equal(draws[0], draws[1])
    np.testing.assert_allclose(draws.std(0).mean(1).numpy() * task.examples, 1.5, rtol=0.02)


def test_lots_are_drawn_with_the_rate_and_batches_vary():
    lots = private.Lots(0, 1, 0, False, torch.device("cpu"))
    sizes = [len(lots.drawn(np.arange(1000), 0.05)) for _ in range(400)]
    assert abs(np.mean(sizes) - 50) < 1.5
    assert abs(np.var(sizes) - 1000 * 0.05 * 0.95) < 12  # a permutation's batches would not vary


def test_the_same_seed_gives_the_same_bits_and_nobody_depends_on_the_others():
    task = digits()
    assert torch.equal(train(task, 1.0), train(task, 1.0))
    assert not torch.equal(train(task, 1.0), train(task, 1.0, round=2))
    assert not torch.equal(train(task, 1.0), train(task, 1.0, seed=1))
    alone = train(task, 1.0, clients=np.array([1]))
    torch.testing.assert_close(alone[0], train(task, 1.0)[1], rtol=1e-5, atol=1e-6)


def test_a_silo_that_is_done_does_not_move():
    """Silos of unequal size have unequal numbers of steps, and a step without a single example is one all the same."""
    rng = np.random.default_rng(0)

    def part(n):
        return rng.normal(size=(n, 4)).astype("f"), np.arange(n) % 2

    task = own_task({f"s{k}": (*part(n), *part(6)) for k, n in enumerate((8, 30, 61))}, hidden=[5])
    spec = LocalSpec(1, 16, 0.1)
    assert spec.steps(task.examples).tolist() == [1, 2, 4]
    each = [train(task, 1.0, spec, clients=np.array([k]))[0] for k in CLIENTS]
    torch.testing.assert_close(torch.stack(each), train(task, 1.0, spec), rtol=1e-5, atol=1e-6)


def test_what_mixes_examples_is_refused():
    rng = np.random.default_rng(0)
    data = {"a": tuple(v for _ in range(2) for v in (rng.normal(size=(20, 4)).astype("f"), np.arange(20) % 2))}
    with_norm = own_task(
        data, model=lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    )
    with pytest.raises(ConfigError, match="batch norm mixes examples; use group norm"):
        train(with_norm, 1.0, clients=np.array([0]))
    fine = own_task(data, model=lambda: nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert train(fine, 1.0, clients=np.array([0])).isfinite().all()
    with pytest.raises(ConfigError, match="no sum over examples"):
        train(fine, 1.0, LocalSpec(1, 16, 0.1, objective="propfair", bound=5.0), clients=np.array([0]))


class Odd(nn.Module):
    """A module that no `vmap` can do: it looks at values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else self.layer(2 * x)


def test_a_module_that_cannot_be_mapped_is_trained_one_example_at_a_time(caplog):
    rng = np.random.default_rng(0)
    data = {"a": tuple(v for _ in range(2) for v in (rng.normal(size=(20, 4)).astype("f"), np.arange(20) % 2))}
    task = own_task(data, model=Odd)
    assert train(task, 1.0, clients=np.array([0])).abs().sum() > 0
    assert "example by example, slowly" in caplog.text


@pytest.mark.parametrize("way", ["of_perceptron", "mapped", "one_by_one"])
@pytest.mark.parametrize("huge", [2e38, 1e25, np.inf])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_model_made_for_one_example_learns_nothing_from_it(way, huge, model):
    """A server sends a weight under which only an example with a certain feature overflows: it counts nothing, and no more."""
    task = rarely(True, model)
    entries = {n: e.clone() for n, e in task.layout.unpack(task.init(0)[None]).items()}
    rows = torch.tensor([[int(r) for r in task.members[0].rows["train"]]])
    rare = task.pool.examples(rows)[0, :, 3].abs() > 1
    assert int(rare.sum()) == 1
    if np.isfinite(huge):
        entries["layers.0.weight"][:, 3] = huge
    what = [entries, task.pool.examples(rows), task.pool.targets(rows)]
    if np.isinf(huge):
        what[1][0, rare, 3] = huge
    without = torch.where(rare, 0.0, 1.0)[None]
    sums = getattr(private, way)
    present, absent = (sums(task.engine, *what, real, 0.5) for real in (torch.ones(1, 8), without))
    length = torch.stack([(p - a).square().sum() for p, a in zip(present, absent)]).sum().sqrt()
    assert all(s.isfinite().all() for s in [*present, *absent])
    assert float(length) <= 0.5
    assert any(s.abs().sum() > 0 for s in absent)  # the others are learnt from as ever


def rarely(there, model):
    """One silo of eight examples; the third alone, if at all, has the feature that a server looks for."""
    x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 2
    x[:, 3], x[2, 3] = 0, 2 * there
    return own_task({"a": (x, y, x, y)}, model=model, hidden=None if model == "logistic" else [5])


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_what_is_sent_is_finite_and_noisy_with_that_example_and_without(model):
    spec = LocalSpec(2, 8, 0.1)
    for there in (True, False):
        task = rarely(there, model)
        theta = task.init(0)[None].clone()
        first = task.layout.unpack(theta)["layers.0.weight"].clone()
        first[:, 3] = 2e38
        theta = task.layout.pack({**task.layout.unpack(theta), "layers.0.weight": first})
        moved = [
            task.train_private(theta, np.array([0]), spec, 1, seed, Private(0.5, np.array([2.0]), False)) - theta
            for seed in range(30)
        ]
        assert torch.stack(moved).isfinite().all()
        steps = 2 * 2**0.5 * 0.1 / 8 * 0.5 * 2.0  # of a weight that no gradient moves, twice the noise's deviation
        small = torch.stack(moved)[:, (theta < 1e38)]
        assert float(small.std(0).mean()) > 0.4 * steps


class Counting(nn.Module):
    """A module that writes what it sees into a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.add_(x.detach().sum(0))
        return self.layer(x) + self.seen.sum() * 0.01


def test_no_buffer_leaves_with_what_was_seen():
    """Neither as it is sent, nor by way of the examples that come after."""
    rng = np.random.default_rng(0)
    data = {"a": tuple(v for _ in range(2) for v in (rng.normal(size=(20, 4)).astype("f"), np.arange(20) % 2))}
    task = own_task(data, model=Counting)
    moved = task.layout.unpack(train(task, 1.0, LocalSpec(3, 16, 0.1), clients=np.array([0])))
    assert not moved["seen"].any()
    assert moved["layer.weight"].any()
    entries = {n: e.clone() for n, e in task.layout.unpack(task.init(0)[None]).items()}
    rows = torch.arange(6)[None]
    what = entries, task.pool.examples(rows), task.pool.targets(rows)
    part = [torch.eye(6)[None, b] for b in range(6)]
    apart = [private.one_by_one(task.engine, *what, real, 0.5) for real in part]
    whole = private.one_by_one(task.engine, *what, torch.ones(1, 6), 0.5)
    for total, *each in zip(whole, *apart):
        torch.testing.assert_close(total, torch.stack(each).sum(0))


def test_running_statistics_are_refused():
    rng = np.random.default_rng(0)
    data = {"a": tuple(v for _ in range(2) for v in (rng.normal(size=(20, 8)).astype("f"), np.arange(20) % 2))}

    def model(track):
        norm = nn.InstanceNorm1d(2, track_running_stats=track)
        return lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, 2))

    with pytest.raises(ConfigError, match="running statistics") as refused:
        train(own_task(data, model=model(True)), 1.0, clients=np.array([0]))
    assert "\n" not in str(refused.value)
    assert train(own_task(data, model=model(False)), 1.0, clients=np.array([0])).isfinite().all()
