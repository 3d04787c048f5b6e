# pyright: reportMissingImports=false, reportIndexIssue=false
"""What N LSTMs do with one word apart from products, each way as one kernel on a GPU (Triton); see recurrence.py.

One program holds some texts of one model. It computes in fp32; gates and states are stored in the type of the products,
cells and the largest values in fp32. Models may lie apart, the numbers of one model's word lie side by side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 512  # states that one program holds
TYPES = (torch.float32, torch.bfloat16)
PER_WORD = ["seen", "word"]  # whose alignment and value differ from word to word: not a reason to compile again


@triton.jit
def _read(p, there):
    return tl.load(p, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=PER_WORD)
def _advance(
    gates, product, seen, cell, state, new_cell, new_state, best, winner,
    gates_model, seen_model, cell_model, state_model, word, B,
    H: tl.constexpr, KEEP: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    h = tl.arange(0, HP)
    there = (b < B)[:, None] & (h < H)[None, :]
    at = b[:, None] * H + h[None, :]
    to = gates + n * gates_model + (b[:, None] * (4 * H) + h[None, :])
    add = product + n * B * (4 * H) + (b[:, None] * (4 * H) + h[None, :])
    take = tl.sigmoid(_read(to, there) + _read(add, there))
    hold = tl.sigmoid(_read(to + H, there) + _read(add + H, there))
    candidate = _tanh(_read(to + 2 * H, there) + _read(add + 2 * H, there))
    out = tl.sigmoid(_read(to + 3 * H, there) + _read(add + 3 * H, there))
    if KEEP:
        kind = gates.dtype.element_ty
        tl.store(to, take.to(kind), mask=there)
        tl.store(to + H, hold.to(kind), mask=there)
        tl.store(to + 2 * H, candidate.to(kind), mask=there)
        tl.store(to + 3 * H, out.to(kind), mask=there)
    real = (tl.load(seen + n * seen_model + b, mask=b < B, other=0) != 0)[:, None]
    old = _read(cell + n * cell_model + at, there)
    fresh = hold * old + take * candidate
    shown = out * _tanh(fresh)
    before = _read(state + n * state_model + at, there)
    tl.store(new_cell + n * cell_model + at, tl.where(real, fresh, old), mask=there)
    tl.store(new_state + n * state_model + at, tl.where(real, shown, before).to(new_state.dtype.element_ty), mask=there)
    most = n * B * H + at
    largest = _read(best + most, there)
    better = real & there & ((shown <= largest) == 0)  # so that what is not a number is not lost
    tl.store(best + most, shown, mask=better)
    if KEEP:
        tl.store(winner + most, word, mask=better)


@triton.jit(do_not_specialize=PER_WORD)
def _retreat(
    gates, seen, cell, new_cell, winner, d_best, d_state, d_cell, d_gates,
    gates_model, seen_model, cell_model, word, B,
    H: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """A gate's gradient is stored where the gate was read or elsewhere; every number is read before it is written."""
    n = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    h = tl.arange(0, HP)
    there = (b < B)[:, None] & (h < H)[None, :]
    at = b[:, None] * H + h[None, :]
    wide = n * gates_model + (b[:, None] * (4 * H) + h[None, :])
    take = _read(gates + wide, there)
    hold = _read(gates + wide + H, there)
    candidate = _read(gates + wide + 2 * H, there)
    out = _read(gates + wide + 3 * H, there)
    real = (tl.load(seen + n * seen_model + b, mask=b < B, other=0) != 0)[:, None]
    old = _read(cell + n * cell_model + at, there)
    tanh = _tanh(_read(new_cell + n * cell_model + at, there))
    own = n * B * H + at
    won = tl.load(winner + own, mask=there, other=-1) == word
    d = _read(d_state + own, there)
    d += tl.where(won, _read(d_best + own, there), 0.0)
    after = _read(d_cell + own, there)
    d_new = after + d * out * (1.0 - tanh * tanh)
    to = d_gates + wide
    kind = d_gates.dtype.element_ty
    tl.store(to, tl.where(real, d_new * candidate * take * (1.0 - take), 0.0).to(kind), mask=there)
    tl.store(to + H, tl.where(real, d_new * old * hold * (1.0 - hold), 0.0).to(kind), mask=there)
    tl.store(to + 2 * H, tl.where(real, d_new * take * (1.0 - candidate * candidate), 0.0).to(kind), mask=there)
    tl.store(to + 3 * H, tl.where(real, d * tanh * out * (1.0 - out), 0.0).to(kind), mask=there)
    tl.store(d_cell + own, tl.where(real, d_new * hold, after), mask=there)
    tl.store(d_state + own, tl.where(real, 0.0, d).to(d_state.dtype.element_ty), mask=there)


# ---------------------------------------------------------------------------------------------------------------------
# Launchers


def _tile(H: int) -> tuple[int, int]:
    """Texts and states per text that a program holds, powers of two."""
    wide = max(2, triton.next_power_of_2(H))
    return max(1, TILE // wide), wide


def advance(
    gates: Tensor, product: Tensor, seen: Tensor, cell: Tensor, state: Tensor, new_cell: Tensor, new_state: Tensor,
    best: Tensor, winner: Tensor, word: int, keep: bool,
) -> None:  # fmt: skip
    """As `recurrence.advance`; without `keep`, gates and `winner` stay as they are."""
    N, B, H = cell.shape
    BB, HP = _tile(H)
    _advance[(triton.cdiv(B, BB), N)](
        gates, product, seen.view(torch.uint8), cell, state, new_cell, new_state, best, winner,
        gates.stride(0), seen.stride(0), cell.stride(0), state.stride(0), word, B,
        H=H, KEEP=keep, BB=BB, HP=HP, num_warps=4,
    )  # fmt: skip


def retreat(
    gates: Tensor, seen: Tensor, cell: Tensor, new_cell: Tensor, winner: Tensor, d_best: Tensor, d_state: Tensor,
    d_cell: Tensor, d_gates: Tensor, word: int,
) -> None:  # fmt: skip
    """As `recurrence.retreat`."""
    N, B, H = cell.shape
    BB, HP = _tile(H)
    _retreat[(triton.cdiv(B, BB), N)](
        gates, seen.view(torch.uint8), cell, new_cell, winner, d_best, d_state, d_cell, d_gates,
        gates.stride(0), seen.stride(0), cell.stride(0), word, B,
        H=H, BB=BB, HP=HP, num_warps=4,
    )  # fmt: skip
