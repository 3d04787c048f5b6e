"""The GPU kernels of a ResNet's training step against float64 PyTorch; see tests/interpreted.py."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

# isort: split
from interpreted import DEVICE, errors

# isort: split
from feduca.tasks import Dataset, build_task
from feduca.tasks.data.batches import plan
from feduca.tasks.engines import Keys
from feduca.tasks.engines.gpu import buffers, norm_kernels, step_kernels, window_kernels
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.models import networks
from feduca.tasks.models.bilstm import BiLSTM
from feduca.tasks.models.convolution import Windows, convolve
from feduca.tasks.models.networks import CNN
from feduca.tasks.models.resnet import ResNet18
from feduca.types import LocalSpec

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch):
    monkeypatch.setattr(networks, "on_gpu", lambda x: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # in what they are compared with


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


@pytest.mark.parametrize("whole", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("prox", [False, True], ids=["", "prox"])
@pytest.mark.parametrize("clip", [0.0, 0.7, 1e4], ids=["unclipped", "clipped", "within the clip"])
def test_descent_over_several_tensors(clip, prox, whole):
    torch.manual_seed(0)
    K, decay, mu = 3, 0.2, 0.1
    lr = torch.tensor([0.3, 0.2, 0.1], device=DEVICE)  # each client its own
    params = [draw(K, 3, 3, 40, 20).permute(0, 4, 3, 1, 2), draw(K, 5), draw(K, 4097)]
    grads, anchors = ([torch.empty_like(p).copy_(draw(*p.shape)) for p in params] for _ in range(2))
    grads[0], shadow = grads[0].bfloat16(), torch.zeros_like(params[0], dtype=torch.bfloat16)
    sizes = torch.tensor([[1, 1, 1], [2, 0, 4]], dtype=whole, device=DEVICE)
    step = torch.ones(1, dtype=whole, device=DEVICE)
    hyper = torch.tensor([[rate, decay, clip, mu] for rate in lr.tolist()], device=DEVICE)
    moves = [g + decay * p + (mu * (p - a) if prox else 0) for g, p, a in zip(grads, params, anchors)]
    norm = torch.cat([m.flatten(1) for m in moves], 1).double().norm(dim=1)
    scale = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones(K, device=DEVICE)
    scale = scale * torch.tensor([1, 0, 1], device=DEVICE)  # the second client has finished
    scale = scale * lr
    want = [p.double() - scale.view(-1, *[1] * (p.dim() - 1)) * m.double() for p, m in zip(params, moves)]
    parts = torch.empty(K, sum(step_kernels.blocks(p) for p in params), device=DEVICE)
    before = params[0][1].clone()
    step_kernels.descend(
        grads,
        params,
        hyper,
        sizes,
        step,
        parts,
        clip=bool(clip),
        anchors=anchors if prox else None,
        shadows=[shadow, None, None],
    )
    for p, w in zip(params, want):
        near(p, w)
    near(shadow[::2], want[0][::2], torch.bfloat16)
    assert torch.equal(params[0][1], before)


def test_descent_refuses_gradients_that_lie_otherwise():
    p, g = draw(2, 3, 4), draw(2, 4, 3).transpose(1, 2)
    rest = [torch.zeros(n, device=DEVICE) for n in ((2, 4), 2, 1)]
    with pytest.raises(AssertionError, match="strides are"):
        step_kernels.descend([g], [p], *rest, torch.empty(2, 1, device=DEVICE), clip=False)


def noise(side=8):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, side, side, 3), dtype=np.uint8), np.arange(120) % 10
    return Dataset("noise", x, y, x[:9], y[:9], 10, (), np.full(3, 0.5), np.full(3, 0.25))


def resnet():
    return ResNet18(10, widths=((16, 1), (32, 2)))


def tiny(model=resnet, data=None, **settings):
    return build_task(
        data=data or noise(), clients=2, classes_per_client=10, model=model, device=DEVICE, validation_share=0.3, **settings
    )  # fmt: skip


KERNELS = [
    (norm_kernels, "norm"),
    (window_kernels, "unfold"),
    (window_kernels, "fold"),
    (step_kernels, "gather"),
    (step_kernels, "descend"),
]
SPEC = LocalSpec(epochs=1, batch_size=2, lr=0.1, weight_decay=0.2, clip=3.0, prox=0.3, augment=True)


def watched(function, used):
    def call(*args, **options):
        used.add(function.__name__)
        return function(*args, **options)

    return call


def test_the_trainer_is_the_reference(monkeypatch):
    monkeypatch.setattr(buffers, "SMALL", 1000)  # so that some parameters are large
    used = set()
    for module, name in KERNELS:
        monkeypatch.setattr(module, name, watched(getattr(module, name), used))
    task = tiny(engine="sequential")
    rows = [task.members[0].rows["train"][:2], task.members[1].rows["train"][:3]]  # 1 and 2 steps of up to 2
    trainers = AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion, limit=9)
    sizes = []
    theta, anchor = task.init(0).expand(2, -1), task.init(1).expand(2, -1)
    for spec in (
        SPEC,
        replace(SPEC, weight_decay=0.5, clip=50.0, prox=0.1),
        replace(SPEC, clip=0.0, prox=0.0),  # the same shapes without these terms: graphs of their own
        replace(SPEC, weight_decay=0.0, clip=0.0),
        replace(SPEC, weight_decay=0.0, prox=0.0),  # what no picture reaches stays where it is
        LocalSpec(epochs=1, batch_size=3, lr=0.05),
    ):
        batches = replace(plan(rows, np.arange(2), spec, 0, np.zeros(2, int)), rates=np.array([0.5, 1.0]) * spec.lr)
        got = trainers.train(theta, batches, spec, anchor)
        want = task.engine.train(theta, batches, spec, anchor, Keys(np.zeros(2, int), 0, np.arange(2)))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
        assert (got - theta).abs().amax(1).min() > 1e-3
        dead, expected, before = (task.layout.unpack(t)["layer2.1.conv2.weight"][..., 0] for t in (got, want, theta))
        torch.testing.assert_close(dead, expected, rtol=1e-5, atol=1e-7)
        if spec.weight_decay or spec.prox:
            assert (dead - before).abs().amax((1, 2, 3)).min() > 1e-3
        sizes.append(len(trainers.made))
    assert used == {name for _, name in KERNELS}
    assert sizes == [1, 1, 2, 3, 4, 5]  # other values of the same terms are the same graph


def test_the_trainer_leaves_what_is_frozen(monkeypatch):
    monkeypatch.setattr(buffers, "SMALL", 1000)

    def make():
        module = resnet()
        module.layer2[1].requires_grad_(False)  # of which pictures reach a part
        return module.requires_grad_(True) if trained else module

    for trained in (False, True):
        task = tiny(make, engine="sequential")
        theta, anchor = task.init(0).expand(2, -1), task.init(1).expand(2, -1)
        batches = plan([silo.rows["train"][:3] for silo in task.members], np.arange(2), SPEC, 0, np.zeros(2, int))
        trainers = AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion)
        got = trainers.train(theta, batches, SPEC, anchor)
        want = task.engine.train(theta, batches, SPEC, anchor, Keys(np.zeros(2, int), 0, np.arange(2)))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
        before, after = (task.layout.unpack(t)["layer2.1.conv2.weight"] for t in (theta, got))
        assert torch.equal(before, after) != trained


def test_the_trainer_in_bf16_is_as_near_as_pytorchs_autocast(monkeypatch):
    monkeypatch.setattr(buffers, "SMALL", 1000)
    task = tiny(engine="sequential")
    theta, spec = task.init(0).expand(2, -1), replace(SPEC, prox=0.0)
    batches = plan([silo.rows["train"][:3] for silo in task.members], np.arange(2), spec, 0, np.zeros(2, int))
    exact = task.engine.train(theta, batches, spec, None, Keys(np.zeros(2, int), 0, np.arange(2)))
    wrong = []
    for kernels in (True, False):
        monkeypatch.setattr(networks, "on_gpu", lambda x, yes=kernels: yes)
        trainers = AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            got = trainers.train(theta, batches, spec, None)
        (trainer,) = trainers.made.values()
        assert bool(trainer.models.shadows) == kernels
        for name, shadow in trainer.models.shadows.items():
            near(shadow, trainer.models.entries[name].double(), torch.bfloat16)
        wrong.append(errors(task.layout, got, exact, theta))
    assert (wrong[0] < 1.3 * wrong[1] + 0.02).all()


def test_outputs_between_two_models_are_the_reference():
    one, other = (tiny(engine=kind).engine for kind in ("stacked", "sequential"))
    theta = [tiny().init(seed).expand(2, -1) for seed in range(2)]
    x, r = draw(2, 1, 3, 8, 8), torch.tensor([[0.0], [0.4]], device=DEVICE)
    torch.testing.assert_close(one.between(*theta, x)(r), other.between(*theta, x)(r), rtol=1e-3, atol=1e-5)


def words():
    x = np.random.default_rng(0).integers(2, 12, (120, 7))
    return Dataset("words", x, np.arange(120) % 10, x[:9], np.arange(9), 10, (), vocabulary=12)


OTHERS = {
    "momentum": (resnet, noise, LocalSpec(epochs=1, batch_size=2, lr=0.05, momentum=0.9, weight_decay=0.1, clip=3.0)),
    "cnn": (
        lambda: CNN((3, 16, 16), (9,), 10, filters=10),
        lambda: noise(16),
        LocalSpec(epochs=1, batch_size=2, lr=0.1, objective="propfair", bound=5.0, clip=0.5),
    ),
    "text": (lambda: BiLSTM(12, 10, 5, 3), words, LocalSpec(epochs=2, batch_size=2, lr=0.2, weight_decay=0.1)),
}


@pytest.mark.parametrize(("model", "data", "spec"), OTHERS.values(), ids=OTHERS.keys())
def test_other_work_of_the_trainer_is_the_reference(model, data, spec, monkeypatch):
    monkeypatch.setattr(buffers, "SMALL", 1000)
    task = tiny(model, data(), engine="sequential")
    theta = task.init(0).expand(2, -1)
    batches = plan([silo.rows["train"][:3] for silo in task.members], np.arange(2), spec, 0, np.zeros(2, int))
    trainers = AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion)
    for _ in range(2):  # the second round reuses the buffers
        got = trainers.train(theta, batches, spec, None)
    want = task.engine.train(theta, batches, spec, None, Keys(np.zeros(2, int), 0, np.arange(2)))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    assert (got - theta).abs().amax(1).min() > 1e-3


def test_what_of_a_resnet_is_reached():
    centre, two = (slice(1, 2), slice(1, 2)), (slice(1, 3), slice(1, 3))
    want = {"layer4.0.conv1": two, "layer4.0.conv2": centre, "layer4.1.conv1": centre, "layer4.1.conv2": centre}
    assert ResNet18(100).reached((3, 32, 32)) == {f"{name}.weight": cut for name, cut in want.items()}
    assert ResNet18(10).reached((3, 224, 224)) == {}

    class Own(ResNet18):
        def rest(self, params, h):
            return super().rest(params, h)

    assert Own(10).reached((3, 32, 32)) == {}
