"""K convolutions at once as batched matrix products (im2col), images channels last: `x[K, B, H, W, C]`.

Libraries run K different convolutions as one grouped convolution, which is slow; a batched product of all windows of the
images with the filters is not. Going back, a product gives the gradient at every number of every window, and those of
one number of the image are added up. On a GPU the windows are laid out and added up again by one kernel each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from feduca.tasks.models.networks import kernels_at

ALIGN = 8  # a window's row has a multiple of this many numbers, as fast products want


def live(size: int, kernel: int, stride: int, padding: int) -> tuple[slice, tuple[int, int]]:
    """Along one axis: the taps of the kernel that ever meet the image, and the padding before and after that they need.

    A 3 x 3 kernel over an image of one pixel is its middle tap. The other eight, three quarters of a ResNet-18 on 32 x 32
    pictures, would only multiply zeros.
    """
    last = (size + 2 * padding - kernel) // stride * stride  # where the last window begins, in the padded image
    taps = slice(max(0, padding - last), min(kernel, size + padding))
    if taps.start >= taps.stop:  # windows that miss the image altogether
        taps = slice(0, kernel)
    before = padding - taps.start
    return taps, (before, last + taps.stop - taps.start - size - before)


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution lie on images `[rows, columns, channels]`; pairs are down and across."""

    image: tuple[int, int, int]
    live: tuple[slice, slice]  # the filters' taps that meet the image
    pad: tuple[tuple[int, int], tuple[int, int]]  # zeros they need before and after it
    stride: int

    @staticmethod
    def of(image: tuple[int, int, int], kernel: tuple[int, int], stride: int, padding: int) -> Windows:
        """The windows of a convolution with these sizes."""
        (rows, above), (columns, left) = (live(n, k, stride, padding) for n, k in zip(image, kernel))
        return Windows(image, (rows, columns), (above, left), stride)

    @property
    def taps(self) -> tuple[int, int]:
        """Taps in a window."""
        rows, columns = self.live
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def count(self) -> tuple[int, int]:
        """How many windows there are: the size of the output."""
        high, wide = ((n + sum(pad) - taps) // self.stride + 1 for n, pad, taps in zip(self.image, self.pad, self.taps))
        return high, wide

    @property
    def numbers(self) -> int:
        """Numbers in a window."""
        return math.prod(self.taps) * self.image[2]

    @property
    def row(self) -> int:
        """Numbers in a window's row, with the zeros that fill it up."""
        return -(-self.numbers // ALIGN) * ALIGN

    @property
    def trivial(self) -> bool:
        """Whether the windows, one after the other, are the images as they lie in memory."""
        if any(before for before, _ in self.pad) or self.row != self.numbers:
            return False
        each = self.taps == (1, 1) and self.count == self.image[:2]  # a window per place
        return each or (self.count == (1, 1) and self.taps == self.image[:2])  # or one for all of it


def unfold(x: Tensor, at: Windows, dtype: torch.dtype) -> Tensor:
    """All windows of `x[K, B, H, W, C]` as rows, `[K, B * windows, at.row]`."""
    if at.trivial:
        return x.to(dtype).reshape(len(x), -1, at.row)
    if (fast := kernels_at(x, "window_kernels")) and fast.fits(x, dtype):
        return fast.unfold(x, at, dtype)
    above, left = at.pad
    windows = F.pad(x.to(dtype), (0, 0, *left, *above))
    for axis, taps in zip((2, 3), at.taps):
        windows = windows.unfold(axis, taps, at.stride)  # [K, B, high, wide, C, rows, columns] after both
    windows = windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, at.numbers)
    return F.pad(windows, (0, at.row - at.numbers))


def fold(d: Tensor, at: Windows, like: Tensor) -> Tensor:
    """For each number of the images `like[K, B, H, W, C]`, the sum of `d[K, B * windows, at.row]` over its windows."""
    if at.trivial:
        return d.reshape(like.shape).to(like.dtype)
    if (fast := kernels_at(d, "window_kernels")) and fast.fits(like, d.dtype):
        return fast.fold(d, at, like)
    K, B, H, W, C = like.shape
    (above, below), (left, right) = at.pad
    out = d.new_zeros(K, B, H + above + max(0, below), W + left + max(0, right), C)
    high, wide = at.count
    parts = d[:, :, : at.numbers].reshape(K, B, high, wide, *at.taps, C)
    for i in range(at.taps[0]):
        for j in range(at.taps[1]):
            down, across = (slice(t, t + at.stride * n, at.stride) for t, n in zip((i, j), at.count))
            out[:, :, down, across] += parts[:, :, :, :, i, j]
    return out[:, :, above : above + H, left : left + W].to(like.dtype)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, at: Windows, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        K, outputs = weight.shape[:2]
        columns = unfold(x, at, dtype)
        taps = _taps(weight, at)
        if (
            taps.dtype == dtype and taps.is_contiguous() and at.row == at.numbers
        ):  # it lies in memory as the matrix would
            matrix = taps.view(K, at.row, outputs)
        else:
            empty = torch.empty if at.row == at.numbers else torch.zeros
            matrix = empty(K, at.row, outputs, dtype=dtype, device=x.device)
            _filters(matrix, at).copy_(taps)
        ctx.save_for_backward(columns, matrix, x, weight)
        ctx.at = at
        return torch.bmm(columns, matrix).view(*x.shape[:2], *at.count, outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, d: Tensor):  # type: ignore[override]
        columns, matrix, x, weight = ctx.saved_tensors
        at: Windows = ctx.at
        d = d.reshape(len(d), -1, d.shape[4])
        gx = gw = None
        if ctx.needs_input_grad[1]:
            product = _filters(torch.bmm(columns.transpose(1, 2), d), at)
            gw = product.permute(0, 4, 3, 1, 2)
            if gw.dtype != weight.dtype or gw.shape != weight.shape or gw.stride() != weight.stride():
                gw = torch.empty_like(weight) if gw.shape == weight.shape else torch.zeros_like(weight)
                _taps(gw, at).copy_(product)  # in memory as the weight itself
        if ctx.needs_input_grad[0]:
            gx = fold(torch.bmm(d, matrix.transpose(1, 2)), at, x)
        return gx, gw, None, None


def _taps(weight: Tensor, at: Windows) -> Tensor:
    """The taps of `weight[K, O, C, k, k]` that meet the image, in the order of a window: `[K, rows, columns, C, O]`."""
    if weight.shape[3:] != at.taps:
        weight = weight[:, :, :, at.live[0], at.live[1]]
    return weight.permute(0, 3, 4, 2, 1)


def _filters(matrix: Tensor, at: Windows) -> Tensor:
    """Those taps in the matrix `[K, at.row, O]` that windows are multiplied with."""
    return matrix[:, : at.numbers].unflatten(1, (*at.taps, at.image[2]))


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0, kernel: int | None = None) -> Tensor:
    """K convolutions without bias: `x[K, B, H, W, C]` with `weight[K, O, C, k, k]`, in bf16 under autocast.

    Of filters with `kernel` rows and columns, `weight` may hold only the taps that meet the images.
    """
    rows, columns, channels = x.shape[2:]
    whole = (weight.shape[3], weight.shape[4]) if kernel is None else (kernel, kernel)
    at = Windows.of((rows, columns, channels), whole, stride, padding)
    assert weight.shape[3:] in (whole, at.taps), f"filters are {tuple(weight.shape[3:])}, neither {whole} nor {at.taps}"
    dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
    with torch.autocast(x.device.type, enabled=False):
        out = _Convolution.apply(x.contiguous(), weight, at, dtype)
    assert isinstance(out, Tensor)
    return out
