"""Training on a GPU by autograd, captured once in a CUDA graph: for our models that `fused` does not know.

A step of a stacked ResNet or LSTM is hundreds of small kernels; launched one by one from Python they would leave the
GPU idle. As in `fused`, all that changes between steps and rounds lies in fixed buffers. Where Triton is there, plain SGD
and the gathering of pictures are its kernels (step_kernels.py), and so are a ResNet's norms and windows and an LSTM's words.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from feduca.tasks.data.batches import Plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines.gpu.buffers import Buffers, Unreached
from feduca.tasks.engines.gpu.cache import KEPT, cached
from feduca.tasks.engines.gpu.capture import Graphs
from feduca.tasks.engines.optimisers import Optimiser, hyper
from feduca.tasks.metrics import Criterion, objective
from feduca.tasks.models.layout import Layout
from feduca.tasks.models.networks import StackedModel, kernels_at
from feduca.types import LocalSpec


class AutogradTrainer:
    """The buffers and the graph of one kind of training: K clients, a batch size, a number of steps, an optimiser."""

    def __init__(
        self,
        module: StackedModel,
        layout: Layout,
        pool: Pool,
        criterion: Criterion,
        spec: LocalSpec,
        *,
        clients: int,
        batch: int,
        steps: int,
        augment: bool,
        prox: bool,
    ):
        device = pool.x.device
        self.module, self.layout, self.pool, self.criterion, self.spec = module, layout, pool, criterion, spec

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.kernels = step_kernels(pool, spec)
        self.trained = layout.names[: layout.trained]
        reached = module.reached(pool.example_shape) if self.kernels else {}
        # Frozen filters stay whole: what is cut off is moved at the end by decay and the proximal pull.
        self.cut = {name: cut for name, cut in reached.items() if name in self.trained}
        half = self.kernels is not None and torch.is_autocast_enabled(device.type)
        dtype = torch.bfloat16 if half else torch.float32
        self.models = Buffers.of(layout, clients, device, self.cut, dtype)
        params = [self.models.seen(name).requires_grad_() for name in self.trained]
        self.anchor = Buffers.of(layout, clients, device, self.cut) if prox else None
        self.hyper = zeros(clients, 4, dtype=torch.float32)
        if self.kernels:
            blocks = sum(self.kernels.blocks(p) for p in self.models.dense)
            self.parts = zeros(clients, blocks, dtype=torch.float32)
        pull = None if self.anchor is None else [self.anchor.entries[name] for name in self.trained]
        self.optimiser = Optimiser(spec, params, pull, lr=self.hyper[:, 0])
        self.index = zeros(steps, clients, batch)
        self.codes = zeros(steps, clients, batch) if augment else None
        self.sizes = zeros(steps, clients)
        self.step_number = zeros(1)
        self.images = pool.images(dtype) if self.kernels else None
        if self.images is not None:
            self.x = zeros(clients, batch, *self.images.shape[1:], dtype=dtype)
            self.y = zeros(clients, batch, dtype=pool.y.dtype)
        self.graphs = Graphs(self.step, self.step_number)

    def run(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None) -> Tensor:
        """Train the models `theta[K, size]` by the plan."""
        steps = self.graphs.prepare(plan)
        with torch.no_grad():
            start = self.layout.unpack(theta)
            pull = None if self.anchor is None or anchor is None else self.layout.unpack(anchor)
            self.models.load(start)
            if self.anchor is not None and pull is not None:
                self.anchor.load(pull)
            unreached = Unreached.of(start, pull, self.cut, spec.weight_decay, spec.prox)
            self.models.extra.copy_(unreached.length)
            for states in self.optimiser.state:
                for state in states:
                    state.zero_()
            self.hyper.copy_(hyper(spec, plan.rates, len(self.hyper)))
            self.index.copy_(torch.from_numpy(plan.index))
            self.sizes.copy_(torch.from_numpy(plan.sizes))
            if self.codes is not None and plan.augment is not None:
                self.codes.copy_(torch.from_numpy(plan.augment))
        self.graphs.replay(steps)
        with torch.no_grad():
            trained = self.models.entries
            return self.layout.pack({**trained, **unreached.after(self.models.extra, trained)})

    def step(self, clients: int) -> None:
        """One step of the first so many clients on the fixed buffers, without a word from the host."""
        with torch.no_grad():
            models, optimiser = self.models.of_first(clients), self.optimiser.of_first(clients)
        seen = {name: models.seen(name) for name in self.layout.names} | dict(zip(self.trained, optimiser.params))
        x, y = self._batch(clients)
        count = self.sizes.index_select(0, self.step_number).squeeze(0)[:clients]
        losses = self.criterion.loss(self.module.stacked(seen, x).flatten(0, 1), y.flatten()).view(y.shape)
        real = torch.arange(y.shape[1], device=y.device) < count[:, None]
        mean = torch.where(real, losses, 0.0).sum(1) / count.clamp(min=1)
        loss = objective(mean, self.spec).sum()
        grads = torch.autograd.grad(loss, optimiser.params, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if self.kernels:
                self.kernels.descend(
                    models.gradients(dict(zip(self.trained, grads))), models.dense,
                    self.hyper[:clients], self.sizes, self.step_number, self.parts[:clients],
                    clip=bool(self.spec.clip), anchors=None if self.anchor is None else self.anchor.of_first(clients).dense,
                    shadows=[*map(models.shadows.get, models.large), None],
                )  # fmt: skip
            else:
                optimiser.step(list(grads), (count > 0).to(torch.float32))
            self.step_number.add_(1)

    def _batch(self, clients: int) -> tuple[Tensor, Tensor]:
        """The examples of this step as the module sees them, and their targets."""
        if self.kernels and self.images is not None:
            x, y = self.x[:clients], self.y[:clients]
            self.kernels.gather(self.images, self.pool.y, self.index, self.codes, self.step_number, x, y)
            return x.movedim(-1, -3), y
        index = self.index.index_select(0, self.step_number).squeeze(0)[:clients]
        codes = None if self.codes is None else self.codes.index_select(0, self.step_number).squeeze(0)[:clients]
        return self.pool.examples(index, codes), self.pool.targets(index)


def step_kernels(pool: Pool, spec: LocalSpec) -> ModuleType | None:
    """Kernels that do the optimiser's step, where there are any for it."""
    return None if spec.momentum or spec.optimiser != "sgd" else kernels_at(pool.x, "step_kernels")


class AutogradTrainers:
    """The trainers of one task, made as they are needed; few are kept (cache.py)."""

    def __init__(self, module: StackedModel, layout: Layout, pool: Pool, criterion: Criterion, limit: int = KEPT):
        self.parts = (module, layout, pool, criterion)
        self.limit = limit
        self.made: dict[tuple, AutogradTrainer] = {}

    def train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None) -> Tensor:
        """Train `theta[K, size]` by the plan; returns new models."""
        steps, clients, batch = plan.index.shape
        prox = bool(spec.prox) and anchor is not None
        fixed = (spec.momentum, spec.objective, spec.bound, bool(spec.clip), prox)
        if not step_kernels(self.parts[2], spec):  # the numbers themselves are in the graph
            fixed = (*fixed, spec.weight_decay, spec.clip, spec.prox if prox else 0.0)
        half = torch.is_autocast_enabled(theta.device.type)
        key = (clients, batch, steps, plan.augment is not None, fixed, half, torch.backends.cuda.matmul.allow_tf32)

        def make() -> AutogradTrainer:
            augment = plan.augment is not None
            return AutogradTrainer(
                *self.parts, spec, clients=clients, batch=batch, steps=steps, augment=augment, prox=prox
            )

        return cached(self.made, key, make, self.limit).run(theta, plan, spec, anchor)
