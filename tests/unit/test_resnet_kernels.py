"""The GPU kernels of a ResNet's training step against float64 PyTorch; see tests/interpreted.py."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, interpreter  # noqa: F401

from feduca.tasks import networks, norm_kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch):
    monkeypatch.setattr(networks, "on_gpu", lambda x: True)


def near(got, want, dtype=torch.float32):
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach()
    assert float((got - want).abs().max()) <= TOLERANCE[dtype] * float(want.abs().max())


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


SHAPES = {
    "pictures": (2, 3, 4, 4, 16),
    "odd": (3, 2, 3, 5, 6),
    "one place": (2, 3, 1, 1, 32),
    "one channel": (1, 2, 2, 2, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_norm_with_residual_and_relu(shape, dtype):
    torch.manual_seed(0)
    K, C = shape[0], shape[4]
    theta = draw(K, 2 * C + 5)  # scale and shift are views into a longer vector, as in an evaluation
    scale, shift = theta[:, :C], theta[:, C : 2 * C]
    for add, relu in product((False, True), (False, True)):
        x, other, d = (3 * draw(*shape, dtype=dtype) + 1 for _ in range(3))
        leaves = [t.detach().requires_grad_() for t in (x, scale, shift, other)]
        got = norm_kernels.norm(*leaves[:3], leaves[3] if add else None, relu=relu, groups=2, epsilon=1e-5)
        assert got.dtype == dtype
        exact = [t.detach().double().requires_grad_() for t in (x, scale, shift, other)]
        want = torch.stack(
            [F.group_norm(exact[0][k].movedim(3, 1), 2, exact[1][k], exact[2][k], 1e-5).movedim(1, 3) for k in range(K)]
        )
        want = want + exact[3] if add else want
        near(got, F.relu(want) if relu else want, dtype)
        if relu:  # going back, the mask is that of the rounded output
            want = torch.where(got > 0, want, 0.0)
        wanted = torch.autograd.grad(want, exact[: 3 + add], d.double())
        for a, b in zip(torch.autograd.grad(got, leaves[: 3 + add], d), wanted):
            near(a, b, dtype)


def test_norm_keeps_what_is_not_a_number():
    x = draw(1, 1, 2, 2, 4)
    x[0, 0, 0, 0, 0] = float("nan")
    one = torch.ones(1, 4, device=DEVICE)
    out = norm_kernels.norm(x, one, one, None, relu=True, groups=2, epsilon=1e-5)
    assert out[..., :2].isnan().all()
    assert not out[..., 2:].isnan().any()


def test_images_too_large_for_one_program():
    assert norm_kernels.fits(torch.empty(1, 1, 16, 16, 64), 2)
    assert not norm_kernels.fits(torch.empty(1, 1, 112, 112, 64), 2)
