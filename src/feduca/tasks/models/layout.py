"""A module's parameters and buffers as one flat vector `theta`, or `[K, size]` for K of them.

What is trained comes first. The tail, which aggregation may treat differently, are parameters that are frozen
(`requires_grad` is False) and buffers (a BatchNorm's running statistics).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of everything in `theta`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    places: tuple[int, ...]  # where each entry starts, and last the end
    trained: int  # how many of the entries are trained

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """The layout of `module`: the trained parameters in their own order, the frozen ones, then buffers."""
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        entries = {**trained, **dict(module.named_parameters()), **dict(module.named_buffers())}
        places = [0]
        for tensor in entries.values():
            places.append(places[-1] + tensor.numel())
        return Layout(
            names=tuple(entries),
            shapes=tuple(tensor.shape for tensor in entries.values()),
            dtypes=tuple(tensor.dtype for tensor in entries.values()),
            places=tuple(places),
            trained=len(trained),
        )

    def only(self, names: Iterable[str]) -> bool:
        """Whether theta holds these entries in this order, all of them trained, and nothing else."""
        return self.names == tuple(names) and self.trained == len(self.names)

    @property
    def parameters(self) -> int:
        """Entries of theta that are trained."""
        return self.places[self.trained]

    @property
    def size(self) -> int:
        """All entries of theta."""
        return self.places[-1]

    def unpack(self, theta: Tensor) -> dict[str, Tensor]:
        """Everything by name, shaped `[..., *shape]`: views of `theta` where the type allows."""
        lead = theta.shape[:-1]
        return {
            name: theta[..., a:b].reshape(lead + shape).to(dtype)
            for name, shape, dtype, a, b in zip(self.names, self.shapes, self.dtypes, self.places, self.places[1:])
        }

    def pack(self, entries: dict[str, Tensor]) -> Tensor:
        """The flat vector(s) of everything in `entries`, which may carry a leading axis."""
        first = entries[self.names[0]]
        lead = first.shape[: first.dim() - len(self.shapes[0])]
        return torch.cat([entries[name].reshape(*lead, -1).to(torch.float32) for name in self.names], dim=-1)
