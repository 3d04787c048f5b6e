# pyright: reportMissingImports=false, reportIndexIssue=false
"""GPU kernels (Triton) that lay out the windows of convolutions as rows of a matrix, and add them up again.

Images are `[K, B, H, W, C]`; the window of place (i, j) begins at row `i * S - TOP` and column `j * S - LEFT` of its
image and is zero outside. Going back, each number of an image adds up the windows that met it, in a fixed order, in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from feduca.tasks.models.convolution import Windows

TILE = 4096  # numbers that one program moves
TYPES = (torch.float32, torch.bfloat16)


@triton.jit
def _unfold(
    x, out, rows,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, KW: tl.constexpr,
    NUMBERS: tl.constexpr, ROW: tl.constexpr, S: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    BR: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    ACROSS: tl.constexpr = (ROW + BJ - 1) // BJ
    start = tl.program_id(0) % ACROSS * BJ
    j = start + tl.arange(0, BJ)
    r = tl.program_id(0) // ACROSS * BR + tl.arange(0, BR)
    place = r % (HO * WO)
    y = place // WO * S - TOP
    z = place % WO * S - LEFT
    image = (r // (HO * WO)).to(tl.int64) * (H * W * C)
    if C % BJ == 0:  # one tap at a time: which one, and whether it meets the image, is not asked for every number
        tap = start // C
        y += tap // KW
        z += tap % KW
        inside = ((r < rows) & (y >= 0) & (y < H) & (z >= 0) & (z < W))[:, None]
        at = (image + (y * W + z) * C)[:, None] + (j - tap * C)[None, :]
    else:
        tap = j // C
        y2 = y[:, None] + (tap // KW)[None, :]
        z2 = z[:, None] + (tap % KW)[None, :]
        inside = (r < rows)[:, None] & (j < NUMBERS)[None, :] & (y2 >= 0) & (y2 < H) & (z2 >= 0) & (z2 < W)
        at = image[:, None] + ((y2 * W + z2) * C + (j - tap * C)[None, :])
    value = tl.load(x + at, mask=inside, other=0.0)
    to = r.to(tl.int64)[:, None] * ROW + j[None, :]
    tl.store(out + to, value.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (j < ROW)[None, :])


@triton.jit
def _fold(
    d, out, places,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, ROW: tl.constexpr, S: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Tap (i, j) of a window met the image at (y, z) where the window is that of place ((y + TOP - i) / S, ...)."""
    ACROSS: tl.constexpr = (C + BC - 1) // BC
    c = tl.program_id(0) % ACROSS * BC + tl.arange(0, BC)
    p = tl.program_id(0) // ACROSS * BP + tl.arange(0, BP)
    first = (p // (H * W)).to(tl.int64) * (HO * WO)
    bottom = p % (H * W) // W + TOP
    right = p % W + LEFT
    total = tl.zeros((BP, BC), tl.float32)
    for tap in tl.static_range(KH * KW):
        y = bottom - tap // KW
        z = right - tap % KW
        met = (p < places) & (y >= 0) & (y % S == 0) & (y // S < HO) & (z >= 0) & (z % S == 0) & (z // S < WO)
        at = (first + (y // S * WO + z // S))[:, None] * ROW + (tap * C + c)[None, :]
        total += tl.load(d + at, mask=met[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
    to = p.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=(p < places)[:, None] & (c < C)[None, :])


def fits(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels know these types."""
    return x.dtype in TYPES and dtype in TYPES


def _columns(channels: int) -> int:
    """Numbers of a row that a program takes: as many as divide the channels, if they can be divided so."""
    return next((n for n in (128, 64) if channels % n == 0), 32)


def _sizes(at: Windows) -> dict[str, int]:
    (above, _), (left, _), (high, wide) = *at.pad, at.count
    return {
        "H": at.image[0], "W": at.image[1], "C": at.image[2], "HO": high, "WO": wide, "KW": at.taps[1], "ROW": at.row,
        "S": at.stride, "TOP": above, "LEFT": left,
    }  # fmt: skip


def _grid(rows: int, columns: int, tile: tuple[int, int]) -> tuple[int]:
    assert rows + tile[0] < 2**31, f"{rows} places at once are too many: lower engine.chunk"
    return (triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1]),)


def unfold(x: Tensor, at: Windows, dtype: torch.dtype) -> Tensor:
    """All windows of `x[K, B, H, W, C]` as rows, `[K, B * windows, at.row]`."""
    assert x.is_contiguous(), f"images must be contiguous, not of strides {x.stride()}"
    K, B = x.shape[:2]
    each = B * at.count[0] * at.count[1]
    out = torch.empty(K, each, at.row, dtype=dtype, device=x.device)
    columns = _columns(at.image[2])
    tile = (TILE // columns, columns)
    _unfold[_grid(K * each, at.row, tile)](
        x, out, K * each, **_sizes(at), NUMBERS=at.numbers, BR=tile[0], BJ=tile[1], num_warps=4
    )
    return out


def fold(d: Tensor, at: Windows, like: Tensor) -> Tensor:
    """For each number of the images `like[K, B, H, W, C]`, the sum of `d[K, B * windows, at.row]` over its windows."""
    assert d.is_contiguous(), f"windows must be contiguous, not of strides {d.stride()}"
    out = torch.empty(like.shape, dtype=like.dtype, device=d.device)
    places, channels = like.shape[:4].numel(), like.shape[4]
    columns = _columns(channels)
    tile = (TILE // 2 // columns, columns)
    _fold[_grid(places, channels, tile)](
        d, out, places, **_sizes(at), KH=at.taps[0], BP=tile[0], BC=tile[1], num_warps=4
    )
    return out
