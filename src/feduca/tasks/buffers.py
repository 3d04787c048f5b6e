"""K models in fixed memory, laid out for training on a GPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from feduca.tasks.layout import Layout

SMALL = 4096  # parameters with up to this many numbers lie, and are moved, together


@dataclass(frozen=True)
class Buffers:
    """K models' tensors by name, and those that are trained as a few dense ones: the large, and the small as one.

    The filters of a convolution lie as they are multiplied, `[K, rows, columns, inputs, outputs]`; their axes have the
    model's order all the same.
    """

    entries: dict[str, Tensor]
    large: tuple[str, ...]
    small: tuple[str, ...]
    joined: Tensor  # the small ones, [K, numbers]

    @staticmethod
    def of(layout: Layout, clients: int, device: torch.device) -> Buffers:
        """Zeros for `clients` models of this layout."""
        trained = layout.names[: layout.trained]
        sizes = dict(zip(layout.names, layout.shapes))
        small = tuple(name for name in trained if sizes[name].numel() <= SMALL)
        ends = dict(zip(small, itertools.accumulate(sizes[name].numel() for name in small)))

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(clients, *shape, dtype=torch.float32, device=device)

        def one(name: str, shape: torch.Size) -> Tensor:
            if name in ends:
                return joined[:, ends[name] - shape.numel() : ends[name]].view(clients, *shape)
            if len(shape) == 4:
                outputs, inputs, *kernel = shape
                return zeros(*kernel, inputs, outputs).permute(0, 4, 3, 1, 2)
            return zeros(*shape)

        joined = zeros(ends[small[-1]] if small else 0)
        entries = {name: one(name, shape) for name, shape in sizes.items()}
        return Buffers(entries, tuple(name for name in trained if name not in ends), small, joined)

    def load(self, entries: dict[str, Tensor]) -> None:
        """Copy models into the buffers."""
        for name, buffer in self.entries.items():
            buffer.copy_(entries[name])

    @property
    def dense(self) -> list[Tensor]:
        """The tensors that are trained."""
        return [*(self.entries[name].detach() for name in self.large), *([self.joined] if self.small else [])]

    def gradients(self, named: dict[str, Tensor]) -> list[Tensor]:
        """Their gradients, in memory as they are."""
        grads = [_as(self.entries[name], named[name]) for name in self.large]
        return [*grads, *([torch.cat([named[name].flatten(1) for name in self.small], 1)] if self.small else [])]


def _as(like: Tensor, value: Tensor) -> Tensor:
    """`value`, copied if it does not lie in memory as `like` does."""
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)
