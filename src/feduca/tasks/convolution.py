"""K convolutions at once as batched matrix products (im2col), images channels last: `x[K, B, H, W, C]`.

Libraries run K different convolutions as one grouped convolution, which is slow; a batched product of the unfolded
image with the filters is not. The gradient at the input is again such a product, of the outputs' gradient, spread by
the stride and padded, with the filters turned round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unfold(x: Tensor, kernel: int, stride: int) -> Tensor:
    """All windows of `x[K, B, H, W, C]` as rows: `[K, B * Ho * Wo, kernel * kernel * C]`."""
    windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # [K, B, Ho, Wo, C, k, k]
    K, B, rows, columns, C = windows.shape[:5]
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(K, B * rows * columns, kernel * kernel * C)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, kernel: int, stride: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, w)
        ctx.kernel, ctx.stride = kernel, stride
        rows, columns = ((n - kernel) // stride + 1 for n in x.shape[2:4])
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
        spread = d.new_zeros(K, B, H + kernel - 1, W + kernel - 1, outputs)
        to_row, to_column = (slice(kernel - 1, kernel - 1 + stride * n, stride) for n in (rows, columns))
        spread[:, :, to_row, to_column] = d
        turned = w.view(K, kernel, kernel, C, outputs).flip(1, 2).transpose(3, 4).reshape(K, -1, C)
        return torch.bmm(unfold(spread, kernel, 1), turned).view(x.shape), gw, None, None


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """K convolutions without bias: `x[K, B, H, W, C]` with `weight[K, O, C, k, k]`, in bf16 under autocast."""
    outputs, channels, kernel = weight.shape[1:4]
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), kernel * kernel * channels, outputs)
    if torch.is_autocast_enabled(x.device.type):
        x, matrix = x.to(torch.bfloat16), matrix.to(torch.bfloat16)
    if padding:
        x = F.pad(x, (0, 0, padding, padding, padding, padding))
    with torch.autocast(x.device.type, enabled=False):
        out = _Convolution.apply(x.contiguous(), matrix, kernel, stride)
    assert isinstance(out, Tensor)
    return out
