"""K models in fixed memory, laid out for training on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feduca.tasks.engines.optimisers import per_client
from feduca.tasks.models.layout import Layout

ALIGN = 16  # the small ones are filled up to a multiple of this many numbers
SMALL = 4096  # parameters with up to this many numbers lie, and are moved, together

Cut = Mapping[str, tuple[slice, slice]]  # rows and columns of filters [O, C, rows, columns]


@dataclass(frozen=True)
class Buffers:
    """K models' tensors by name, and those that are trained as a few dense ones: the large, and the small as one.

    The filters of a convolution lie as they are multiplied, `[K, rows, columns, inputs, outputs]`; their axes have the
    model's order all the same. Of filters in `cut` only these rows and columns are held. Large filters may have a copy in
    the type in which they are multiplied.
    """

    entries: dict[str, Tensor]
    large: tuple[str, ...]
    small: tuple[str, ...]
    joined: Tensor  # the small ones, zeros, and at the end one number more: [K, numbers]
    cut: Cut
    shadows: dict[str, Tensor]  # the copies of large filters

    @staticmethod
    def of(layout: Layout, clients: int, device: torch.device, cut: Cut, dtype: torch.dtype = torch.float32) -> Buffers:
        """Zeros for `clients` models of this layout, with copies of filters if `dtype` is not fp32."""
        trained = layout.names[: layout.trained]
        sizes = {
            name: _kept(torch.empty(shape, device="meta"), cut.get(name)).shape
            for name, shape in zip(layout.names, layout.shapes)
        }
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

        joined = zeros((max(ends.values(), default=0) // ALIGN + 1) * ALIGN)
        entries = {name: one(name, shape) for name, shape in sizes.items()}
        large = tuple(name for name in trained if name not in ends)
        copied = [name for name in large if len(sizes[name]) == 4 and dtype != torch.float32]
        shadows = {name: torch.zeros_like(entries[name], dtype=dtype) for name in copied}
        return Buffers(entries, large, small, joined, cut, shadows)

    def of_first(self, clients: int) -> Buffers:
        """The same memory, of the first so many clients."""
        entries, shadows = ({name: t[:clients] for name, t in own.items()} for own in (self.entries, self.shadows))
        return replace(self, entries=entries, joined=self.joined[:clients], shadows=shadows)

    def load(self, entries: Mapping[str, Tensor]) -> None:
        """Copy models into the buffers."""
        for name, buffer in self.entries.items():
            buffer.copy_(_kept(entries[name], self.cut.get(name)))
        for name, shadow in self.shadows.items():
            shadow.copy_(self.entries[name])

    @property
    def extra(self) -> Tensor:
        """A number per client that is trained with the others, by nothing but decay and the proximal pull."""
        return self.joined[:, -1]

    @property
    def dense(self) -> list[Tensor]:
        """The tensors that are trained."""
        return [*(self.entries[name].detach() for name in self.large), self.joined]

    def gradients(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        """Their gradients, in memory as they are."""
        small = [named[name].flatten(1) for name in self.small]
        nothing = torch.zeros_like(self.joined[:, sum(g.shape[1] for g in small) :])
        grads = [_as(self.seen(name), named[name]) for name in self.large]
        return [*grads, torch.cat([*small, nothing], 1)]

    def seen(self, name: str) -> Tensor:
        """What a model is computed with: the tensor, or its copy."""
        return self.shadows.get(name, self.entries[name])


def _kept(value: Tensor, cut: tuple[slice, slice] | None) -> Tensor:
    return value if cut is None else value[..., cut[0], cut[1]]


def _as(like: Tensor, value: Tensor) -> Tensor:
    """`value`, copied if it does not lie in memory as `like` does."""
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)


@dataclass(frozen=True)
class Unreached:
    """The parameters of K models that no example reaches, which a round of SGD moves along a line.

    They feel only weight decay and the proximal pull mu. With w = decay + mu and c = mu anchor / w, a step at rate lr makes
    p - c into (1 - lr w) (p - c), for all of them alike. So one number per client stands for them all: trained in their
    stead, the length of p - c shrinks as they do and adds as much to the norm that gradients are clipped by.
    """

    centre: dict[str, Tensor | float]  # c
    away: dict[str, Tensor]  # p - c at the start
    length: Tensor  # of p - c at the start, per client
    cut: Cut

    @staticmethod
    def of(
        models: Mapping[str, Tensor], anchor: Mapping[str, Tensor] | None, cut: Cut, decay: float, mu: float
    ) -> Unreached:
        """What is `cut` off the models, at the start of a round."""
        share = mu / (decay + mu) if anchor is not None and mu else 0.0
        centre = {name: share * anchor[name] if anchor is not None and share else 0.0 for name in cut}
        away = {name: models[name] - centre[name] for name in cut}
        squares = torch.zeros(len(next(iter(models.values()))), device=next(iter(models.values())).device)
        for name, value in away.items():
            square = value.square()
            _kept(square, cut[name]).zero_()
            squares += square.flatten(1).sum(1)
        return Unreached(centre, away, squares.sqrt(), cut)

    def after(self, length: Tensor, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole filters at the end, where the number has become `length[K]` and the trained parts are `kept`."""
        factor = torch.where(self.length > 0, length / self.length, 1.0)
        whole = {name: per_client(factor, value) * value + self.centre[name] for name, value in self.away.items()}
        for name, value in whole.items():
            _kept(value, self.cut[name]).copy_(kept[name])
        return whole
