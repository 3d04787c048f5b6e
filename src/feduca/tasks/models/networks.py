"""The models: each an ordinary `torch.nn.Module`, and each with a forward pass over K models at once.

`forward(x[B, ...])` is plain PyTorch and what the sequential engine runs. `stem` and `rest` take parameters `[K, ...]`
and inputs `[K, B, ...]`. The stem is the first linear map: it is affine in the parameters, so between two models its
output need not be computed again (engines use that for utility curves).

Dense weights are `[in, out]`, the layout in which batched products and their gradients run fastest.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feduca.errors import ConfigError

Params = Mapping[str, Tensor]


class StackedModel(nn.Module):
    """A module that can also run K sets of parameters at once. `first` is the name of the stem's layer."""

    first: str

    @property
    def coherent(self) -> bool:
        """Whether `forward` and the passes over K models are of one class: a subclass may have changed only the first."""
        order = type(self).__mro__
        place = {name: next(i for i, c in enumerate(order) if name in vars(c)) for name in ("forward", "stem", "rest")}
        return place["forward"] >= min(place["stem"], place["rest"])

    def runs_as(self, *kinds: type[StackedModel]) -> bool:
        """Whether the passes are those of one of these classes: what is written for a class is not for subclasses' own."""
        names = ("forward", "stem", "rest", "stacked")
        return any(isinstance(self, k) and all(getattr(type(self), n) is getattr(k, n) for n in names) for k in kinds)

    def after_stem(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that `rest` needs."""
        return [name for name in names if not name.startswith(f"{self.first}.")]

    def reached(self, shape: tuple[int, ...]) -> dict[str, tuple[slice, slice]]:
        """For filters `[O, C, rows, columns]`, by name, which rows and columns examples of this shape ever meet.

        Only those are named that are not met whole. On a GPU the passes below take such filters cut or whole.
        """
        return {}

    def stem(self, params: Params, x: Tensor) -> Tensor:
        """The first linear map: `x[K, B, ...]` to `[K, B', ...]`, affine in the parameters."""
        raise NotImplementedError

    def rest(self, params: Params, h: Tensor) -> Tensor:
        """From the stem's output to the model's, `[K, B, outputs]`."""
        raise NotImplementedError

    def stacked(self, params: Params, x: Tensor) -> Tensor:
        """The outputs of K models on their own inputs."""
        return self.rest(params, self.stem(params, x))


class Dense(nn.Module):
    """`x @ weight + bias` with PyTorch's usual initial values for a linear layer."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def dense(params: Params, name: str, x: Tensor) -> Tensor:
    """K dense layers at once: `x[K, B, in]` with the parameters called `name`."""
    return torch.baddbmm(params[f"{name}.bias"].unsqueeze(1), x, params[f"{name}.weight"])


class MLP(StackedModel):
    """A perceptron with ReLU; without hidden layers, logistic regression."""

    first = "layers.0"

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int):
        super().__init__()
        self.sizes = list(itertools.pairwise([inputs, *hidden, outputs]))
        self.layers = nn.ModuleList(Dense(a, b) for a, b in self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x

    def stem(self, params: Params, x: Tensor) -> Tensor:
        return dense(params, "layers.0", x.flatten(2))

    def rest(self, params: Params, h: Tensor) -> Tensor:
        for i in range(1, len(self.layers)):
            h = dense(params, f"layers.{i}", F.relu(h))
        return h


class CNN(StackedModel):
    """The paper's CNN: twice a 5 x 5 convolution of 64 filters with ReLU and 2 x 2 pooling, then a perceptron."""

    first = "conv1"
    kernel = 5

    def __init__(self, shape: tuple[int, ...], hidden: Sequence[int], outputs: int, filters: int = 64):
        super().__init__()
        channels, rows, columns = shape
        self.shape, self.filters = shape, filters
        self.conv1 = nn.Conv2d(channels, filters, self.kernel)
        self.conv2 = nn.Conv2d(filters, filters, self.kernel)
        for _ in range(2):
            rows, columns = (rows - self.kernel + 1) // 2, (columns - self.kernel + 1) // 2
        if rows < 1 or columns < 1:
            raise ConfigError(f"images of {shape[1]} x {shape[2]} are too small for the cnn: it needs 16 x 16 or more")
        sizes = [rows * columns * filters, *hidden, outputs]
        self.layers = nn.ModuleList(Dense(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(conv(x)), 2)
        x = x.movedim(1, 3).flatten(1)
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x

    def stem(self, params: Params, x: Tensor) -> Tensor:
        return x if kernels_for(x, self.filters) else convolutions(params, "conv1", x)

    def after_stem(self, names: Sequence[str]) -> list[str]:
        # On the GPU the first convolution is fused with what follows, so it is not shared between models.
        return list(names) if self.conv1.weight.is_cuda else super().after_stem(names)

    def rest(self, params: Params, h: Tensor) -> Tensor:
        if kernels := kernels_for(h, self.filters):
            h = h.movedim(2, 4)
            for name in ("conv1", "conv2"):
                h = kernels.layer(params[f"{name}.weight"], params[f"{name}.bias"], h)
        else:
            h = pooled(convolutions(params, "conv2", pooled(h))).movedim(2, 4)
        h = h.flatten(2)
        for i in range(len(self.layers)):
            h = dense(params, f"layers.{i}", F.relu(h) if i else h)
        return h


def convolutions(params: Params, name: str, x: Tensor) -> Tensor:
    """K convolutions `x[K, B, C, H, W]`, one after the other: each is large enough to fill a CPU."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    return torch.stack([F.conv2d(x[k], weight[k], bias[k]) for k in range(len(x))])


def pooled(x: Tensor) -> Tensor:
    """ReLU and 2 x 2 pooling of K batches of images."""
    return F.max_pool2d(F.relu(x).flatten(0, 1), 2).unflatten(0, x.shape[:2])


def kernels_for(x: Tensor, filters: int) -> ModuleType | None:
    """Our GPU kernels, where they can be used."""
    if not x.is_cuda or filters & (filters - 1) or filters < 16:
        return None
    return kernels_module()


def on_gpu(x: Tensor) -> bool:
    """Whether `x` lies where Triton's kernels run. (Tests that interpret them on a CPU say so here.)"""
    return x.is_cuda


@functools.cache
def kernels_module(name: str = "convolution_kernels") -> ModuleType | None:
    """The Triton kernels in the module called `name`, or None where Triton is not installed."""
    try:
        return importlib.import_module(f"feduca.tasks.engines.gpu.{name}")
    except ImportError:
        return None


def kernels_at(x: Tensor, name: str) -> ModuleType | None:
    """The same, or None where they cannot run on `x`."""
    return kernels_module(name) if on_gpu(x) else None
