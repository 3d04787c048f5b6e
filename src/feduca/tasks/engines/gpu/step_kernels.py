# pyright: reportMissingImports=false, reportIndexIssue=false
"""GPU kernels (Triton) around the products of a training step: examples in, loss and ReLU, the step itself.

Biases and gradients may be views into one long vector per client. Sums have a fixed order: a step repeats bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # parameters of a client that one program moves


@triton.jit
def _gather(
    pool, labels, index, codes, step, x, y, N,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr, WIDE: tl.constexpr, AUGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Example n of this step, moved and mirrored as its code says (see batches.AUGMENTATIONS), zero from outside.

    With KW > 1 each place holds KW neighbouring columns of a row side by side, padded to WIDE numbers: a convolution
    with filters KW wide is then one with filters one wide, over WIDE channels, whose loads are long and aligned.
    """
    COLUMNS: tl.constexpr = W - KW + 1
    n = tl.program_id(0)
    at = tl.load(step).to(tl.int64) * N + n
    source = tl.load(index + at).to(tl.int64)
    if tl.program_id(1) == 0:
        tl.store(y + n, tl.load(labels + source))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < H * COLUMNS * WIDE
    row = i // (COLUMNS * WIDE)
    column = (i // WIDE) % COLUMNS + i % WIDE // C
    channel = i % WIDE % C
    seen = inside & (i % WIDE < KW * C)
    if AUGMENT:
        code = tl.load(codes + at)
        moved = (code // 2) % 2 == 1
        column = tl.where(code % 2 == 1, W - 1 - column, column)
        row += tl.where(moved, (code // 4) % 9 - 4, 0).to(tl.int32)
        column += tl.where(moved, code // 36 - 4, 0).to(tl.int32)
        seen = seen & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    value = tl.load(pool + source * (H * W * C) + (row * W + column) * C + channel, mask=seen, other=0.0)
    tl.store(x + n.to(tl.int64) * (H * COLUMNS * WIDE) + i, value, mask=inside)


@triton.jit
def _add_rectify(h, bias, client, B, M, BB: tl.constexpr, BM: tl.constexpr):
    k = tl.program_id(2)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    at = (k * B + b).to(tl.int64)[:, None] * M + m[None, :]
    there = (b < B)[:, None] & (m < M)[None, :]
    value = tl.load(h + at, mask=there, other=0.0).to(tl.float32)
    value += tl.load(bias + k.to(tl.int64) * client + m, mask=m < M, other=0.0).to(tl.float32)[None, :]
    tl.store(h + at, tl.maximum(value, 0.0).to(h.dtype.element_ty), mask=there)


@triton.jit
def _rectify_gradient(d, h, bias_gradient, client, B, M, BB: tl.constexpr, BM: tl.constexpr):
    k = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, B, BB):
        b = start + tl.arange(0, BB)
        at = (k * B + b).to(tl.int64)[:, None] * M + m[None, :]
        there = (b < B)[:, None] & (m < M)[None, :]
        g = tl.load(d + at, mask=there, other=0.0)
        g = tl.where(tl.load(h + at, mask=there, other=0.0) > 0, g, tl.zeros_like(g))
        tl.store(d + at, g, mask=there)
        total += tl.sum(g.to(tl.float32), 0)
    tl.store(bias_gradient + k.to(tl.int64) * client + m, total.to(bias_gradient.dtype.element_ty), mask=m < M)


@triton.jit
def _loss_gradient(
    z, bias, y, sizes, step, d, bias_gradient, client, gradient_client, K, B, classes,
    WIDTH: tl.constexpr, BB: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Of the mean cross-entropy over the real examples of each client's batch, at the outputs z + bias."""
    k = tl.program_id(0)
    size = tl.load(sizes + tl.load(step) * K + k)
    c = tl.arange(0, CP)
    add = tl.load(bias + k.to(tl.int64) * client + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    total = tl.zeros((CP,), tl.float32)
    for start in range(0, B, BB):
        b = start + tl.arange(0, BB)
        at = (k * B + b)[:, None] * WIDTH + c[None, :]
        held = (b < B)[:, None] & (c < WIDTH)[None, :]
        v = tl.load(z + at, mask=held, other=0.0).to(tl.float32) + add[None, :]
        v = tl.where((c < classes)[None, :], v, -float("inf"))
        e = tl.exp(v - tl.max(v, 1)[:, None])
        p = e / tl.sum(e, 1)[:, None]
        target = tl.load(y + k * B + b, mask=b < B, other=0)
        p = tl.where(c[None, :] == target[:, None], p - 1.0, p)
        p = tl.where((b < size)[:, None] & (c < classes)[None, :], p / tl.maximum(size, 1).to(tl.float32), 0.0)
        tl.store(d + at, p.to(d.dtype.element_ty), mask=held)
        total += tl.sum(p, 0)
    to = bias_gradient + k.to(tl.int64) * gradient_client + c
    tl.store(to, total.to(bias_gradient.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def _squares(g, p, anchor, hyper, parts, P, BLOCKS, PROX: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of squares of gradient + decay (+ proximal pull), block by block: `parts[K, BLOCKS]`."""
    k = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = k.to(tl.int64) * P + i
    value = tl.load(p + at, mask=i < P, other=0.0)
    total = tl.load(g + at, mask=i < P, other=0.0).to(tl.float32) + tl.load(hyper + 4 * k + 1) * value
    if PROX:
        total += tl.load(hyper + 4 * k + 3) * (value - tl.load(anchor + at, mask=i < P, other=0.0))
    tl.store(parts + k * BLOCKS + tl.program_id(0), tl.sum(total * total, 0))


@triton.jit
def _descend(
    g, p, anchor, shadow, hyper, parts, sizes, step, K, P, BLOCKS,
    PROX: tl.constexpr, CLIP: tl.constexpr, SHADOW: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p -= lr * scale * (gradient + decay p (+ mu (p - anchor))) while the client trains; the copy in `shadow`."""
    k = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = k.to(tl.int64) * P + i
    lr = tl.load(hyper + 4 * k)
    if CLIP:
        block = tl.arange(0, PARTS)
        norm = tl.sqrt(tl.sum(tl.load(parts + k * BLOCKS + block, mask=block < BLOCKS, other=0.0), 0))
        lr *= tl.minimum(tl.load(hyper + 4 * k + 2) / (norm + 1e-6), 1.0)
    lr = tl.where(tl.load(sizes + tl.load(step) * K + k) > 0, lr, 0.0)
    value = tl.load(p + at, mask=i < P, other=0.0)
    total = tl.load(g + at, mask=i < P, other=0.0).to(tl.float32) + tl.load(hyper + 4 * k + 1) * value
    if PROX:
        total += tl.load(hyper + 4 * k + 3) * (value - tl.load(anchor + at, mask=i < P, other=0.0))
    value -= lr * total
    tl.store(p + at, value, mask=i < P)
    if SHADOW:
        tl.store(shadow + at, value.to(shadow.dtype.element_ty), mask=i < P)


# ---------------------------------------------------------------------------------------------------------------------
# Launchers


def gather(
    pool: Tensor,
    labels: Tensor,
    index: Tensor,
    codes: Tensor | None,
    step: Tensor,
    x: Tensor,
    y: Tensor,
    across: int = 1,
) -> None:
    """Fill `x[K, B, ...]` and `y[K, B]` with the examples `index[step]`, augmented by `codes[step]`.

    These may go on with more clients than K.
    With `across` columns side by side, `x` is `[K, B, rows, columns - across + 1, wide]`, `wide >= across * channels`.
    """
    H, W, C = pool.shape[1:] if pool.dim() == 4 else (1, 1, pool.shape[1])
    numbers, count, wide = x[0, 0].numel(), y.numel(), x.shape[-1]
    assert numbers == H * (W - across + 1) * wide, f"x{tuple(x.shape)} does not fit examples{tuple(pool.shape)}"
    assert wide >= across * C, f"{wide} numbers do not hold {across} columns of {C} channels"
    BLOCK = min(1024, triton.next_power_of_2(numbers))
    _gather[(count, triton.cdiv(numbers, BLOCK))](
        pool, labels, index, index if codes is None else codes, step, x, y, index[0].numel(),
        H=H, W=W, C=C, KW=across, WIDE=wide, AUGMENT=codes is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def add_rectify(h: Tensor, bias: Tensor) -> Tensor:
    """`relu(h + bias)` in place: `h[K, B, M]`, `bias[K, M]` (its clients may lie apart)."""
    K, B, M = h.shape
    BB, BM = 8, 128
    _add_rectify[(triton.cdiv(M, BM), triton.cdiv(B, BB), K)](h, bias, bias.stride(0), B, M, BB=BB, BM=BM, num_warps=4)
    return h


def rectify_gradient(d: Tensor, h: Tensor, bias_gradient: Tensor) -> Tensor:
    """In place, the gradient before the ReLU whose output is `h`; its sum over the batch into `bias_gradient[K, M]`."""
    K, B, M = d.shape
    BM = 32
    _rectify_gradient[(triton.cdiv(M, BM), K)](
        d, h, bias_gradient, bias_gradient.stride(0), B, M, BB=min(64, triton.next_power_of_2(B)), BM=BM, num_warps=4
    )
    return d


def loss_gradient(
    z: Tensor, bias: Tensor, y: Tensor, sizes: Tensor, step: Tensor, classes: int, bias_gradient: Tensor
) -> Tensor:
    """The gradient of the mean cross-entropy at the outputs `z[K, B, width] + bias[K, width]`; the bias's own too.

    Columns from `classes` on are padding.
    """
    K, B, width = z.shape
    d = torch.empty_like(z)
    _loss_gradient[(K,)](
        z, bias, y, sizes, step, d, bias_gradient, bias.stride(0), bias_gradient.stride(0), sizes.shape[1], B, classes,
        WIDTH=width, BB=min(64, triton.next_power_of_2(B)), CP=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return d


def blocks(p: Tensor) -> int:
    """Programs that share the numbers of one client in `p[K, ...]`, and as many sums of squares."""
    return triton.cdiv(p[0].numel(), BLOCK)


def _dense(p: Tensor, *others: Tensor) -> None:
    """Refuse what does not lie client after client without gaps, and others that do not lie in memory as `p` does."""

    def apart(t: Tensor) -> list[tuple[int, int]]:
        return [(stride, n) for stride, n in zip(t.stride(), t.shape) if n > 1]

    size = 1
    for stride, n in sorted(apart(p)):
        assert stride == size, f"numbers must lie side by side, not with strides {p.stride()}"
        size *= n
    assert len(p) == 1 or p.stride(0) == p[0].numel(), f"clients must lie one after the other: {p.stride()}"
    for other in others:
        assert apart(other) == apart(p), f"strides are {other.stride()}, not {p.stride()}"


def descend(
    grads: Sequence[Tensor],
    params: Sequence[Tensor],
    hyper: Tensor,
    sizes: Tensor,
    step: Tensor,
    parts: Tensor,
    *,
    clip: bool,
    anchors: Sequence[Tensor] | None = None,
    shadows: Sequence[Tensor | None] | None = None,
) -> None:
    """One SGD step of the `params`, each `[K, ...]`, along `grads`, clipped by the norm over all of them.

    `hyper[K, 4]` is (lr, decay, clip, mu); `parts[K, blocks of all params]` is scratch; clients move whose `sizes[step]` is
    not 0. `shadows` become copies of the parameters. What belongs together must lie in memory alike. `sizes` may go on with
    more clients than these K.
    """
    K, prox = parts.shape[0], anchors is not None
    assert parts.shape[1] == sum(blocks(p) for p in params), f"scratch must hold one number per block of {BLOCK}"
    copies = shadows or [None] * len(params)
    together = list(zip(params, grads, anchors or params, copies, strict=True))
    for p, g, a, copy in together:
        _dense(p, g, a, p if copy is None else copy)
    if clip:
        first = 0
        for p, g, a, _ in together:
            to = parts[:, first:]
            _squares[(blocks(p), K)](
                g, p, a, hyper, to, p[0].numel(), parts.shape[1], PROX=prox, BLOCK=BLOCK, num_warps=8
            )
            first += blocks(p)
        if len(params) > 1:  # else the few sums are added by everybody who needs the total
            parts = parts.sum(1, keepdim=True)
    for p, g, a, copy in together:
        _descend[(blocks(p), K)](
            g, p, a, p if copy is None else copy, hyper, parts, sizes, step, sizes.shape[1], p[0].numel(), parts.shape[1],
            PROX=prox, CLIP=clip, SHADOW=copy is not None, PARTS=max(2, triton.next_power_of_2(parts.shape[1])),
            BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
