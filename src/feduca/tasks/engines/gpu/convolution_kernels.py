# pyright: reportMissingImports=false, reportIndexIssue=false
"""GPU kernels (Triton) for K small networks at once: what one training step of the paper's CNN spends its time on.

Forward, a convolution, its ReLU and its 2 x 2 pooling are one kernel, so the full-size activation never reaches memory:
four accumulators hold the four places of a pooling window. What backpropagation needs of it is one byte per pooled
value, which of the four won (or DEAD: the ReLU was off).

Backward there are two ways. `masked` reads the pooled gradient and masks it by the winner on the fly, four products per
tile. `unpooled` first writes the gradient at every place of the convolution's output, zero where nothing won and in a
border around it; then both gradients are plain products without conditions.

Images are `[K, B, rows, columns, channels]`; a filter bank is the matrix `[K, rows * columns * channels, outputs]`.
Strides are 1, there is no padding; the number of outputs is a power of two. Parameters and gradients may be views into
one long vector per client: only the matrix of each client must be contiguous. Sums have a fixed order: no atomics, so a
step is bit-equal when it is repeated.

Importing this module needs Triton. The kernels are launched only on CUDA tensors (or under TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from feduca.tasks.engines.gpu.convolution_device import (
    filter_masked_kernel,
    filter_unpooled_kernel,
    fold_kernel,
    forward_kernel,
    input_masked_kernel,
    input_unpooled_kernel,
    unpool_kernel,
)

DEAD = 4  # in `winner`: the window's largest value was not above zero


@dataclass(frozen=True)
class ConvShape:
    """The sizes of one convolution with pooling; a filter has `kernel` rows and `across` columns (default: as many)."""

    rows: int
    columns: int
    channels: int
    outputs: int
    kernel: int
    across: int | None = None

    @property
    def width(self) -> int:
        """Columns of the filter."""
        return self.kernel if self.across is None else self.across

    @property
    def pooled(self) -> tuple[int, int]:
        return (self.rows - self.kernel + 1) // 2, (self.columns - self.width + 1) // 2

    @property
    def taps(self) -> int:
        """Rows of the filter matrix."""
        return self.kernel * self.width * self.channels


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work: places per program, filter rows at a time, warps, stages of the load pipeline."""

    places: int = 64
    taps: int = 64
    warps: int = 4
    stages: int = 2


# ---------------------------------------------------------------------------------------------------------------------
# Tiles

# The fastest on an H200 in bf16 (benchmarks/sweep.py tries others), for few channels and for many.
TILES: dict[str, tuple[Tile, Tile]] = {
    "forward": (Tile(64, 32, 4, 3), Tile(64, 32, 4, 4)),
    "filter masked": (Tile(64, 128, 4, 1), Tile(64, 128, 4, 1)),
    "filter unpooled": (Tile(64, 128, 8, 3), Tile(64, 128, 4, 4)),
    "input masked": (Tile(128, 16, 8, 2), Tile(128, 64, 8, 2)),
    "input unpooled": (Tile(128, 16, 4, 3), Tile(128, 64, 4, 3)),
}
UNPOOL = (False, True)  # whether the backward pass un-pools, for few channels and for many
PROGRAMS = (264, 130)  # that a filter gradient is cut into, at least; an H200 has 132 multiprocessors
MANY = 32  # channels


def tile_for(job: str, shape: ConvShape, dtype: torch.dtype) -> Tile:
    """The tile for this work. fp32 takes twice the shared memory of bf16, so it gets no deep pipeline."""
    tile = TILES[job][shape.channels >= MANY]
    return replace(tile, stages=min(tile.stages, 2)) if dtype == torch.float32 else tile


# ---------------------------------------------------------------------------------------------------------------------
# Launchers


def _sizes(shape: ConvShape) -> dict[str, int]:
    rows, columns = shape.pooled
    return {
        "H": shape.rows, "W": shape.columns, "C": shape.channels, "OUT": shape.outputs, "KW": shape.width,
        "PH": rows, "PW": columns,
    }  # fmt: skip


def _inner(t: Tensor) -> Tensor:
    """`t`, whose clients may lie apart but whose inner axes must be contiguous."""
    assert t[0].is_contiguous(), f"each client's part must be contiguous, not of strides {t.stride()}"
    return t


def convolve(
    x: Tensor, w: Tensor, bias: Tensor, shape: ConvShape, precision: str = "tf32", tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """`maxpool2(relu(x * w + bias))` and which place of each window won. `x[K, B, H, W, C]`, `w[K, taps, O]`."""
    K, B = x.shape[:2]
    rows, columns = shape.pooled
    out = torch.empty(K, B, rows, columns, shape.outputs, dtype=x.dtype, device=x.device)
    winner = torch.empty(out.shape, dtype=torch.uint8, device=x.device)
    tile = tile or tile_for("forward", shape, x.dtype)
    forward_kernel[(triton.cdiv(B * rows * columns, tile.places), K)](
        x, _inner(w), _inner(bias), out, winner, w.stride(0), bias.stride(0), B, **_sizes(shape),
        TAPS=shape.taps, BQ=tile.places, BK=tile.taps, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, winner


@dataclass(frozen=True)
class Unpooled:
    """The gradient at every place of a convolution's output `[K, B, rows, columns, O]`, and partial sums for the bias.

    With a border, there are `kernel - 1` rows and columns of zeros on every side, as the input's gradient needs.
    """

    values: Tensor
    bias_parts: Tensor
    border: tuple[int, int]


def unpool(d: Tensor, winner: Tensor, shape: ConvShape, *, border: bool, places: int = 128) -> Unpooled:
    """Put each pooled gradient where its window's winner was; zeros elsewhere."""
    K, B, rows, columns, outputs = d.shape
    top, left = (shape.kernel - 1, shape.width - 1) if border else (0, 0)
    # With a border as large as the input plus one filter less one: an odd last row, which pooling dropped, is zeros.
    high, wide = (shape.rows + top, shape.columns + left) if border else (2 * rows, 2 * columns)
    values = torch.empty(K, B, high, wide, outputs, dtype=d.dtype, device=d.device)
    programs = triton.cdiv(B * high * wide, places)
    bias_parts = torch.empty(programs, K, outputs, dtype=torch.float32, device=d.device)
    unpool_kernel[(programs, K)](
        d, winner, values, bias_parts, B, K, PH=rows, PW=columns, HP=high, WP=wide, TOP=top, LEFT=left, OUT=outputs,
        BP=places, num_warps=4,
    )  # fmt: skip
    return Unpooled(values, bias_parts, (top, left))


def _filter_launch(
    job: str, x: Tensor, shape: ConvShape, places: int, precision: str, tile: Tile | None, splits: int | None
) -> tuple[Tensor, tuple[int, int, int], int, dict[str, Any]]:
    """How a filter gradient is launched: room for its partial sums, the grid, how many of the `places` each adds, options.

    It is cut into `splits` sums; without a wish, into enough to fill the chip.
    """
    K = len(x)
    tile = tile or tile_for(job, shape, x.dtype)
    tiles = triton.cdiv(shape.taps, tile.taps)
    if splits is None:
        splits = max(1, min(triton.cdiv(PROGRAMS[shape.channels >= MANY], tiles * K), places // (4 * tile.places)))
    each = triton.cdiv(triton.cdiv(places, splits), tile.places) * tile.places
    sums = triton.cdiv(places, each)
    parts = torch.empty(sums, K, shape.taps, shape.outputs, dtype=torch.float32, device=x.device)
    options = {
        **_sizes(shape), "TAPS": shape.taps, "BQ": tile.places, "BK": tile.taps, "PRECISION": precision,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    return parts, (tiles, K, sums), each, options


def filter_masked(
    x: Tensor,
    d: Tensor,
    winner: Tensor,
    shape: ConvShape,
    precision: str = "tf32",
    tile: Tile | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Partial sums of the gradients of filters `[parts, K, taps, O]` and bias `[parts, K, O]`, from the pooled `d`."""
    K, B = x.shape[:2]
    rows, columns = shape.pooled
    parts, grid, each, options = _filter_launch("filter masked", x, shape, B * rows * columns, precision, tile, splits)
    bias_parts = torch.empty(len(parts), K, shape.outputs, dtype=torch.float32, device=x.device)
    filter_masked_kernel[grid](x, d, winner, parts, bias_parts, B, K, each, **options)
    return parts, bias_parts


def filter_unpooled(
    x: Tensor,
    d: Unpooled,
    shape: ConvShape,
    precision: str = "tf32",
    tile: Tile | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same partial sums from the un-pooled gradient."""
    K, B = x.shape[:2]
    rows, columns = shape.pooled
    parts, grid, each, options = _filter_launch(
        "filter unpooled", x, shape, 4 * B * rows * columns, precision, tile, splits
    )
    (high, wide), (top, left) = d.values.shape[2:4], d.border
    filter_unpooled_kernel[grid](x, d.values, parts, B, K, each, HP=high, WP=wide, TOP=top, LEFT=left, **options)
    return parts, d.bias_parts


def fold(parts: Tensor, bias_parts: Tensor, gradient: Tensor, bias_gradient: Tensor) -> None:
    """Add up partial sums into `gradient[K, taps, O]` and `bias_gradient[K, O]`, which may be views."""
    splits, K, taps, outputs = parts.shape
    BLOCK = 512
    fold_kernel[(triton.cdiv(taps * outputs, BLOCK) + 1, K)](
        parts, bias_parts, _inner(gradient), _inner(bias_gradient), gradient.stride(0), bias_gradient.stride(0),
        K, splits, len(bias_parts), SIZE=taps * outputs, OUT=outputs, ROWS=min(8, triton.next_power_of_2(splits)),
        BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def input_masked(
    d: Tensor, winner: Tensor, w: Tensor, shape: ConvShape, precision: str = "tf32", tile: Tile | None = None
) -> Tensor:
    """The gradient at the convolution's input, `[K, B, H, W, C]`; the channels must be a power of two from 16 on."""
    K, B = d.shape[:2]
    out = torch.empty(K, B, shape.rows, shape.columns, shape.channels, dtype=d.dtype, device=d.device)
    tile = tile or tile_for("input masked", shape, d.dtype)
    input_masked_kernel[(triton.cdiv(B * shape.rows * shape.columns, tile.places), K)](
        d, winner, _inner(w), out, w.stride(0), B, **_sizes(shape), KH=shape.kernel, BM=tile.places,
        PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def input_unpooled(
    d: Unpooled, w: Tensor, shape: ConvShape, precision: str = "tf32", tile: Tile | None = None
) -> Tensor:
    """The same from the un-pooled gradient, which must have its border."""
    K, B = d.values.shape[:2]
    assert d.border == (shape.kernel - 1, shape.width - 1), "the input's gradient needs the border of zeros"
    out = torch.empty(K, B, shape.rows, shape.columns, shape.channels, dtype=d.values.dtype, device=d.values.device)
    tile = tile or tile_for("input unpooled", shape, d.values.dtype)
    input_unpooled_kernel[(shape.rows * triton.cdiv(B * shape.columns, tile.places), K)](
        d.values, _inner(w), out, w.stride(0), B, **_sizes(shape), KH=shape.kernel, BM=tile.places,
        PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def backpropagate(
    x: Tensor,
    d: Tensor,
    winner: Tensor,
    w: Tensor,
    shape: ConvShape,
    precision: str,
    *,
    into: tuple[Tensor, Tensor],
    below: bool,
    beside: Callable[..., AbstractContextManager[object]] = lambda *read: nullcontext(),
) -> Tensor | None:
    """From the gradient `d` at the pooled output: filters' and bias's into `into`, and the input's if `below`.

    Of the two ways (see the module's first lines) the one that was faster for such a shape. Nothing that follows in a step
    needs `into` but its end: it is computed `beside` the rest (capture.Branch).
    """
    if UNPOOL[shape.channels >= MANY]:
        dense = unpool(d, winner, shape, border=below)
        with beside(x, dense):
            fold(*filter_unpooled(x, dense, shape, precision), *into)
        return input_unpooled(dense, w, shape, precision) if below else None
    with beside(x, d, winner):
        fold(*filter_masked(x, d, winner, shape, precision), *into)
    return input_masked(d, winner, w, shape, precision) if below else None


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
        gw = torch.empty_like(w)
        gb = torch.empty(len(w), ctx.shape.outputs, dtype=torch.float32, device=w.device)
        gx = backpropagate(
            x, d.contiguous(), winner, w, ctx.shape, ctx.precision, into=(gw, gb), below=ctx.needs_input_grad[0]
        )
        return gx, gw, gb, None, None


def dot_precision(dtype: torch.dtype) -> str:
    """How products of this type are taken: fp32 in three tf32 products (all but exact), or one where PyTorch allows."""
    return "tf32" if dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def layer(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """K convolutions with ReLU and pooling: `weight[K, O, C, k, k]`, `x[K, B, H, W, C]`; in bf16 under autocast."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32
    if short := -weight.shape[2] % 4:  # channels by fours can be loaded at once
        x, weight = F.pad(x, (0, short)), F.pad(weight, (0, 0, 0, 0, 0, short))
    outputs, channels, kernel = weight.shape[1:4]
    shape = ConvShape(x.shape[2], x.shape[3], channels, outputs, kernel)
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), shape.taps, outputs)
    out = ConvReluPool.apply(
        x.to(dtype).contiguous(), matrix.to(dtype).contiguous(), bias.float().contiguous(), shape, dot_precision(dtype)
    )
    assert isinstance(out, Tensor)
    return out
