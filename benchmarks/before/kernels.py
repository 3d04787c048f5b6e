# pyright: reportMissingImports=false, reportIndexIssue=false
"""GPU kernels (Triton) for K small networks at once: what one training step of the paper's CNN spends its time on.

A convolution, its ReLU and its 2 x 2 pooling are one kernel, so the full-size activation never reaches memory: four
accumulators hold the four places of a pooling window. What backpropagation needs of it is one byte per pooled value,
which of the four won (or DEAD: the ReLU was off). Images are `[K, B, rows, columns, channels]`; a filter bank is the
matrix `[K, rows * columns * channels, outputs]`. Strides are 1, there is no padding; the number of outputs is a power
of two.

Importing this module needs Triton. The kernels are launched only on CUDA tensors (or under TRITON_INTERPRET=1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

DEAD = 4  # in `winner`: the window's largest value was not above zero


@dataclass(frozen=True)
class ConvShape:
    """The sizes of one convolution with pooling."""

    rows: int
    columns: int
    channels: int
    outputs: int
    kernel: int

    @property
    def pooled(self) -> tuple[int, int]:
        return (self.rows - self.kernel + 1) // 2, (self.columns - self.kernel + 1) // 2

    @property
    def taps(self) -> int:
        """Rows of the filter matrix."""
        return self.kernel * self.kernel * self.channels


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work: places per program, filter rows at a time, warps, stages of the load pipeline."""

    places: int = 64
    taps: int = 64
    warps: int = 4
    stages: int = 2


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _forward(
    x, w, bias, out, winner, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1)
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    valid = q < B * PH * PW
    image = (k * B + q // (PH * PW)).to(tl.int64)
    place = q % (PH * PW)
    corner = x + (image * (H * W) + (2 * (place // PW)) * W + 2 * (place % PW)) * C
    o = tl.arange(0, OUT)
    acc0 = tl.zeros((BQ, OUT), tl.float32)
    acc1 = tl.zeros((BQ, OUT), tl.float32)
    acc2 = tl.zeros((BQ, OUT), tl.float32)
    acc3 = tl.zeros((BQ, OUT), tl.float32)
    for start in range(0, TAPS, BK):
        tap = start + tl.arange(0, BK)
        there = tap < TAPS
        offset = ((tap // C) // KW * W + (tap // C) % KW) * C + tap % C
        f = tl.load(w + (k * TAPS + tap)[:, None] * OUT + o[None, :], mask=there[:, None], other=0.0)
        at = corner[:, None] + offset[None, :]
        mask = valid[:, None] & there[None, :]
        acc0 = _dot(tl.load(at, mask=mask, other=0.0), f, acc0, PRECISION)
        acc1 = _dot(tl.load(at + C, mask=mask, other=0.0), f, acc1, PRECISION)
        acc2 = _dot(tl.load(at + W * C, mask=mask, other=0.0), f, acc2, PRECISION)
        acc3 = _dot(tl.load(at + (W * C + C), mask=mask, other=0.0), f, acc3, PRECISION)
    best, which = acc0, tl.zeros((BQ, OUT), tl.int32)
    which = tl.where(acc1 > best, 1, which)
    best = tl.maximum(best, acc1)
    which = tl.where(acc2 > best, 2, which)
    best = tl.maximum(best, acc2)
    which = tl.where(acc3 > best, 3, which)
    best = tl.maximum(best, acc3) + tl.load(bias + k * OUT + o).to(tl.float32)[None, :]
    which = tl.where(best > 0, which, 4)
    to = (image * (PH * PW) + place)[:, None] * OUT + o[None, :]
    tl.store(out + to, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=valid[:, None])
    tl.store(winner + to, which.to(tl.uint8), mask=valid[:, None])


@triton.jit
def _filter_gradient(
    x, d, winner, parts, bias_parts, B, K,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, EACH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1)
    split = tl.program_id(2)
    tap = tl.program_id(0) * BK + tl.arange(0, BK)
    there = tap < TAPS
    offset = ((tap // C) // KW * W + (tap // C) % KW) * C + tap % C
    o = tl.arange(0, OUT)
    count = B * PH * PW
    acc = tl.zeros((BK, OUT), tl.float32)
    bias = tl.zeros((OUT,), tl.float32)
    for start in range(0, EACH, BQ):
        q = split * EACH + start + tl.arange(0, BQ)
        valid = q < count
        image = (k * B + q // (PH * PW)).to(tl.int64)
        place = q % (PH * PW)
        corner = x + (image * (H * W) + (2 * (place // PW)) * W + 2 * (place % PW)) * C
        to = (image * (PH * PW) + place)[:, None] * OUT + o[None, :]
        g = tl.load(d + to, mask=valid[:, None], other=0.0)
        which = tl.load(winner + to, mask=valid[:, None], other=4)
        bias += tl.sum(tl.where(which < 4, g, 0.0).to(tl.float32), 0)
        at = corner[:, None] + offset[None, :]
        mask = valid[:, None] & there[None, :]
        zero = tl.zeros_like(g)
        acc = _dot(tl.trans(tl.load(at, mask=mask, other=0.0)), tl.where(which == 0, g, zero), acc, PRECISION)
        acc = _dot(tl.trans(tl.load(at + C, mask=mask, other=0.0)), tl.where(which == 1, g, zero), acc, PRECISION)
        acc = _dot(tl.trans(tl.load(at + W * C, mask=mask, other=0.0)), tl.where(which == 2, g, zero), acc, PRECISION)
        acc = _dot(
            tl.trans(tl.load(at + (W * C + C), mask=mask, other=0.0)), tl.where(which == 3, g, zero), acc, PRECISION
        )
    row = split * K + k
    tl.store(parts + (row * TAPS + tap)[:, None] * OUT + o[None, :], acc, mask=there[:, None])
    if tl.program_id(0) == 0:
        tl.store(bias_parts + row * OUT + o, bias)


@triton.jit
def _input_gradient(
    d, winner, w, out, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = m < B * H * W
    image = (k * B + m // (H * W)).to(tl.int64)
    row = (m % (H * W)) // W
    column = m % W
    o = tl.arange(0, OUT)
    c = tl.arange(0, C)
    acc = tl.zeros((BM, C), tl.float32)
    for tap in range(KH * KW):
        y = row - tap // KW
        z = column - tap % KW
        inside = valid & (y >= 0) & (y < 2 * PH) & (z >= 0) & (z < 2 * PW)
        at = (image * (PH * PW) + (y // 2) * PW + z // 2)[:, None] * OUT + o[None, :]
        g = tl.load(d + at, mask=inside[:, None], other=0.0)
        which = tl.load(winner + at, mask=inside[:, None], other=4)
        mine = ((y % 2) * 2 + z % 2)[:, None]
        g = tl.where(which.to(tl.int32) == mine, g, tl.zeros_like(g))
        f = tl.load(w + ((k * KH * KW + tap) * C + c)[None, :] * OUT + o[:, None])
        acc = _dot(g, f, acc, PRECISION)
    to = (image * (H * W) + row * W + column)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _gather(
    pool, labels, index, codes, step, x, y, N,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, AUGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Example n of this step, moved and mirrored as its code says (see batches.AUGMENTATIONS), zero from outside."""
    n = tl.program_id(0)
    at = tl.load(step).to(tl.int64) * N + n
    source = tl.load(index + at).to(tl.int64)
    tl.store(y + n, tl.load(labels + source))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < H * W * C
    if AUGMENT:
        code = tl.load(codes + at)
        moved = (code // 2) % 2 == 1
        row = i // (W * C)
        column = (i // C) % W
        column = tl.where(code % 2 == 1, W - 1 - column, column)
        row += tl.where(moved, (code // 4) % 9 - 4, 0).to(tl.int32)
        column += tl.where(moved, code // 36 - 4, 0).to(tl.int32)
        seen = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        value = tl.load(pool + source * (H * W * C) + (row * W + column) * C + i % C, mask=seen, other=0.0)
    else:
        value = tl.load(pool + source * (H * W * C) + i, mask=inside, other=0.0)
    tl.store(x + n.to(tl.int64) * (H * W * C) + i, value, mask=inside)


@triton.jit
def _loss_gradient(
    z, y, sizes, step, d, K, B, classes,
    WIDTH: tl.constexpr, BB: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Of the mean cross-entropy over the real examples of each client's batch, at the outputs."""
    k = tl.program_id(0)
    size = tl.load(sizes + tl.load(step) * K + k)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    c = tl.arange(0, CP)
    at = (k * B + b)[:, None] * WIDTH + c[None, :]
    held = (b < B)[:, None] & (c < WIDTH)[None, :]
    v = tl.load(z + at, mask=held & (c < classes)[None, :], other=-float("inf")).to(tl.float32)
    v = tl.where((b < B)[:, None], v, 0.0)
    e = tl.exp(v - tl.max(v, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    target = tl.load(y + k * B + b, mask=b < B, other=0)
    p = tl.where(c[None, :] == target[:, None], p - 1.0, p)
    p = tl.where((b < size)[:, None] & (c < classes)[None, :], p / tl.maximum(size, 1).to(tl.float32), 0.0)
    tl.store(d + at, p.to(d.dtype.element_ty), mask=held)


@triton.jit
def _squares(g, p, anchor, hyper, parts, P, BLOCKS, PROX: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of squares of gradient + decay (+ proximal pull), block by block: `parts[K, BLOCKS]`."""
    k = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = k.to(tl.int64) * P + i
    value = tl.load(p + at, mask=i < P, other=0.0)
    total = tl.load(g + at, mask=i < P, other=0.0).to(tl.float32) + tl.load(hyper + 1) * value
    if PROX:
        total += tl.load(hyper + 3) * (value - tl.load(anchor + at, mask=i < P, other=0.0))
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
    lr = tl.load(hyper)
    if CLIP:
        block = tl.arange(0, PARTS)
        norm = tl.sqrt(tl.sum(tl.load(parts + k * BLOCKS + block, mask=block < BLOCKS, other=0.0), 0))
        lr *= tl.minimum(tl.load(hyper + 2) / (norm + 1e-6), 1.0)
    lr = tl.where(tl.load(sizes + tl.load(step) * K + k) > 0, lr, 0.0)
    value = tl.load(p + at, mask=i < P, other=0.0)
    total = tl.load(g + at, mask=i < P, other=0.0).to(tl.float32) + tl.load(hyper + 1) * value
    if PROX:
        total += tl.load(hyper + 3) * (value - tl.load(anchor + at, mask=i < P, other=0.0))
    value -= lr * total
    tl.store(p + at, value, mask=i < P)
    if SHADOW:
        tl.store(shadow + at, value.to(shadow.dtype.element_ty), mask=i < P)


# ---------------------------------------------------------------------------------------------------------------------
# Launchers


def convolve(
    x: Tensor, w: Tensor, bias: Tensor, shape: ConvShape, precision: str = "tf32", tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """`maxpool2(relu(x * w + bias))` and which place of each window won. `x[K, B, H, W, C]`, `w[K, taps, O]`."""
    K, B = x.shape[:2]
    rows, columns = shape.pooled
    out = torch.empty(K, B, rows, columns, shape.outputs, dtype=x.dtype, device=x.device)
    winner = torch.empty(out.shape, dtype=torch.uint8, device=x.device)
    tile = tile or _fit(FORWARD, x)
    _forward[(triton.cdiv(B * rows * columns, tile.places), K)](
        x, w, bias, out, winner, B,
        H=shape.rows, W=shape.columns, C=shape.channels, OUT=shape.outputs, KW=shape.kernel, TAPS=shape.taps,
        PH=rows, PW=columns, BQ=tile.places, BK=tile.taps, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, winner


def filter_gradient(
    x: Tensor,
    d: Tensor,
    winner: Tensor,
    shape: ConvShape,
    precision: str = "tf32",
    tile: Tile | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of filters `[K, taps, O]` and bias `[K, O]` (both fp32) from `d`, the gradient at the pooled output."""
    K, B = x.shape[:2]
    rows, columns = shape.pooled
    tile = tile or _fit(FILTER_GRADIENT, x)
    tiles, places = triton.cdiv(shape.taps, tile.taps), B * rows * columns
    if splits is None:  # enough programs to fill the chip a few times over, each with enough to do
        splits = max(1, min(triton.cdiv(PROGRAMS, tiles * K), places // 256))
    each = triton.cdiv(triton.cdiv(places, splits), tile.places) * tile.places
    parts = torch.empty(splits, K, shape.taps, shape.outputs, dtype=torch.float32, device=x.device)
    bias_parts = torch.empty(splits, K, shape.outputs, dtype=torch.float32, device=x.device)
    _filter_gradient[(tiles, K, splits)](
        x, d, winner, parts, bias_parts, B, K,
        H=shape.rows, W=shape.columns, C=shape.channels, OUT=shape.outputs, KW=shape.kernel, TAPS=shape.taps,
        PH=rows, PW=columns, BQ=tile.places, BK=tile.taps, EACH=each, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts.sum(0), bias_parts.sum(0)


def input_gradient(
    d: Tensor, winner: Tensor, w: Tensor, shape: ConvShape, precision: str = "tf32", tile: Tile | None = None
) -> Tensor:
    """The gradient at the convolution's input, `[K, B, H, W, C]`; the channels must be a power of two from 16 on."""
    K, B = d.shape[:2]
    rows, columns = shape.pooled
    out = torch.empty(K, B, shape.rows, shape.columns, shape.channels, dtype=d.dtype, device=d.device)
    tile = tile or _fit(INPUT_GRADIENT, d)
    _input_gradient[(triton.cdiv(B * shape.rows * shape.columns, tile.places), K)](
        d, winner, w, out, B,
        H=shape.rows, W=shape.columns, C=shape.channels, OUT=shape.outputs, KH=shape.kernel, KW=shape.kernel,
        PH=rows, PW=columns, BM=tile.places, PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


# The tiles that were fastest on an H200 (benchmarks/engine.py sweeps them), in bf16.
FORWARD = Tile(places=64, taps=64, warps=4, stages=2)
FILTER_GRADIENT = Tile(places=64, taps=64, warps=4, stages=2)
INPUT_GRADIENT = Tile(places=128, taps=64, warps=8, stages=2)
PROGRAMS = 528


def _fit(tile: Tile, x: Tensor) -> Tile:
    """The tile for this type: fp32 takes twice the shared memory."""
    return replace(tile, stages=min(tile.stages, 2)) if x.dtype == torch.float32 else tile


def gather(
    pool: Tensor, labels: Tensor, index: Tensor, codes: Tensor | None, step: Tensor, x: Tensor, y: Tensor
) -> None:
    """Fill `x[K, B, ...]` and `y[K, B]` with the examples `index[step]`, augmented by `codes[step]`."""
    H, W, C = pool.shape[1:] if pool.dim() == 4 else (1, 1, pool.shape[1])
    count = y.numel()
    BLOCK = min(1024, triton.next_power_of_2(H * W * C))
    _gather[(count, triton.cdiv(H * W * C, BLOCK))](
        pool, labels, index, index if codes is None else codes, step, x, y, count,
        H=H, W=W, C=C, AUGMENT=codes is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def loss_gradient(z: Tensor, y: Tensor, sizes: Tensor, step: Tensor, classes: int) -> Tensor:
    """The gradient of the mean cross-entropy at the outputs `z[K, B, width]`; columns from `classes` on are padding."""
    K, B, width = z.shape
    d = torch.empty_like(z)
    BB = 16
    _loss_gradient[(K, triton.cdiv(B, BB))](
        z, y, sizes, step, d, K, B, classes, WIDTH=width, BB=BB, CP=triton.next_power_of_2(width), num_warps=1
    )
    return d


def descend(
    g: Tensor,
    p: Tensor,
    hyper: Tensor,
    sizes: Tensor,
    step: Tensor,
    parts: Tensor,
    *,
    clip: bool,
    anchor: Tensor | None = None,
    shadow: Tensor | None = None,
) -> None:
    """One SGD step of `p[K, P]` along `g[K, P]`; `hyper` is (lr, decay, clip, mu) and `parts[K, blocks]` is scratch."""
    K, P = p.shape
    blocks = parts.shape[1]
    BLOCK = 4096
    assert blocks == triton.cdiv(P, BLOCK), "scratch must hold one number per block of 4096 parameters"
    pull = p if anchor is None else anchor
    if clip:
        _squares[(blocks, K)](g, p, pull, hyper, parts, P, blocks, PROX=anchor is not None, BLOCK=BLOCK, num_warps=8)
    _descend[(blocks, K)](
        g, p, pull, p if shadow is None else shadow, hyper, parts, sizes, step, K, P, blocks,
        PROX=anchor is not None, CLIP=clip, SHADOW=shadow is not None, PARTS=triton.next_power_of_2(blocks),
        BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


class ConvReluPool(torch.autograd.Function):
    """`convolve` for autograd: `x[K, B, H, W, C]`, `w[K, taps, O]`, `bias[K, O]`."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, bias: Tensor, shape: ConvShape, precision: str) -> Tensor:  # type: ignore[override]
        out, winner = convolve(x, w, bias, shape, precision)
        ctx.save_for_backward(x, w, winner)
        ctx.shape, ctx.precision = shape, precision
        return out

    @staticmethod
    def backward(ctx, d: Tensor):  # type: ignore[override]
        x, w, winner = ctx.saved_tensors
        d = d.contiguous()
        gw, gb = filter_gradient(x, d, winner, ctx.shape, ctx.precision)
        gx = input_gradient(d, winner, w, ctx.shape, ctx.precision) if ctx.needs_input_grad[0] else None
        return gx, gw.to(w.dtype), gb, None, None


def dot_precision(dtype: torch.dtype) -> str:
    """How products of this type are taken: fp32 exactly, unless PyTorch's switch allows tf32."""
    return "tf32" if dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32 else "ieee"


def layer(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """K convolutions with ReLU and pooling: `weight[K, O, C, k, k]`, `x[K, B, H, W, C]`; in bf16 under autocast."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32
    outputs, channels, kernel = weight.shape[1:4]
    shape = ConvShape(x.shape[2], x.shape[3], channels, outputs, kernel)
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), shape.taps, outputs)
    out = ConvReluPool.apply(
        x.to(dtype).contiguous(), matrix.to(dtype).contiguous(), bias.float().contiguous(), shape, dot_precision(dtype)
    )
    assert isinstance(out, Tensor)
    return out
