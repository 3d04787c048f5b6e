"""The GPU kernels of a bidirectional LSTM against plain PyTorch; see tests/interpreted.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch

# isort: split
from interpreted import DEVICE, errors

# isort: split
from feduca.tasks import Dataset, build_task
from feduca.tasks.data.batches import plan
from feduca.tasks.engines import Keys
from feduca.tasks.engines.gpu import recurrent_kernels
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.models import networks, recurrence
from feduca.tasks.models.bilstm import BiLSTM
from feduca.types import LocalSpec

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NEARNESS = 1.3 if DEVICE == "cuda" else 2.6  # of rounding errors; the interpreter cuts bf16 off instead of rounding
SIZES = {  # models, texts, states
    "one tile": (1, 4, 128),
    "texts that do not fill a tile": (3, 13, 64),
    "states that do not fill a row": (2, 5, 3),
    "one text of many states": (2, 1, 600),
    "one state": (2, 3, 1),
}


@pytest.fixture(autouse=True)
def used(monkeypatch):
    """Kernels run here, and this is which."""
    names = set()
    monkeypatch.setattr(networks, "on_gpu", lambda x: True)
    for name in ("advance", "retreat"):
        kernel = getattr(recurrent_kernels, name)
        monkeypatch.setattr(recurrent_kernels, name, lambda *a, n=name, run=kernel: (names.add(n), run(*a))[1])
    return names


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def near(got, want, dtype):
    assert got.dtype == dtype or dtype != torch.float32
    assert float((got.double() - want).abs().max()) <= TOLERANCE[dtype] * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("keep", [True, False], ids=["for gradients", "without"])
def test_one_word_forwards(sizes, dtype, keep):
    torch.manual_seed(0)
    N, B, H = sizes
    gates, product = 2 * draw(N, 3, B, 4 * H, dtype=dtype), 2 * draw(N, B, 4 * H, dtype=dtype)
    cells, states = draw(N, 3, B, H), draw(N, 3, B, H, dtype=dtype)
    seen = torch.rand(N, 3, B, device=DEVICE) < 0.7
    seen[0, 1, 0] = True  # whatever the generator draws, someone sees this word
    best, winner = draw(N, B, H) / 3, torch.full((N, B, H), 5, dtype=torch.int32, device=DEVICE)
    whole = [t.clone() for t in (gates, cells, states)]
    word = [gates[:, 1], product, seen[:, 1], cells[:, 1], states[:, 1], cells[:, 2], states[:, 2], best, winner]
    if not keep:  # the new in place of the old
        word[5:7] = word[3:5]
    exact = [t.double() if t.is_floating_point() else t.clone() for t in word]
    if not keep:
        exact[5:7] = exact[3:5]
    before = exact[0].clone()
    recurrent_kernels.advance(*word, 7, keep)
    recurrence.advance(*exact, 7, keep)
    near(word[0], exact[0] if keep else before, dtype)
    near(word[5], exact[5], torch.float32)
    near(word[6], exact[6], dtype)
    near(best, exact[7], torch.float32)
    assert torch.equal(winner, exact[8])
    if keep and winner.numel() > 100:
        assert set(winner.unique().tolist()) == {5, 7}
    for now, then in zip((gates, cells, states), whole):  # other words are left alone
        assert torch.equal(now[:, 0], then[:, 0])
    assert torch.equal(gates[:, 2], whole[0][:, 2])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("once", [True, False], ids=["in place", "beside"])
def test_one_word_back(sizes, dtype, once):
    torch.manual_seed(0)
    N, B, H = sizes
    gates = torch.rand(N, 3, B, 4 * H, device=DEVICE).to(dtype)
    gates[..., 2 * H : 3 * H] = draw(N, 3, B, H).tanh()
    d_gates = gates if once else torch.full_like(gates, float("nan"))
    cells, seen = draw(N, 3, B, H), torch.rand(N, 3, B, device=DEVICE) < 0.7
    winner = torch.randint(0, 3, (N, B, H), dtype=torch.int32, device=DEVICE)
    d_best, d_state, d_cell = draw(N, B, H), draw(N, B, H, dtype=dtype), draw(N, B, H)
    other = gates[:, 0].clone()
    word = [gates[:, 1], seen[:, 1], cells[:, 1], cells[:, 2], winner, d_best, d_state, d_cell, d_gates[:, 1]]
    exact = [t.double() if t.is_floating_point() else t.clone() for t in word]
    kept = [t.clone() for t in word[1:6]]
    recurrent_kernels.retreat(*word, 1)
    recurrence.retreat(*exact, 1)
    near(d_gates[:, 1], exact[8], dtype)
    near(d_state, exact[6], dtype)
    near(d_cell, exact[7], torch.float32)
    assert not d_gates[:, 1][~seen[:, 1]].any()
    assert torch.equal(gates[:, 0], other)
    assert all(torch.equal(a, b) for a, b in zip(word[1:6], kept))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
def test_texts_forwards_and_back(dtype, used, monkeypatch):
    torch.manual_seed(0)
    N, T, B, inputs, H = 4, 6, 5, 8, 16
    leaves = [
        draw(N, T, B, inputs, dtype=dtype),
        draw(N, inputs, 4 * H, dtype=dtype),
        draw(N, H, 4 * H, dtype=dtype) / 4,
    ]
    seen = torch.rand(N, T, B, device=DEVICE) < 0.8
    seen[:, :, 0], seen[:, :, 1] = True, False
    d = draw(N, B, H)

    def result(*leaves):
        out = recurrence.recur(leaves[0], seen, *leaves[1:])
        return [out.detach(), *torch.autograd.grad(out, leaves, d.to(out.dtype))]

    got = result(*(t.requires_grad_() for t in leaves))
    assert used == {"advance", "retreat"}
    assert [t.dtype for t in got] == [torch.float32, *[dtype] * 3]
    monkeypatch.setattr(networks, "on_gpu", lambda x: False)
    want = result(*(t.detach().double().requires_grad_() for t in leaves))
    plain = result(*leaves)
    for a, b, exact in zip(got, plain, want):
        error = float((a - exact).norm() / exact.norm())
        assert error < 10 * TOLERANCE[dtype]
        assert error < NEARNESS * float((b - exact).norm() / exact.norm()) + 1e-5
    with torch.no_grad():
        monkeypatch.setattr(networks, "on_gpu", lambda x: True)
        torch.testing.assert_close(
            recurrence.recur(leaves[0], seen, *leaves[1:]), got[0], rtol=0, atol=TOLERANCE[dtype]
        )


def test_other_types_are_left_to_pytorch(used):
    x = torch.randn(1, 2, 3, 4, dtype=torch.double, device=DEVICE, requires_grad=True)
    seen = torch.ones(1, 2, 3, dtype=torch.bool, device=DEVICE)
    weights = (torch.randn(1, n, 8, dtype=torch.double, device=DEVICE) for n in (4, 2))
    recurrence.recur(x, seen, *weights).sum().backward()
    assert not used


def test_what_is_not_a_number_is_not_lost():
    x, seen = draw(1, 3, 2, 4), torch.ones(1, 3, 2, dtype=torch.bool, device=DEVICE)
    x[0, 1, 0, 0] = float("nan")
    out = recurrence.recur(x, seen, draw(1, 4, 8), draw(1, 2, 8))
    assert out[0, 0].isnan().all()
    assert not out[0, 1].isnan().any()


def letters():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 12, (120, 7))
    x[np.arange(7) >= rng.integers(0, 8, (120, 1))] = 0  # some texts are empty, some full
    return Dataset("letters", x, np.arange(120) % 10, x[:9], np.arange(9), 10, (), vocabulary=12)


def task(hidden=5, **settings):
    return build_task(
        data=letters(), clients=2, classes_per_client=10, model=lambda: BiLSTM(12, 10, 6, hidden), device=DEVICE,
        validation_share=0.3, **settings,
    )  # fmt: skip


SPEC = LocalSpec(epochs=2, batch_size=4, lr=0.3, weight_decay=0.1, clip=2.0, prox=0.2)


def test_the_trainer_is_the_reference(used):
    reference = task(engine="sequential")  # one client at a time, word by word, without kernels
    rows = [reference.members[0].rows["train"][:6], reference.members[1].rows["train"][:11]]
    theta, anchor = reference.init(0).expand(2, -1), reference.init(1).expand(2, -1)
    batches = plan(rows, np.arange(2), SPEC, 0, np.zeros(2, int))
    want = reference.engine.train(theta, batches, SPEC, anchor, Keys(np.zeros(2, int), 0, np.arange(2)))
    assert not used
    trainers = AutogradTrainers(reference.engine.module, reference.layout, reference.pool, reference.criterion)
    for _ in range(2):  # the second round reuses the buffers
        got = trainers.train(theta, batches, SPEC, anchor)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    assert used == {"advance", "retreat"}
    assert (got - theta).abs().amax(1).min() > 1e-3


def test_the_trainer_in_bf16_is_as_near_as_without_kernels(monkeypatch, used):
    reference, spec = task(hidden=16, engine="sequential"), replace(SPEC, epochs=1, prox=0.0)
    theta = reference.init(0).expand(2, -1)
    batches = plan([silo.rows["train"][:8] for silo in reference.members], np.arange(2), spec, 0, np.zeros(2, int))
    exact = reference.engine.train(theta, batches, spec, None, Keys(np.zeros(2, int), 0, np.arange(2)))
    wrong = []
    for kernels in (False, True):
        monkeypatch.setattr(networks, "on_gpu", lambda x, yes=kernels: yes)
        trainers = AutogradTrainers(reference.engine.module, reference.layout, reference.pool, reference.criterion)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            got = trainers.train(theta, batches, spec, None)
        assert bool(used) == kernels
        wrong.append(errors(reference.layout, got, exact, theta))
    assert (wrong[1] < NEARNESS * wrong[0] + 0.02).all()


def test_outputs_between_two_models_are_the_reference(used):
    one, other = (task(engine=kind).engine for kind in ("stacked", "sequential"))
    theta = [task().init(seed).expand(2, -1) for seed in range(2)]
    x = torch.from_numpy(letters().x_test[:6]).to(DEVICE).view(2, 3, 7)
    r = torch.tensor([[0.0, 1.0], [0.4, 0.7]], device=DEVICE)
    torch.testing.assert_close(one.between(*theta, x)(r), other.between(*theta, x)(r), rtol=1e-4, atol=1e-5)
    assert used == {"advance"}
