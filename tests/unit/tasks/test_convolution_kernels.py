"""The GPU kernels against plain PyTorch: on a GPU where there is one, else in Triton's interpreter.

Skipped where Triton is not installed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

# isort: split
from interpreted import DEVICE

# isort: split
from feduca.tasks import build_task
from feduca.tasks.data import Dataset
from feduca.tasks.data.batches import plan
from feduca.tasks.engines.gpu import convolution_kernels as kernels
from feduca.tasks.engines.gpu.convolution_kernels import ConvShape, Tile
from feduca.tasks.engines.gpu.fused import Trainers
from feduca.types import LocalSpec


def case(K, B, H, W, C, O, k, across=None):  # noqa: E741
    """One convolution, its parameters views into a longer vector, and what autograd makes of it in float64."""
    torch.manual_seed(0)
    shape = ConvShape(H, W, C, O, k, across)
    x, flat = torch.randn(K, B, H, W, C), torch.randn(K, shape.taps * O + O + 64) / shape.taps**0.5
    x, flat = x.to(DEVICE), flat.to(DEVICE)
    w, b = flat[:, : shape.taps * O].unflatten(1, (shape.taps, O)), flat[:, shape.taps * O :][:, :O]
    leaves = [t.detach().double().requires_grad_() for t in (x, w, b)]
    bank = leaves[1].view(K, k, shape.width, C, O).permute(0, 4, 3, 1, 2)
    pictures = leaves[0].movedim(4, 2)
    out = torch.stack([F.max_pool2d(F.relu(F.conv2d(pictures[i], bank[i], leaves[2][i])), 2) for i in range(K)])
    out = out.movedim(2, 4)
    d = torch.randn(out.shape, device=DEVICE)
    return shape, x, w, b, d, out.detach(), torch.autograd.grad(out, leaves, d.double())


def close(got, want):
    assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-5


CASES = {
    "square": (2, 3, 12, 12, 16, 16, 5),
    "a row and a column that pooling drops": (2, 3, 13, 11, 16, 32, 5),
    "filters one column wide": (2, 3, 12, 8, 16, 16, 5, 1),
    "three channels": (2, 2, 8, 8, 3, 16, 3),
}


@pytest.mark.parametrize("tile", [Tile(32, 16), Tile(16, 32), Tile(64, 128)], ids=lambda t: f"{t.places}x{t.taps}")
@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES.keys())
def test_convolution_and_its_gradients(sizes, tile):
    shape, x, w, b, d, want, (dx, dw, db) = case(*sizes)
    out, winner = kernels.convolve(x, w, b, shape, "ieee", tile)
    close(out, want)
    below = shape.channels >= 16
    bordered, bare = (kernels.unpool(d, winner, shape, border=border) for border in (below, False))
    for parts in (
        kernels.filter_masked(x, d, winner, shape, "ieee", tile),
        kernels.filter_unpooled(x, bordered, shape, "ieee", tile),
        kernels.filter_unpooled(x, bare, shape, "ieee", tile, splits=3),
    ):
        gradient = torch.full((2, w[0].numel() + b[0].numel() + 64), 7.0, device=DEVICE)
        gw, rest = gradient[:, : w[0].numel()].unflatten(1, w.shape[1:]), gradient[:, w[0].numel() :]
        kernels.fold(*parts, gw, rest[:, : shape.outputs])
        close(gw, dw)
        close(rest[:, : shape.outputs], db)
        assert (rest[:, shape.outputs :] == 7).all(), "wrote beyond its place"
    if below:
        close(kernels.input_masked(d, winner, w, shape, "ieee", tile), dx)
        close(kernels.input_unpooled(bordered, w, shape, "ieee", tile), dx)


def pictures(n=24, side=16, channels=3):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    y = np.arange(n) % 4
    mean = np.full(channels, 0.5)
    return Dataset("pictures", x, y, x[:8], y[:8], 4, tuple("0123"), mean, mean / 2)


@pytest.mark.slow  # the interpreter is
@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize(
    "spec",
    [
        LocalSpec(epochs=1, batch_size=5, lr=0.1, weight_decay=1e-2, clip=0.5, augment=True),
        LocalSpec(epochs=1, batch_size=8, lr=0.1, prox=0.5),
    ],
    ids=["augmented and clipped", "prox"],
)
def test_trainer_equals_the_sequential_engine(model, spec):
    from feduca.tasks.models.networks import CNN, MLP

    spec = replace(spec, augment=spec.augment and model == "cnn")
    settings = {"data": pictures(), "clients": 2, "classes_per_client": 2, "engine": "sequential"}

    def small():
        return CNN((3, 16, 16), (12, 8), 4, filters=16) if model == "cnn" else MLP(768, (12, 8), 4)

    torch.manual_seed(0)
    task = build_task(model=small, **settings)
    theta = task.init(0).expand(2, -1)
    anchor = torch.zeros(task.size)
    want = task.train(theta, np.arange(2), spec, 1, 0, anchor=anchor)
    there = build_task(model=small, device=DEVICE, **settings)
    trainers = Trainers(there.engine.module, there.layout, there.pool)
    batches = plan([silo.rows["train"] for silo in task.members], np.arange(2), spec, 1, np.zeros(2, int))
    got = trainers.train(theta.to(DEVICE), batches, spec, anchor.expand(2, -1).to(DEVICE))
    assert (want - theta).abs().max() > 1e-3
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-3, atol=2e-5)
