"""The GPU kernels of a ResNet's training step against float64 PyTorch; see tests/interpreted.py."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, interpreter  # noqa: F401

# isort: split
from feduca.tasks import networks, norm_kernels, window_kernels
from feduca.tasks.convolution import Windows, convolve

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


CONVOLUTIONS = {  # rows, columns, channels, outputs, kernel, stride, padding
    "stem": (9, 8, 3, 5, 7, 2, 3),
    "block": (4, 4, 32, 16, 3, 1, 1),
    "downwards": (5, 6, 64, 8, 3, 2, 1),
    "shortcut": (4, 5, 32, 8, 1, 2, 0),
    "dead rows": (1, 3, 6, 4, 3, 1, 1),
    "dead taps, two places": (2, 2, 16, 4, 3, 1, 1),
    "the image is the window": (2, 2, 16, 4, 3, 2, 1),
    "one place": (1, 1, 8, 4, 3, 1, 1),
    "one by one": (3, 3, 8, 4, 1, 1, 0),
    "beside the image": (1, 1, 5, 4, 1, 3, 1),
    "many channels": (2, 3, 160, 4, 3, 1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
@pytest.mark.parametrize("turned", [False, True], ids=["as the model's", "as the trainer's"])
def test_convolution(sizes, dtype, turned):
    torch.manual_seed(0)
    H, W, C, O, k, stride, padding = sizes  # noqa: E741
    K, B = 2, 3
    x = draw(K, B, H, W, C, dtype=dtype).requires_grad_()
    weight = draw(K, k, k, C, O).permute(0, 4, 3, 1, 2) if turned else draw(K, O, C, k, k)
    weight.requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        got = convolve(x, weight, stride, padding)
    assert got.dtype == dtype
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    want = torch.stack([F.conv2d(exact[0][i].movedim(3, 1), exact[1][i], None, stride, padding) for i in range(K)])
    want = want.movedim(2, 4)
    near(got, want, dtype)
    d = draw(*want.shape, dtype=dtype)
    (gx, gw), wanted = torch.autograd.grad(got, (x, weight), d), torch.autograd.grad(want, exact, d.double())
    assert (gx.dtype, gw.dtype, gw.stride()) == (dtype, torch.float32, weight.stride())
    near(gx, wanted[0], dtype)
    near(gw, wanted[1], dtype)


def test_pictures_in_fp32_become_windows_in_bf16():
    x, at = draw(2, 2, 8, 8, 3), Windows.of((8, 8, 3), (7, 7), 2, 3)
    got = window_kernels.unfold(x, at, torch.bfloat16)
    planes = F.unfold(x.flatten(0, 1).movedim(3, 1), 7, padding=3, stride=2)  # [images, C * taps, windows]
    want = planes.unflatten(1, (3, 49)).permute(0, 3, 2, 1).reshape(2, -1, 147)
    torch.testing.assert_close(got[:, :, :147].float(), want, rtol=2**-7, atol=0)  # the interpreter does not round
    assert got.shape[2] == 152
    assert not got[:, :, 147:].any()


def test_windows_that_are_the_images_themselves():
    assert Windows.of((1, 1, 8), (3, 3), 1, 1).trivial
    assert Windows.of((2, 2, 8), (3, 3), 2, 1).trivial
    assert Windows.of((4, 4, 8), (1, 1), 1, 0).trivial
    assert not Windows.of((4, 4, 8), (2, 2), 2, 0).trivial
    assert not Windows.of((2, 2, 8), (3, 3), 1, 1).trivial
    assert not Windows.of((1, 1, 5), (1, 1), 3, 1).trivial
