# pyright: reportMissingImports=false, reportIndexIssue=false
"""The Triton code of one convolution with ReLU and 2 x 2 pooling, forward and backward (convolution_kernels.py launches it)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def forward_kernel(
    x, w, bias, out, winner, w_client, bias_client, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1)
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    valid = q < B * PH * PW
    q = tl.minimum(q, B * PH * PW - 1)  # surplus places repeat the last one: loads need no mask
    image = (k * B + q // (PH * PW)).to(tl.int64)
    place = q % (PH * PW)
    corner = x + (image * (H * W) + (2 * (place // PW)) * W + 2 * (place % PW)) * C
    filters = w + k.to(tl.int64) * w_client
    o = tl.arange(0, OUT)
    j = tl.arange(0, BK)
    acc0 = tl.zeros((BQ, OUT), tl.float32)
    acc1 = tl.zeros((BQ, OUT), tl.float32)
    acc2 = tl.zeros((BQ, OUT), tl.float32)
    acc3 = tl.zeros((BQ, OUT), tl.float32)
    for start in range(0, TAPS, BK):
        if C == BK:  # one place of the filter at a time: one scalar offset
            at = corner[:, None] + (((start // C) // KW * W + (start // C) % KW) * C + j)[None, :]
        else:
            tap = start + j
            at = corner[:, None] + (((tap // C) // KW * W + (tap // C) % KW) * C + tap % C)[None, :]
        if TAPS % BK == 0:
            f = tl.load(filters + (start + j)[:, None] * OUT + o[None, :])
            a0 = tl.load(at)
            a1 = tl.load(at + C)
            a2 = tl.load(at + W * C)
            a3 = tl.load(at + (W * C + C))
        else:
            there = start + j < TAPS
            f = tl.load(filters + (start + j)[:, None] * OUT + o[None, :], mask=there[:, None], other=0.0)
            a0 = tl.load(at, mask=there[None, :], other=0.0)
            a1 = tl.load(at + C, mask=there[None, :], other=0.0)
            a2 = tl.load(at + W * C, mask=there[None, :], other=0.0)
            a3 = tl.load(at + (W * C + C), mask=there[None, :], other=0.0)
        acc0 = _dot(a0, f, acc0, PRECISION)
        acc1 = _dot(a1, f, acc1, PRECISION)
        acc2 = _dot(a2, f, acc2, PRECISION)
        acc3 = _dot(a3, f, acc3, PRECISION)
    best, which = acc0, tl.zeros((BQ, OUT), tl.int32)
    which = tl.where(acc1 > best, 1, which)
    best = tl.maximum(best, acc1)
    which = tl.where(acc2 > best, 2, which)
    best = tl.maximum(best, acc2)
    which = tl.where(acc3 > best, 3, which)
    best = tl.maximum(best, acc3) + tl.load(bias + k.to(tl.int64) * bias_client + o).to(tl.float32)[None, :]
    which = tl.where(best > 0, which, 4)
    to = (image * (PH * PW) + place)[:, None] * OUT + o[None, :]
    tl.store(out + to, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=valid[:, None])
    tl.store(winner + to, which.to(tl.uint8), mask=valid[:, None])


@triton.jit
def unpool_kernel(
    d, winner, out, bias_parts, B, K,
    PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    OUT: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The gradient at every place of the convolution's output, with a border of zeros; sums for the bias."""
    k = tl.program_id(1)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    valid = p < B * HP * WP
    image = (k * B + p // (HP * WP)).to(tl.int64)
    place = p % (HP * WP)
    y = place // WP - TOP
    z = place % WP - LEFT
    inside = valid & (y >= 0) & (y < 2 * PH) & (z >= 0) & (z < 2 * PW)
    o = tl.arange(0, OUT)
    at = (image * (PH * PW) + (y // 2) * PW + z // 2)[:, None] * OUT + o[None, :]
    g = tl.load(d + at, mask=inside[:, None], other=0.0)
    which = tl.load(winner + at, mask=inside[:, None], other=4)
    g = tl.where(which.to(tl.int32) == (y % 2 * 2 + z % 2)[:, None], g, tl.zeros_like(g))
    tl.store(out + (image * (HP * WP) + place)[:, None] * OUT + o[None, :], g, mask=valid[:, None])
    tl.store(bias_parts + (tl.program_id(0) * K + k) * OUT + o, tl.sum(g.to(tl.float32), 0))


@triton.jit
def filter_masked_kernel(
    x, d, winner, parts, bias_parts, B, K, EACH,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
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
    tl.store(parts + (row.to(tl.int64) * TAPS + tap)[:, None] * OUT + o[None, :], acc, mask=there[:, None])
    if tl.program_id(0) == 0:
        tl.store(bias_parts + row * OUT + o, bias)


@triton.jit
def filter_unpooled_kernel(
    x, dense, parts, B, K, EACH,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1)
    split = tl.program_id(2)
    tap = tl.program_id(0) * BK + tl.arange(0, BK)
    there = tap < TAPS
    offset = ((tap // C) // KW * W + (tap // C) % KW) * C + tap % C
    o = tl.arange(0, OUT)
    count = B * (4 * PH * PW)
    acc = tl.zeros((BK, OUT), tl.float32)
    for start in range(0, EACH, BQ):
        q = split * EACH + start + tl.arange(0, BQ)
        valid = q < count
        q = tl.minimum(q, count - 1)
        image = (k * B + q // (4 * PH * PW)).to(tl.int64)
        y = q % (4 * PH * PW) // (2 * PW)
        z = q % (2 * PW)
        at = x + ((image * (H * W) + y * W + z) * C)[:, None] + offset[None, :]
        a = tl.load(at) if TAPS % BK == 0 else tl.load(at, mask=there[None, :], other=0.0)
        to = (image * (HP * WP) + (y + TOP) * WP + z + LEFT)[:, None] * OUT + o[None, :]
        g = tl.load(dense + to, mask=valid[:, None], other=0.0)
        acc = _dot(tl.trans(a), g, acc, PRECISION)
    row = (split * K + k).to(tl.int64)
    tl.store(parts + (row * TAPS + tap)[:, None] * OUT + o[None, :], acc, mask=there[:, None])


@triton.jit
def fold_kernel(
    parts, bias_parts, gradient, bias_gradient, client, bias_client, K, SPLITS, BIAS_ROWS,
    SIZE: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Partial sums, added in order, into the places of filters and bias in the gradient."""
    k = tl.program_id(1)
    s = tl.arange(0, ROWS)
    if tl.program_id(0) * BLOCK < SIZE:
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, SPLITS, ROWS):
            at = ((start + s) * K + k).to(tl.int64)[:, None] * SIZE + i[None, :]
            total += tl.sum(tl.load(parts + at, mask=(start + s < SPLITS)[:, None] & (i < SIZE)[None, :], other=0.0), 0)
        tl.store(gradient + k.to(tl.int64) * client + i, total.to(gradient.dtype.element_ty), mask=i < SIZE)
    else:
        o = tl.arange(0, OUT)
        bias = tl.zeros((OUT,), tl.float32)
        for start in range(0, BIAS_ROWS, ROWS):
            at = ((start + s) * K + k)[:, None] * OUT + o[None, :]
            bias += tl.sum(tl.load(bias_parts + at, mask=(start + s < BIAS_ROWS)[:, None], other=0.0), 0)
        tl.store(bias_gradient + k.to(tl.int64) * bias_client + o, bias.to(bias_gradient.dtype.element_ty))


@triton.jit
def input_masked_kernel(
    d, winner, w, out, w_client, B,
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
        f = tl.load(w + k.to(tl.int64) * w_client + (tap * C + c)[None, :] * OUT + o[:, None])
        acc = _dot(g, f, acc, PRECISION)
    to = (image * (H * W) + row * W + column)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit
def input_unpooled_kernel(
    dense, w, out, w_client, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program takes one row of the images, a few columns of it, all images: so most taps that only meet the border
    (near an edge, most of them) are skipped for the whole program. Without that, half the products are with zeros."""
    HP: tl.constexpr = H + KH - 1
    WP: tl.constexpr = W + KW - 1
    k = tl.program_id(1)
    tiles = tl.cdiv(W * B, BM)
    row = tl.program_id(0) // tiles
    begin = tl.program_id(0) % tiles * BM
    m = begin + tl.arange(0, BM)
    valid = m < W * B
    m = tl.minimum(m, W * B - 1)
    column = m // B
    image = (k * B + m % B).to(tl.int64)
    # tap (i, j) meets the gradient at (row - i, column - j), which is there for 0 <= row - i < 2 PH, likewise columns
    top = tl.maximum(row - (2 * PH - 1), 0)
    high = tl.minimum(row, KH - 1) - top + 1
    left = tl.maximum(begin // B - (2 * PW - 1), 0)
    wide = tl.minimum(tl.minimum(begin + BM - 1, W * B - 1) // B, KW - 1) - left + 1
    corner = dense + (image * (HP * WP) + (row + KH - 1) * WP + column + KW - 1) * OUT
    filters = w + k.to(tl.int64) * w_client
    o = tl.arange(0, OUT)
    c = tl.arange(0, C)
    acc = tl.zeros((BM, C), tl.float32)
    for t in range(high * wide):
        i = top + t // wide
        j = left + t % wide
        g = tl.load((corner - (i * WP + j) * OUT)[:, None] + o[None, :])
        f = tl.load(filters + ((i * KW + j) * C + c)[:, None] * OUT + o[None, :])
        acc = _dot(g, tl.trans(f), acc, PRECISION)
    to = (image * (H * W) + row * W + column)[:, None] * C + c[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=valid[:, None])
