"""N LSTMs over their texts at once, forwards and back, without an autograd graph per word.

Everything of a text lies as `[N, words, B, ...]`, so the word t of all models is a view that batched products take as it
is. Per word there is one product with the recurrent weights and one pass over its numbers, each way. What does not wait
for the word before, the inputs' part of the gates and all gradients of weights, is one product for the whole text.

A padding word leaves cell and state as they are. The output is the largest value of each state over the real words, and
-1 where there is none; of equal values the first has the gradient, and the -1 has none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from feduca.tasks.models.networks import kernels_at

sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


def advance(
    gates: Tensor, product: Tensor, seen: Tensor, cell: Tensor, state: Tensor, new_cell: Tensor, new_state: Tensor,
    best: Tensor, winner: Tensor, word: int, keep: bool,
) -> None:  # fmt: skip
    """Read one word: fill `new_cell` and `new_state`, bring `best` and `winner` up to date.

    `gates[N, B, 4H]` holds the inputs' part of the gates in the order input, forget, cell, output, `product` the states'
    part; with `keep`, the activated gates go back to `gates`, and else `gates` are of no use any more. `seen[N, B]` is where
    the word is real. The new may lie in place of the old.
    """
    H, seen = cell.shape[-1], seen.unsqueeze(-1)
    rate, candidate, out = gates.add_(product).split((2 * H, H, H), -1)
    take, hold = rate.sigmoid_().chunk(2, -1)
    fresh = (hold * cell).add_(take * candidate.tanh_())
    shown = out.sigmoid_() * torch.tanh(fresh)
    better = (shown <= best).logical_not_().logical_and_(seen)  # so that what is not a number is not lost
    torch.where(better, shown, best, out=best)
    if keep:
        winner.masked_fill_(better, word)
    torch.where(seen, fresh, cell, out=new_cell)
    torch.where(seen, shown.to(state.dtype), state, out=new_state)


def retreat(
    gates: Tensor, seen: Tensor, cell: Tensor, new_cell: Tensor, winner: Tensor, d_best: Tensor, d_state: Tensor,
    d_cell: Tensor, d_gates: Tensor, word: int,
) -> None:  # fmt: skip
    """Go back over one word: from activated gates and cells to `d_gates`, the gradient before activation.

    `d_state` and `d_cell` are gradients after the word, and become those before it, but for the product of `d_gates`, which
    may lie where `gates` do.
    """
    take, hold, candidate, out = gates.chunk(4, -1)
    seen = seen.unsqueeze(-1)
    real = seen.to(d_cell.dtype)
    d = d_state + torch.where(winner == word, d_best, 0.0)
    here = d * real  # a padding word hands its gradients on as they are
    torch.sub(d, here, out=d_state)
    tanh = torch.tanh(new_cell)
    d_new = tanh_backward(here * out, tanh).addcmul_(d_cell, real)
    torch.where(seen, d_new * hold, d_cell, out=d_cell)
    d_take = sigmoid_backward(d_new * candidate, take)
    d_candidate = tanh_backward(d_new * take, candidate)
    d_hold = sigmoid_backward(d_new * cell, hold)
    d_out = sigmoid_backward(here * tanh, out)
    torch.cat([d_take, d_hold, d_candidate, d_out], -1, out=d_gates)


def _ways(x: Tensor) -> tuple[Callable[..., None], Callable[..., None]]:
    """`advance` and `retreat`: kernels where there are any for `x`."""
    fast = kernels_at(x, "recurrent_kernels")
    return (fast.advance, fast.retreat) if fast and x.dtype in fast.TYPES else (advance, retreat)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx, x: Tensor, seen: Tensor, weight: Tensor, recurrent: Tensor, keep: bool, once: bool
    ) -> Tensor:
        (N, T, B), H = x.shape[:3], recurrent.shape[1]
        wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        one, _ = _ways(x)
        gates = torch.bmm(x.flatten(1, 2), weight).unflatten(1, (T, B))
        # Without gradients the state after a word takes the place of that before it.
        held = T + 1 if keep else 1
        states = x.new_empty(N, held, B, H)
        cells = x.new_empty(N, held, B, H, dtype=wide)
        best = x.new_full((N, B, H), -1.0, dtype=wide)
        winner = x.new_full((N, B, H), -1, dtype=torch.int32)
        product = x.new_empty(N, B, 4 * H)
        states[:, 0] = 0.0
        cells[:, 0] = 0.0
        for t in range(T):
            old, new = t % held, (t + 1) % held
            torch.bmm(states[:, old], recurrent, out=product)
            one(
                gates[:, t], product, seen[:, t], cells[:, old], states[:, old], cells[:, new], states[:, new],
                best, winner, t, keep,
            )  # fmt: skip
        if keep:
            ctx.save_for_backward(x, seen, weight, recurrent, gates, states, cells, winner)
            ctx.once, ctx.spent = once, False
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx, d: Tensor):  # type: ignore[override]
        if ctx.spent:
            raise RuntimeError(
                "this recurrence was gone back over before: for more than once, call recur with once=False"
            )
        ctx.spent = ctx.once
        x, seen, weight, recurrent, gates, states, cells, winner = ctx.saved_tensors
        T = x.shape[1]
        _, one = _ways(x)
        d_best, d_gates = d.contiguous(), gates if ctx.once else torch.empty_like(gates)
        d_cell, d_state = torch.zeros_like(d_best), x.new_zeros(d.shape)
        back = recurrent.transpose(1, 2)
        for t in reversed(range(T)):
            one(
                gates[:, t], seen[:, t], cells[:, t], cells[:, t + 1], winner, d_best, d_state, d_cell, d_gates[:, t], t
            )  # fmt: skip
            if t:
                d_state.baddbmm_(d_gates[:, t], back)
        d_gates = d_gates.flatten(1, 2)
        d_x = d_weight = d_recurrent = None
        if ctx.needs_input_grad[0]:
            d_x = torch.bmm(d_gates, weight.transpose(1, 2)).view(x.shape)
        if ctx.needs_input_grad[2]:
            d_weight = torch.bmm(x.flatten(1, 2).transpose(1, 2), d_gates)
        if ctx.needs_input_grad[3]:
            d_recurrent = torch.bmm(states[:, :T].flatten(1, 2).transpose(1, 2), d_gates)
        return d_x, None, d_weight, d_recurrent, None, None


def recur(x: Tensor, seen: Tensor, weight: Tensor, recurrent: Tensor, *, once: bool = True) -> Tensor:
    """The largest value of each state, `[N, B, H]`, over the words `x[N, T, B, inputs]` of which those `seen[N, T, B]` count.

    `weight` is `[N, inputs, 4H]` and `recurrent` is `[N, H, 4H]`, both of the type of `x`. In bf16, cells and the result
    are fp32. With `once`, going back overwrites what the way forwards left, to save memory, and can be done only once.
    """
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, recurrent))
    with torch.autocast(x.device.type, enabled=False):
        out = _Recurrence.apply(x.contiguous(), seen.contiguous(), weight, recurrent, keep, once)
    assert isinstance(out, Tensor)
    return out
