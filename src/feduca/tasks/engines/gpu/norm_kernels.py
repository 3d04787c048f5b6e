# pyright: reportMissingImports=false, reportIndexIssue=false
"""GroupNorm of K networks at once on a GPU (Triton), with what follows it in a ResNet: a residual and a ReLU.

Images are `[K, B, H, W, C]`. One program holds one group of one image: it reads it once, and going back once more.
Statistics and sums are fp32, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

LIMIT = 16384  # numbers that one program can hold


@triton.jit
def _forward(
    x, other, scale, shift, out, saved, scale_client, shift_client, B, epsilon,
    P: tl.constexpr, C: tl.constexpr, GROUPS: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
    PP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = C // GROUPS
    image = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    k = (image // B).to(tl.int64)
    p = tl.arange(0, PP)
    c = tl.arange(0, GP)
    there = (p < P)[:, None] & (c < G)[None, :]
    at = image.to(tl.int64) * (P * C) + (p[:, None] * C + (group * G + c)[None, :])
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(value, 1), 0) / (P * G)
    value = tl.where(there, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(tl.sum(value * value, 1), 0) / (P * G) + epsilon)
    tl.store(saved + tl.program_id(0) * 2, mean)
    tl.store(saved + tl.program_id(0) * 2 + 1, rstd)
    s = tl.load(scale + k * scale_client + group * G + c, mask=c < G, other=0.0)
    b = tl.load(shift + k * shift_client + group * G + c, mask=c < G, other=0.0)
    value = value * rstd * s[None, :] + b[None, :]
    if ADD:
        value += tl.load(other + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # as PyTorch's, not a number stays so
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _backward(
    d, x, out, scale, saved, dx, dother, scale_parts, shift_parts, scale_client, B,
    P: tl.constexpr, C: tl.constexpr, GROUPS: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
    PP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """With n = (x - mean) rstd and w = d scale: dx = rstd (w - mean(w) - n mean(w n)); per image, sums of d n and d."""
    G: tl.constexpr = C // GROUPS
    image = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    k = (image // B).to(tl.int64)
    p = tl.arange(0, PP)
    c = tl.arange(0, GP)
    there = (p < P)[:, None] & (c < G)[None, :]
    at = image.to(tl.int64) * (P * C) + (p[:, None] * C + (group * G + c)[None, :])
    g = tl.load(d + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(out + at, mask=there, other=0.0).to(tl.float32) <= 0, 0.0, g)
        if ADD:
            tl.store(dother + at, g.to(dother.dtype.element_ty), mask=there)
    rstd = tl.load(saved + tl.program_id(0) * 2 + 1)
    normal = (tl.load(x + at, mask=there, other=0.0).to(tl.float32) - tl.load(saved + tl.program_id(0) * 2)) * rstd
    to = image.to(tl.int64) * C + group * G + c
    tl.store(scale_parts + to, tl.sum(g * normal, 0), mask=c < G)
    tl.store(shift_parts + to, tl.sum(g, 0), mask=c < G)
    g *= tl.load(scale + k * scale_client + group * G + c, mask=c < G, other=0.0)[None, :]
    mean = tl.sum(tl.sum(g, 1), 0) / (P * G)
    along = tl.sum(tl.sum(g * normal, 1), 0) / (P * G)
    tl.store(dx + at, (rstd * (g - mean - normal * along)).to(dx.dtype.element_ty), mask=there)


def _tile(x: Tensor, groups: int) -> tuple[int, int]:
    """Places and channels that a program holds: powers of two, with room for one group of an image."""
    places, channels = x.shape[2] * x.shape[3], x.shape[4] // groups
    return max(2, triton.next_power_of_2(places)), max(2, triton.next_power_of_2(channels))


def _options(x: Tensor, groups: int) -> dict[str, int]:
    places, channels = _tile(x, groups)
    warps = min(16, max(1, places * channels // 512))
    return {
        "P": x.shape[2] * x.shape[3], "C": x.shape[4], "GROUPS": groups, "PP": places, "GP": channels,
        "num_warps": warps,
    }  # fmt: skip


def fits(x: Tensor, groups: int) -> bool:
    """Whether a group of one of these images can be held by one program."""
    places, channels = _tile(x, groups)
    return places * channels <= LIMIT


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx, x: Tensor, scale: Tensor, shift: Tensor, other: Tensor | None, relu: bool, groups: int, epsilon: float
    ) -> Tensor:
        images = x.shape[0] * x.shape[1]
        out = torch.empty_like(x)
        saved = torch.empty(images * groups, 2, dtype=torch.float32, device=x.device)
        add = x if other is None else other
        _forward[(images * groups,)](
            x, add, scale, shift, out, saved, scale.stride(0), shift.stride(0), x.shape[1], epsilon,
            ADD=other is not None, RELU=relu, **_options(x, groups),
        )  # fmt: skip
        ctx.save_for_backward(x, scale, saved, *((out,) if relu else ()))
        ctx.groups, ctx.relu, ctx.other = groups, relu, None if other is None else other.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d: Tensor):  # type: ignore[override]
        x, scale, saved, *rest = ctx.saved_tensors
        K, B, C = x.shape[0], x.shape[1], x.shape[4]
        d, dx = d.contiguous(), torch.empty_like(x)
        # Without a ReLU the residual's gradient is d itself.
        dother = torch.empty_like(x, dtype=ctx.other) if ctx.relu and ctx.other is not None else d
        parts = torch.empty(2, K, B, C, dtype=torch.float32, device=x.device)
        _backward[(K * B * ctx.groups,)](
            d, x, rest[0] if ctx.relu else x, scale, saved, dx, dother, *parts, scale.stride(0), B,
            ADD=ctx.other is not None, RELU=ctx.relu, **_options(x, ctx.groups),
        )  # fmt: skip
        dscale, dshift = parts.sum(2)
        return dx, dscale, dshift, None if ctx.other is None else dother, None, None, None


def norm(
    x: Tensor, scale: Tensor, shift: Tensor, other: Tensor | None, *, relu: bool, groups: int, epsilon: float
) -> Tensor:
    """`relu(norm(x) scale + shift + other)` of `x[K, B, H, W, C]`; `scale` and `shift` are `[K, C]`, `other` as `x`."""
    assert fits(x, groups), f"a group of images {tuple(x.shape[2:])} has more than {LIMIT} numbers"
    assert x.shape[4] % groups == 0, f"{x.shape[4]} channels are not {groups} equal groups"
    assert scale.stride(1) == shift.stride(1) == 1, "the channels of scale and shift must lie side by side"
    assert scale.dtype == shift.dtype == torch.float32, f"scale and shift must be fp32, not {scale.dtype}"
    if other is not None:
        assert other.shape == x.shape, f"the residual is {tuple(other.shape)}, not {tuple(x.shape)}"
        other = other.contiguous()
    out = _Norm.apply(x.contiguous(), scale, shift, other, relu, groups, epsilon)
    assert isinstance(out, Tensor)
    return out
