"""K convolutions at once as batched matrix products (im2col), images channels last: `x[K, B, H, W, C]`.

Libraries run K different convolutions as one grouped convolution, which is slow; a batched product of the unfolded
image with the filters is not. The gradient at the input is again such a product, of the outputs' gradient, spread by
the stride and padded, with the filters turned round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def unfold(x: Tensor, kernel: Size, stride: int) -> Tensor:
    """All windows of `x[K, B, H, W, C]` as rows: `[K, B * Ho * Wo, rows * columns of the kernel * C]`."""
    windows = x.unfold(2, kernel[0], stride).unfold(3, kernel[1], stride)  # [K, B, Ho, Wo, C, rows, columns]
    K, B, rows, columns, C = windows.shape[:5]
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(K, B * rows * columns, kernel[0] * kernel[1] * C)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, kernel: Size, stride: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, w)
        ctx.kernel, ctx.stride = kernel, stride
        rows, columns = ((n - k) // stride + 1 for n, k in zip(x.shape[2:4], kernel))
        return torch.bmm(unfold(x, kernel, stride), w).view(*x.shape[:2], rows, columns, w.shape[2])

    @staticmethod
    def backward(ctx, d: Tensor):  # type: ignore[override]
        x, w = ctx.saved_tensors
        kernel, stride = ctx.kernel, ctx.stride
        K, B, rows, columns, outputs = d.shape
        gw = torch.bmm(unfold(x, kernel, stride).transpose(1, 2), d.reshape(K, -1, outputs))
        if not ctx.needs_input_grad[0]:
            return None, gw, None, None
        H, W, C = x.shape[2:]
        if kernel == (1, 1) and stride == 1:  # nothing to spread or to turn
            return torch.bmm(d.reshape(K, -1, outputs), w.transpose(1, 2)).view(x.shape), gw, None, None
        spread = d.new_zeros(K, B, H + kernel[0] - 1, W + kernel[1] - 1, outputs)
        to_row, to_column = (slice(k - 1, k - 1 + stride * n, stride) for k, n in zip(kernel, (rows, columns)))
        spread[:, :, to_row, to_column] = d
        turned = w.view(K, *kernel, C, outputs).flip(1, 2).transpose(3, 4).reshape(K, -1, C)
        return torch.bmm(unfold(spread, kernel, 1), turned).view(x.shape), gw, None, None


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


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """K convolutions without bias: `x[K, B, H, W, C]` with `weight[K, O, C, k, k]`, in bf16 under autocast."""
    (rows, above), (columns, left) = (live(n, weight.shape[3], stride, padding) for n in x.shape[2:4])
    weight = weight[:, :, :, rows, columns]
    outputs, channels, *kernel = weight.shape[1:]
    if torch.is_autocast_enabled(x.device.type):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), kernel[0] * kernel[1] * channels, outputs)
    if any((*above, *left)):
        x = F.pad(x, (0, 0, *left, *above))
    with torch.autocast(x.device.type, enabled=False):
        out = _Convolution.apply(x.contiguous(), matrix, (kernel[0], kernel[1]), stride)
    assert isinstance(out, Tensor)
    return out
