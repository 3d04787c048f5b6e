"""The recurrence of K bidirectional LSTMs against the plain loop of one, in float64."""

import pytest
import torch
from torch.func import functional_call

from feduca.tasks.models.bilstm import BiLSTM
from feduca.tasks.models.recurrence import recur


def texts(K, B=6, T=7, words=12):
    """Texts of all lengths: the first is full, the second empty, the third has padding between its words."""
    torch.manual_seed(1)
    x = torch.randint(1, words, (K, B, T))
    x[torch.arange(T) >= torch.randint(1, T, (K, B, 1))] = 0
    x[:, 0] = torch.randint(1, words, (K, T))
    x[:, 1] = 0
    x[:, 2, : T // 2], x[:, 2, T // 2], x[:, 2, T // 2 + 1 :] = 3, 0, 4
    return x


def models(K, embedding=5, hidden=3):
    torch.manual_seed(0)
    model = BiLSTM(12, 4, embedding, hidden).double()
    params = {name: torch.randn(K, *p.shape, dtype=torch.double) for name, p in model.named_parameters()}
    return model, {name: p.requires_grad_() for name, p in params.items()}


@pytest.mark.parametrize("embedding", [5, 7, 8], ids="{} numbers a word".format)
@pytest.mark.parametrize("K", [1, 3], ids="{} models".format)
def test_outputs_and_gradients_are_those_of_each_model_on_its_own(K, embedding):
    (model, params), x = models(K, embedding), texts(K)
    got = model.stacked(params, x)
    want = torch.stack([functional_call(model, {n: p[k] for n, p in params.items()}, (x[k],)) for k in range(K)])
    torch.testing.assert_close(got, want)
    d = torch.randn_like(want)
    gradients = (torch.autograd.grad(out, list(params.values()), d) for out in (got, want))
    for name, a, b in zip(params, *gradients):
        assert b.abs().amax() > 0, name
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


def test_an_empty_text_is_minus_one_everywhere_and_moves_only_the_last_layer():
    model, params = models(1)
    out = model.stacked(params, torch.zeros(1, 2, 7, dtype=torch.long))
    want = params["out.bias"] - params["out.weight"].sum(1)
    torch.testing.assert_close(out, want.unsqueeze(1).expand(out.shape))
    names = ["embedding.weight", "inner", "recurrent", "bias"]
    for gradient in torch.autograd.grad(out.sum(), [params[name] for name in names]):
        assert not gradient.any()


def parts(N=2, T=4, B=3, inputs=2, H=2):
    torch.manual_seed(0)
    drawn = [torch.randn(s, dtype=torch.double) for s in ((N, T, B, inputs), (N, inputs, 4 * H), (N, H, 4 * H))]
    x, weight, recurrent = (t.requires_grad_() for t in drawn)
    seen = torch.ones(N, T, B, dtype=torch.bool)
    seen[0, 2:, 1] = seen[1, 1, 0] = seen[0, :, 2] = False  # after the words, between them, no word at all
    return x, seen, weight, recurrent


def test_gradients_are_those_of_small_changes():
    x, seen, weight, recurrent = parts()
    assert torch.autograd.gradcheck(
        lambda x, weight, recurrent: recur(x, seen, weight, recurrent, once=False), (x, weight, recurrent)
    )


def test_going_back_a_second_time_is_refused_unless_asked_for():
    x, seen, weight, recurrent = parts()
    out = recur(x, seen, weight, recurrent, once=False).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out, x)[0])
    out = recur(x, seen, weight, recurrent).sum()
    assert torch.equal(first, torch.autograd.grad(out, x, retain_graph=True)[0])
    with pytest.raises(RuntimeError, match="once=False"):
        torch.autograd.grad(out, x)


def test_only_wanted_gradients_are_computed():
    x, seen, weight, recurrent = parts()
    for wanted in (x, weight, recurrent):
        leaves = [t if t is wanted else t.detach() for t in (x, weight, recurrent)]
        all_of_it = torch.autograd.grad(recur(x, seen, weight, recurrent).sum(), wanted)[0]
        alone = torch.autograd.grad(recur(leaves[0], seen, *leaves[1:]).sum(), wanted)[0]
        assert torch.equal(all_of_it, alone)


def test_without_gradients_the_outputs_are_the_same_and_nothing_is_kept():
    x, seen, weight, recurrent = parts()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        want = recur(x, seen, weight, recurrent)
        assert saved
        saved.clear()
        with torch.no_grad():
            got = recur(x, seen, weight, recurrent)
        detached = recur(x.detach(), seen, weight.detach(), recurrent.detach())
    assert not saved
    assert torch.equal(got, want)
    assert torch.equal(detached, want)


def test_what_is_not_a_number_is_not_lost():
    x, seen, weight, recurrent = (t.detach() for t in parts())
    x[1, 2, 1, 0] = float("nan")
    out = recur(x, seen, weight, recurrent)
    assert out[1, 1].isnan().all()
    assert out.isnan().sum() == out.shape[2]


def test_bf16_is_near():
    (model, params), x = models(3, 16, 16), texts(3, B=20)
    params = {name: (p.detach().float() / 4).requires_grad_() for name, p in params.items()}
    d = torch.randn(3, 20, 4)

    def result(out):
        return [out, *torch.autograd.grad(out, list(params.values()), d.to(out.dtype))]

    want = result(model.stacked({name: p.double() for name, p in params.items()}, x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = result(model.stacked(params, x))
    assert {gradient.dtype for gradient in got[1:]} == {torch.float32}
    errors = [(a - b).norm() / b.norm() for a, b in zip(got, want)]
    assert errors[0] < 0.01
    assert max(errors) < 0.1  # another word's state may be the largest
