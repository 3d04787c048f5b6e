"""The GPU training step, interpreted on the CPU by Triton, against PyTorch; skipped where Triton is not installed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

# isort: split
from interpreted import DEVICE, errors

# isort: split
from feduca.tasks import Dataset, build_task
from feduca.tasks.data.batches import plan
from feduca.tasks.data.pool import flip_and_crop
from feduca.tasks.engines import Keys
from feduca.tasks.engines.gpu import fused, step_kernels
from feduca.tasks.metrics import criterion
from feduca.tasks.models import CNN, MLP
from feduca.tasks.models.layout import Layout
from feduca.types import LocalSpec


def test_gather_augments_as_the_cpu_does():
    torch.manual_seed(0)
    pool = torch.randn(20, 8, 8, 4, device=DEVICE)
    index = torch.randint(0, 20, (2, 2, 3), device=DEVICE, dtype=torch.int32)
    codes = torch.randint(0, 324, (2, 2, 3), device=DEVICE, dtype=torch.int32)
    step = torch.ones(1, dtype=torch.int32, device=DEVICE)
    x, y = torch.empty(2, 3, 8, 8, 4, device=DEVICE), torch.empty(2, 3, dtype=torch.int64, device=DEVICE)
    labels = torch.arange(20, device=DEVICE) + 100
    step_kernels.gather(pool, labels, index, codes, step, x, y)
    want = flip_and_crop(pool[index[1].flatten().long()], codes[1].flatten().long())
    assert torch.equal(x.flatten(0, 1), want)
    assert torch.equal(y, index[1].long() + 100)
    step_kernels.gather(pool, labels, index, None, step, x, y)
    assert torch.equal(x.flatten(0, 1), pool[index[1].flatten().long()])


CASES = {
    "cnn": (lambda: CNN((3, 16, 16), (21, 12), 10, filters=16), True),
    "mlp": (lambda: MLP(768, (21,), 10), False),
    "logistic": (lambda: MLP(768, (), 10), False),
}


def noisy(make):
    """A task of two silos whose engine is the reference."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 16, 16, 3), dtype=np.uint8), np.arange(120) % 10
    data = Dataset("noise", x, y, x[:9], y[:9], 10, (), np.full(3, 0.5), np.full(3, 0.25))
    return build_task(
        data=data,
        clients=2,
        classes_per_client=10,
        model=make,
        engine="sequential",
        device=DEVICE,
        validation_share=0.3,
    )


@pytest.mark.parametrize(("make", "augment"), CASES.values(), ids=CASES.keys())
def test_the_trainer_without_autograd_is_the_reference(make, augment):
    task = noisy(make)
    rows = [task.members[0].rows["train"][:7], task.members[1].rows["train"][:12]]  # 2 and 3 steps of up to 5
    trainers = fused.Trainers(task.engine.module, task.layout, task.pool)
    theta = task.init(0).expand(2, -1)
    anchor = task.init(1).expand(2, -1)
    for spec in (
        LocalSpec(epochs=1, batch_size=5, lr=0.1, weight_decay=1e-2, clip=1.0, prox=0.3, augment=augment),
        LocalSpec(epochs=1, batch_size=5, lr=0.2, augment=augment),
    ):
        assert fused.fits(task.engine.module, task.layout, task.criterion, spec)
        batches = plan(rows, np.arange(2), spec, 0, np.zeros(2, int))
        if not spec.clip:
            batches = replace(batches, rates=np.array([0.5, 1.0]) * spec.lr)
        got = trainers.train(theta, batches, spec, anchor)
        want = task.engine.train(theta, batches, spec, anchor, Keys(np.zeros(2, int), 0, np.arange(2)))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        assert (got - theta).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 0, 5, 2, 4, 1]], ids=["longest first", "in no order"])
def test_the_trainer_lets_go_of_silos_that_are_done(order):
    task = noisy(CASES["mlp"][0])
    everything = np.concatenate([silo.rows["train"] for silo in task.members])
    sizes = np.array([23, 19, 12, 5, 2, 1])[order]
    rows, who = [everything[n : 2 * n] for n in sizes], np.arange(6)
    spec = LocalSpec(epochs=1, batch_size=5, lr=0.1, weight_decay=1e-2, clip=1.0, prox=0.3)
    batches = plan(rows, who, spec, 0, np.zeros(6, int))
    trainers = fused.Trainers(task.engine.module, task.layout, task.pool)
    theta, anchor = (torch.stack([task.init(first + k) for k in range(6)]) for first in (0, 10))
    got, again = (trainers.train(theta, batches, spec, anchor) for _ in range(2))
    (trainer,) = trainers.made.values()
    assert trainer.graphs.prepare(batches) == ([6, 4, 4, 4, 4] if order[0] == 0 else [6, 6, 6, 6, 4])
    want = task.engine.train(theta, batches, spec, anchor, Keys(np.zeros(6, int), 0, who))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert torch.equal(got, again)


@pytest.mark.parametrize(("make", "augment"), CASES.values(), ids=CASES.keys())
def test_the_trainer_in_bf16_is_as_near_as_pytorchs_autocast(make, augment):
    if make is CASES["cnn"][0] and DEVICE == "cpu":
        pytest.skip("Triton's interpreter cannot multiply bf16 inside a kernel")
    task, who = noisy(make), np.arange(2)
    theta, keys = torch.stack([task.init(seed) for seed in (0, 3)]), Keys(np.zeros(2, int), 0, who)
    spec = LocalSpec(epochs=1, batch_size=5, lr=0.1, weight_decay=1e-2, clip=5.0, augment=augment)
    rows = [silo.rows["train"][:n] for silo, n in zip(task.members, (7, 12))]
    batches = plan(rows, who, spec, 0, np.zeros(2, int))
    exact = task.engine.train(theta, batches, spec, None, keys)
    trainers = fused.Trainers(task.engine.module, task.layout, task.pool)
    with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
        ours = [trainers.train(theta, batches, spec, None) for _ in range(2)]  # the second round reuses the buffers
        theirs = task.engine.train(theta, batches, spec, None, keys)
    (trainer,) = trainers.made.values()
    assert (trainer.flat.dtype, trainer.shadow.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(trainer.shadow.float(), trainer.flat, rtol=2**-7, atol=0)
    torch.testing.assert_close(*ours, rtol=1e-3, atol=1e-4)

    wrong, usual = (errors(task.layout, got, exact, theta) for got in (ours[0], theirs))
    assert (wrong < 2 * usual + 0.03).all()
    assert wrong.max() > 1e-4  # it is not fp32


class Own(MLP):
    """One of ours with passes of its own."""

    def forward(self, x):
        return torch.tanh(super().forward(x))

    def rest(self, params, h):
        return torch.tanh(super().rest(params, h))


def test_what_the_trainer_leaves_to_autograd():
    def fits(module, spec=None):
        return fused.fits(module, Layout.of(module), criterion("accuracy"), spec or LocalSpec())

    module = MLP(64, (5,), 10)
    assert fits(module)
    assert fits(CNN((3, 16, 16), (9,), 10, filters=16))
    for spec in (LocalSpec(momentum=0.9), LocalSpec(optimiser="adam"), LocalSpec(objective="propfair", bound=5.0)):
        assert not fits(module, spec)
    assert not fits(torch.nn.Linear(2, 2))
    assert not fits(Own(64, (5,), 10))
    assert not fits(CNN((3, 16, 16), (9,), 10, filters=10))
    module.layers[0].requires_grad_(False)
    assert not fits(module)
