"""All examples of a task on one device, and how a batch is made of them.

Images stay 8-bit until they are gathered and are kept rows x columns x channels; models see float
`[K, B, channels, rows, columns]` (a view, channels last in memory).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feduca.errors import DataError

CROP_PAD = 4


READY_BYTES = 2**30  # no normalised copy of pools that would take more than this


@dataclass(frozen=True)
class Pool:
    """Examples `x[n, ...]` with targets `y[n]`; for images, the mean and deviation of the channels."""

    x: Tensor
    y: Tensor
    mean: Tensor | None = None  # [channels], of the 0..255 scale
    std: Tensor | None = None
    prepared: dict[Any, Tensor] = field(default_factory=dict, compare=False, repr=False)  # what trainers made of x

    @staticmethod
    def of(
        x: np.ndarray,
        y: np.ndarray,
        *,
        mean: np.ndarray | None = None,
        std: np.ndarray | None = None,
        device: str = "cpu",
    ) -> Pool:
        """Put examples on `device`. `mean` and `std` (on the 0..1 scale) are those of 8-bit images' channels."""
        if len(x) != len(y):
            raise DataError(f"{len(x)} examples but {len(y)} labels: every example needs one label")
        if x.dtype == np.uint8 and (mean is None or std is None):
            mean, std = np.zeros(x.shape[-1]), np.ones(x.shape[-1])
        keep = x.dtype == np.uint8 or np.issubdtype(x.dtype, np.integer)
        x = x if x.dtype == np.uint8 else x.astype(np.int64 if keep else np.float32)
        y = y.astype(np.int64 if np.issubdtype(y.dtype, np.integer) else np.float32)

        def scale(value: np.ndarray | None) -> Tensor | None:
            return (
                None
                if value is None
                else torch.as_tensor(255.0 * np.asarray(value), dtype=torch.float32, device=device)
            )

        return Pool(
            torch.from_numpy(np.require(x, requirements=["C", "W"])).to(
                device
            ),  # what was read from a file may be read-only
            torch.from_numpy(np.require(y, requirements=["C", "W"])).to(device),
            scale(mean),
            scale(std),
        )

    @property
    def is_image(self) -> bool:
        return self.x.dim() == 4

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape a model sees for one example."""
        shape = tuple(self.x.shape[1:])
        return (shape[2], shape[0], shape[1]) if self.is_image else shape

    def examples(self, index: Tensor, augment: Tensor | None = None) -> Tensor:
        """The inputs at `index[..., B]` as a model sees them, `[..., B, *example_shape]`."""
        lead = index.shape
        x = self.x.index_select(0, index.reshape(-1))
        if self.mean is not None and self.std is not None:
            x = x.to(torch.float32).sub_(self.mean).div_(self.std)
        if not self.is_image:
            return x.reshape(*lead, *x.shape[1:])
        if augment is not None:
            x = flip_and_crop(x, augment.reshape(-1))
        return x.reshape(*lead, *x.shape[1:]).movedim(-1, -3)

    def ready(self) -> Tensor | None:
        """All inputs as a perceptron sees them, `[n, features]`, normalised once; None where that would take too much memory."""
        if self.mean is None and not self.is_image:
            return self.x.flatten(1)
        if "ready" not in self.prepared and 4 * self.x.numel() <= READY_BYTES:
            everything = self.examples(torch.arange(len(self.x), device=self.x.device))
            self.prepared["ready"] = everything.flatten(1).contiguous()
        return self.prepared.get("ready")

    def images(self, dtype: torch.dtype, limit: float = READY_BYTES) -> Tensor | None:
        """All images normalised, `[n, rows, columns, channels]`; None without images or where they take more than `limit`."""
        key = ("images", dtype)
        if key not in self.prepared and self.is_image and dtype.itemsize * self.x.numel() <= limit:
            ready = torch.empty(self.x.shape, dtype=dtype, device=self.x.device)
            for some in torch.arange(len(ready), device=ready.device).split(10_000):
                ready[some] = self.examples(some).movedim(1, 3).to(dtype)
            self.prepared[key] = ready
        return self.prepared.get(key)

    def targets(self, index: Tensor) -> Tensor:
        return self.y.index_select(0, index.reshape(-1)).reshape(index.shape)


def flip_and_crop(x: Tensor, code: Tensor) -> Tensor:
    """Mirror half of the images `x[n, rows, columns, channels]`; of half, keep a window moved by up to 4 pixels.

    `code[n]` says which (see batches.AUGMENTATIONS). What moves in from outside is 0, the mean colour.
    """
    rows, columns = x.shape[1], x.shape[2]
    flip, crop = code % 2 == 1, (code // 2) % 2 == 1
    still = torch.full_like(code, CROP_PAD)
    down = torch.where(crop, (code // 4) % 9, still)
    right = torch.where(crop, code // 36, still)
    padded = torch.nn.functional.pad(x, (0, 0, CROP_PAD, CROP_PAD, CROP_PAD, CROP_PAD))
    r = torch.arange(rows, device=x.device)
    c = torch.arange(columns, device=x.device)
    c = torch.where(flip[:, None], columns - 1 - c, c)
    n = torch.arange(len(x), device=x.device)
    return padded[n[:, None, None], (down[:, None] + r)[:, :, None], (right[:, None] + c)[:, None, :]]
