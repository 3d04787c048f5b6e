"""Training on a GPU without autograd: a whole step of all clients as some thirty kernels in a CUDA graph.

For our MLP and CNN under plain SGD. Everything a step needs lies in fixed buffers: parameters as one padded vector per
client, the round's batches, the number of the step itself. So a graph captured once is replayed for every step of every
round, and the host does nothing in between. Of silos of unequal size the longest stand first, and the stack shrinks (capture.py).

Under bf16, products are taken in bf16 of a copy of the parameters; the parameters themselves, and every sum, stay fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from feduca.tasks.data.batches import Plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines.gpu import convolution_kernels as kernels
from feduca.tasks.engines.gpu import step_kernels
from feduca.tasks.engines.gpu.cache import KEPT, cached
from feduca.tasks.engines.gpu.capture import Branch, Graphs
from feduca.tasks.engines.gpu.convolution_kernels import ConvShape
from feduca.tasks.engines.optimisers import hyper
from feduca.tasks.metrics import Criterion, is_plain
from feduca.tasks.models.layout import Layout
from feduca.tasks.models.networks import CNN, MLP
from feduca.types import LocalSpec

ALIGN = 64  # parameters start at multiples of this many numbers, as fast products want
UNROLL = 16  # steps per graph, at most ...
PARTS = 40  # ... and where silos are of unequal size, no more than of so many parts of a round: between graphs a stack may shrink
NARROW = 32  # numbers in a filter's row up to which the first convolution reads it as one place


def fits(module: object, layout: Layout, criterion: Criterion, spec: LocalSpec) -> bool:
    """Whether this training can be done here."""
    return (
        (isinstance(module, MLP) or (isinstance(module, CNN) and module.filters in (16, 32, 64, 128)))
        and module.runs_as(MLP, CNN)
        and layout.only(Network.of(module).slots)
        and is_plain(criterion, spec)
        and not (spec.augment and isinstance(module, MLP))  # images that are flat already cannot be moved
    )


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Slot:
    """One parameter in the padded vector: where it is, its padded shape, and how it is turned to lie there."""

    name: str
    place: int
    shape: tuple[int, ...]  # padded
    real: tuple[slice, ...]  # the part that is not padding
    turn: tuple[int, ...] | None = None  # axes of the model's tensor in the order they have here
    joined: tuple[int, int] | None = None  # the second and third of these axes, where they are one axis here

    def view(self, flat: Tensor) -> Tensor:
        size = math.prod(self.shape)
        return flat[:, self.place : self.place + size].unflatten(1, self.shape)


@dataclass(frozen=True)
class Network:
    """Convolutions, then dense layers, with their places in the padded vector."""

    convs: tuple[tuple[str, ConvShape], ...]
    dense: tuple[str, ...]
    slots: dict[str, Slot]
    size: int
    classes: int
    image: tuple[int, ...] = ()  # rows, columns and channels of an example, where there are convolutions
    across: int = 1  # columns of the image that lie side by side in the first convolution's input

    @staticmethod
    def of(module: MLP | CNN) -> Network:
        """The network of a module. Zero padding stays zero: it gets no gradient and decay keeps it there."""
        slots: dict[str, Slot] = {}
        end = 0

        def add(
            name: str,
            shape: tuple[int, ...],
            real: tuple[int, ...],
            turn: tuple[int, ...] | None = None,
            joined: tuple[int, int] | None = None,
        ) -> None:
            nonlocal end
            slots[name] = Slot(name, end, shape, tuple(slice(0, n) for n in real), turn, joined)
            end += _up(math.prod(shape), ALIGN)

        convs, image, across = [], (), 1
        if isinstance(module, CNN):
            channels, rows, columns = module.shape
            image = (rows, columns, channels)
            k, outputs = module.kernel, module.filters
            for name in ("conv1", "conv2"):
                if k * channels <= NARROW:  # few channels: a row of the filter is one place with more of them
                    across = k
                    wide = max(16, 1 << (k * channels - 1).bit_length())
                    shape = ConvShape(rows, columns - k + 1, wide, outputs, k, across=1)
                    add(f"{name}.weight", (k, wide, outputs), (k, k * channels, outputs), (2, 3, 1, 0), (k, channels))
                else:
                    shape = ConvShape(rows, columns, channels, outputs, k)
                    add(f"{name}.weight", (k, k, channels, outputs), (k, k, channels, outputs), (2, 3, 1, 0))
                add(f"{name}.bias", (outputs,), (outputs,))
                convs.append((name, shape))
                (rows, columns), channels = shape.pooled, outputs
        dense = []
        for i, layer in enumerate(module.layers):
            n, m = layer.weight.shape  # type: ignore[union-attr]
            add(f"layers.{i}.weight", (_up(n, 8), _up(m, 8)), (n, m))  # type: ignore[arg-type]
            add(f"layers.{i}.bias", (_up(m, 8),), (m,))  # type: ignore[arg-type]
            dense.append(f"layers.{i}")
        classes = module.layers[-1].bias.shape[0]  # type: ignore[union-attr]
        return Network(tuple(convs), tuple(dense), slots, end, int(classes), image, across)

    def load(self, flat: Tensor, entries: dict[str, Tensor]) -> None:
        """Copy a model's tensors `[K, ...]` into the padded vectors."""
        for name, slot in self.slots.items():
            value = entries[name]
            value = value if slot.turn is None else value.permute(0, *(axis + 1 for axis in slot.turn))
            value = value if slot.joined is None else value.flatten(2, 3)
            slot.view(flat)[(slice(None), *slot.real)] = value

    def save(self, flat: Tensor) -> dict[str, Tensor]:
        """A model's tensors out of the padded vectors."""
        entries = {}
        for name, slot in self.slots.items():
            value = slot.view(flat)[(slice(None), *slot.real)]
            value = value if slot.joined is None else value.unflatten(2, slot.joined)
            if slot.turn is not None:
                back = [slot.turn.index(axis) + 1 for axis in range(len(slot.turn))]
                value = value.permute(0, *back)
            entries[name] = value
        return entries


def prepare(pool: Pool, width: int, dtype: torch.dtype) -> Tensor:
    """All examples as a perceptron's first layer wants them: normalised, in the type of the products, padded to `width`."""
    out = torch.zeros(len(pool.y), width, dtype=dtype, device=pool.x.device)
    for some in torch.arange(len(out), device=out.device).split(10_000):
        x = pool.examples(some).flatten(1)
        out[some, : x.shape[1]] = x.to(dtype)
    return out


class Trainer:
    """The buffers and the graph of one kind of training: K clients, a batch size, a number of steps."""

    def __init__(
        self,
        network: Network,
        examples: Tensor,
        labels: Tensor,
        *,
        clients: int,
        batch: int,
        steps: int,
        augment: bool,
        clip: bool,
        prox: bool,
        precision: str,
        unroll: int = UNROLL,
    ):
        device, dtype = examples.device, examples.dtype
        self.network, self.examples, self.labels = network, examples, labels
        self.steps, self.clip, self.precision = steps, clip, precision

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.flat = empty(clients, network.size)
        self.anchor = empty(clients, network.size) if prox else None
        self.shadow = empty(clients, network.size, dtype=dtype) if dtype != torch.float32 else None
        self.gradient = empty(clients, network.size, dtype=dtype)
        self.parts = empty(clients, step_kernels.blocks(self.flat))
        self.hyper = empty(clients, 4)
        self.index = empty(steps, clients, batch, dtype=torch.int32)
        self.codes = empty(steps, clients, batch, dtype=torch.int32) if augment else None
        self.sizes = empty(steps, clients, dtype=torch.int32)
        self.step_number = empty(1, dtype=torch.int32)
        first = network.convs[0][1] if network.convs else None
        sizes = examples.shape[1:] if first is None else (first.rows, first.columns, first.channels)
        self.x = empty(clients, batch, *sizes, dtype=dtype)
        self.y = empty(clients, batch, dtype=torch.int64)
        self.unroll = max(n for n in range(1, unroll + 1) if steps % n == 0)
        self.branch = Branch(examples.is_cuda)
        self.graphs = Graphs(self.step, self.step_number, self.unroll)

    def run(
        self, entries: dict[str, Tensor], plan: Plan, spec: LocalSpec, anchor: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """Train the models `entries` by the plan."""
        steps = self.graphs.prepare(plan)
        self.network.load(self.flat, entries)
        if self.anchor is not None and anchor is not None:
            self.network.load(self.anchor, anchor)
        if self.shadow is not None:
            self.shadow.copy_(self.flat)
        self.hyper.copy_(hyper(spec, plan.rates, len(self.hyper)))
        self.index.copy_(torch.from_numpy(plan.index))
        self.sizes.copy_(torch.from_numpy(plan.sizes))
        if self.codes is not None and plan.augment is not None:
            self.codes.copy_(torch.from_numpy(plan.augment))
        self.graphs.replay(steps)
        return self.network.save(self.flat)

    def step(self, clients: int | None = None) -> None:
        """One step of the first so many clients (None: all), on the fixed buffers."""
        net, first = self.network, slice(0, clients)
        weights = (self.flat if self.shadow is None else self.shadow)[first]
        x, y = self.x[first], self.y[first]
        step_kernels.gather(self.examples, self.labels, self.index, self.codes, self.step_number, x, y, net.across)
        self._backward(weights, *self._forward(net, weights, x))
        self.branch.join()
        step_kernels.descend(
            [self.gradient[first]], [self.flat[first]], self.hyper[first], self.sizes, self.step_number, self.parts[first],
            clip=self.clip, anchors=None if self.anchor is None else [self.anchor[first]],
            shadows=[None if self.shadow is None else self.shadow[first]],
        )  # fmt: skip
        self.step_number.add_(1)

    def _view(self, name: str, flat: Tensor) -> Tensor:
        """A parameter in `flat`: a bias `[K, M]`, or a matrix `[K, N, M]` (of filters, one row per tap and channel)."""
        slot = self.network.slots[name]
        return slot.view(flat) if slot.turn is None else slot.view(flat).flatten(1, -2)

    def _forward(self, net: Network, weights: Tensor, h: Tensor) -> tuple[list, list[Tensor], Tensor]:
        """What the convolutions need to go back, the inputs of the dense layers, and the outputs less the last bias."""
        convolved = []
        for name, shape in net.convs:
            bias, matrix = (self._view(f"{name}.{part}", weights) for part in ("bias", "weight"))
            out, winner = kernels.convolve(h, matrix, bias, shape, self.precision)
            convolved.append((name, shape, h, matrix, winner))
            h = out
        h = h.flatten(2)
        inputs = []
        for i, name in enumerate(net.dense):
            inputs.append(h)
            h = torch.bmm(h, self._view(f"{name}.weight", weights))
            if i + 1 < len(net.dense):
                h = step_kernels.add_rectify(h, self._view(f"{name}.bias", weights))
        return convolved, inputs, h

    def _backward(self, weights: Tensor, convolved: list, inputs: list[Tensor], z: Tensor) -> None:
        net, gradient, y = self.network, self.gradient[: len(z)], self.y[: len(z)]
        last = f"{net.dense[-1]}.bias"
        d = step_kernels.loss_gradient(
            z, self._view(last, weights), y, self.sizes, self.step_number, net.classes, self._view(last, gradient)
        )
        for i in reversed(range(len(net.dense))):
            name = f"{net.dense[i]}.weight"
            torch.bmm(inputs[i].transpose(1, 2), d, out=self._view(name, gradient))
            if i or convolved:
                d = torch.bmm(d, self._view(name, weights).transpose(1, 2))
            if i:
                d = step_kernels.rectify_gradient(d, inputs[i], self._view(f"{net.dense[i - 1]}.bias", gradient))
        for i in reversed(range(len(convolved))):
            name, shape, x, matrix, winner = convolved[i]
            into = (self._view(f"{name}.weight", gradient), self._view(f"{name}.bias", gradient))
            below = kernels.backpropagate(
                x, d.view(winner.shape), winner, matrix, shape, self.precision,
                into=into, below=i > 0, beside=self.branch,
            )  # fmt: skip
            d = d if below is None else below


class Trainers:
    """The trainers of one task, made as they are needed; few are kept (cache.py)."""

    def __init__(self, module: MLP | CNN, layout: Layout, pool: Pool, limit: int = KEPT):
        self.network, self.layout, self.pool, self.limit = Network.of(module), layout, pool, limit
        self.made: dict[tuple, Trainer] = {}

    def train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None) -> Tensor:
        """Train `theta[K, size]` by the plan; returns new models."""
        half = torch.is_autocast_enabled(theta.device.type)
        dtype = torch.bfloat16 if half else torch.float32
        precision = kernels.dot_precision(dtype)
        steps, clients, batch = plan.index.shape
        prox = bool(spec.prox) and anchor is not None
        key = (clients, batch, steps, plan.augment is not None, bool(spec.clip), prox, precision, dtype)
        with torch.autocast(theta.device.type, enabled=False), torch.no_grad():
            examples = self._examples(dtype)

            def make() -> Trainer:
                return Trainer(
                    self.network, examples, self.pool.y,
                    clients=clients, batch=batch, steps=steps, augment=plan.augment is not None,
                    clip=bool(spec.clip), prox=prox, precision=precision,
                    unroll=UNROLL if len(plan.stretches()) == 1 else max(1, min(UNROLL, steps // PARTS)),
                )  # fmt: skip

            entries = self.layout.unpack(theta)
            pull = None if anchor is None or not prox else self.layout.unpack(anchor)
            return self.layout.pack(cached(self.made, key, make, self.limit).run(entries, plan, spec, pull))

    def _examples(self, dtype: torch.dtype) -> Tensor:
        """All examples as the first layer wants them, made once and shared by all tasks over the same pool."""
        if self.network.convs:
            images = self.pool.images(dtype, limit=math.inf)
            assert images is not None, "convolutions are of images"
            return images
        if dtype not in self.pool.prepared:
            width = self.network.slots[f"{self.network.dense[0]}.weight"].shape[0]
            self.pool.prepared[dtype] = prepare(self.pool, width, dtype)
        return self.pool.prepared[dtype]
