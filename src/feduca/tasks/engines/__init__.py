"""Two engines with one contract: train K models, and compute outputs of K models.

`Sequential` is the reference: one client after the other with plain PyTorch (`functional_call`, `torch.optim`). It runs
any module. `Stacked` runs all clients along a leading axis, our own models natively and a user's through `vmap`; it hands
the work to a captured graph on a GPU (fused.py, graphs.py) and to compiled code on a CPU (cpu.py) where there is one. A
finished client leaves the stack while others still train, and padded examples weigh nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from feduca.core.rng import derive
from feduca.errors import ConfigError, RunError
from feduca.tasks.data.batches import Plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines import optimisers
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.engines.optimisers import Optimiser
from feduca.tasks.metrics import Criterion, objective
from feduca.tasks.models.layout import Layout
from feduca.tasks.models.networks import CNN, MLP, StackedModel, kernels_module
from feduca.types import LocalSpec

if TYPE_CHECKING:
    from feduca.tasks.engines.gpu.fused import Trainers


@dataclass(frozen=True)
class Keys:
    """Where a client's own randomness inside a model (dropout) comes from."""

    seeds: np.ndarray
    round: int
    clients: np.ndarray

    def seed(self, k: int) -> int:
        return derive(int(self.seeds[k]), "model", self.round, int(self.clients[k])) % 2**63


class Engine(Protocol):
    """What a task needs of an engine. `theta` is `[K, size]`; inputs and outputs carry K in front."""

    @property
    def module(self) -> nn.Module: ...

    def train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None, keys: Keys) -> Tensor: ...

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """`[K, B, outputs]` of `x[K, B, ...]`."""
        ...

    def between(self, start: Tensor, end: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
        """A function from `r[K, m]` to outputs `[K, m, B, outputs]` of `(1 - r) start + r end` on `x[K, B, ...]`."""
        ...


def draws(module: nn.Module, pool: Pool) -> bool:
    """Whether `module` draws random numbers in training: tried on two examples, since a dropout need not be a module."""
    device = pool.x.device

    def state() -> Tensor:
        return torch.cuda.get_rng_state(device) if pool.x.is_cuda else torch.get_rng_state()

    with _on_trial(module, pool) as entries, torch.no_grad():
        start = state()
        module.train()
        some = torch.arange(2, device=device) % len(pool.y)
        functional_call(module, {name: value.clone() for name, value in entries.items()}, (pool.examples(some),))
        return not torch.equal(start, state())


@contextmanager
def _on_trial(module: nn.Module, pool: Pool) -> Iterator[dict[str, Tensor]]:
    """The module's entries, to be copied; its mode and all random numbers are afterwards as if nothing had been tried."""
    before = module.training
    with torch.random.fork_rng(devices=[pool.x.device] if pool.x.is_cuda else []):
        try:
            yield {**dict(module.named_parameters()), **dict(module.named_buffers())}
        finally:
            module.train(before)


def mix(start: Tensor, end: Tensor, r: Tensor) -> Tensor:
    """`(1 - r) start + r end` for tensors `[K, ...]` and `r[K, m]`: `[K * m, ...]`."""
    shape = start.shape[1:]
    if start is end:
        return start.repeat_interleave(r.shape[1], 0)
    w = r.to(start.dtype).reshape(*r.shape, *[1] * len(shape))
    return ((1 - w) * start.unsqueeze(1) + w * end.unsqueeze(1)).reshape(-1, *shape)


def logits(outputs: Any) -> Any:
    """What a module answers: a tensor, or something whose `.logits` is one, as language models have it."""
    return getattr(outputs, "logits", outputs)


def answer(module: nn.Module, entries: dict[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of a module with these parameters and buffers."""
    return logits(functional_call(module, entries, (x,)))


@dataclass(frozen=True)
class Sequential:
    """One client after the other: the reference."""

    module: nn.Module
    layout: Layout
    pool: Pool
    criterion: Criterion

    def train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None, keys: Keys) -> Tensor:
        optimisers.check(spec)
        self.module.train()
        rows = [
            self._one(theta[k], k, plan, spec, None if anchor is None else anchor[k], keys) for k in range(len(theta))
        ]
        return torch.stack(rows)

    def _one(self, theta: Tensor, k: int, plan: Plan, spec: LocalSpec, anchor: Tensor | None, keys: Keys) -> Tensor:
        entries = {name: value.clone() for name, value in self.layout.unpack(theta).items()}
        params = [entries[name].requires_grad_() for name in self.layout.names[: self.layout.trained]]
        pull = None if anchor is None else self._trained(anchor)
        drift, free = (None if x is None else self._trained(x[k]) for x in (plan.drift, plan.free))
        lr = spec.lr if plan.rates is None else float(plan.rates[k])
        if spec.optimiser == "adam":
            optimiser = torch.optim.Adam(params, lr=lr, betas=optimisers.ADAM_BETAS, eps=optimisers.ADAM_EPSILON)
        else:
            optimiser = torch.optim.SGD(params, lr=lr, momentum=spec.momentum)
        devices = [self.pool.x.device] if self.pool.x.is_cuda else []
        # On a CPU, PyTorch's GroupNorm ends the process on images (channels last) that need no gradient themselves, as at the
        # start of a module or after frozen layers.
        norms = any(isinstance(module, nn.GroupNorm) for module in self.module.modules())
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(keys.seed(k))
            for index, sizes, augment in _steps(plan, self.pool.x.device):
                n = int(sizes[k])
                if not n:
                    break
                rows = index[k, :n]
                x = self.pool.examples(rows, None if augment is None else augment[k, :n])
                if norms and x.is_floating_point():
                    x.requires_grad_()
                outputs = answer(self.module, entries, x)
                loss = objective(self.criterion.loss(outputs, self.pool.targets(rows)).mean(), spec)
                optimiser.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for i, p in enumerate(params):
                        if p.grad is None:  # the outputs do not depend on it
                            p.grad = torch.zeros_like(p)
                        if pull is not None and spec.prox:
                            p.grad.add_(p - pull[i], alpha=spec.prox)
                        if drift is not None:
                            p.grad.add_(drift[i])
                        p.grad.add_(p, alpha=spec.weight_decay)
                        if free is not None:
                            p.grad.mul_(free[i])
                if spec.clip:
                    nn.utils.clip_grad_norm_(params, spec.clip)
                optimiser.step()
        return self.layout.pack({name: value.detach() for name, value in entries.items()})

    def _trained(self, theta: Tensor) -> list[Tensor]:
        """The trained parts of one flat vector."""
        return list(self.layout.unpack(theta).values())[: self.layout.trained]

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        self.module.eval()
        with torch.no_grad():
            return torch.stack([answer(self.module, self.layout.unpack(theta[k]), x[k]) for k in range(len(theta))])

    def between(self, start: Tensor, end: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
        def at(r: Tensor) -> Tensor:
            theta = mix(start, end, r)
            out = self.outputs(theta, x.repeat_interleave(r.shape[1], 0))
            return out.reshape(*r.shape, *out.shape[1:])

        return at


@dataclass(frozen=True)
class Stacked:
    """All clients at once along a leading axis.

    What a module draws in training (dropout) is drawn for all clients of a call together: a client's training then depends
    on the call it is in. In `Sequential` it depends on the client alone.
    """

    module: nn.Module
    layout: Layout
    pool: Pool
    criterion: Criterion
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # graphs that were captured

    @cached_property
    def native(self) -> StackedModel | None:
        """The module, where it is one of ours; a subclass with a `forward` of its own is a user's module like any other."""
        return self.module if isinstance(self.module, StackedModel) and self.module.coherent else None

    def _graphs(self, spec: LocalSpec) -> Trainers | AutogradTrainers | None:
        """A trainer that lives in a CUDA graph, where there is one for this work: without autograd if possible."""
        model = self.native
        if not (self.pool.x.is_cuda and model is not None and spec.optimiser == "sgd"):
            return None
        if isinstance(model, MLP | CNN) and kernels_module():
            from feduca.tasks.engines.gpu import fused

            if fused.fits(model, self.layout, self.criterion, spec):
                if "fused" not in self.kept:
                    self.kept["fused"] = fused.Trainers(model, self.layout, self.pool)
                return self.kept["fused"]
        if "autograd" not in self.kept:
            self.kept["autograd"] = AutogradTrainers(model, self.layout, self.pool, self.criterion)
        return self.kept["autograd"]

    def forward(self, entries: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs of K models; buffers in `entries` are updated in place in training mode."""
        if (model := self.native) is not None:
            return model.stacked(entries, x)
        return vmap(lambda e, b: answer(self.module, e, b), randomness="different")(entries, x)

    def train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None, keys: Keys) -> Tensor:
        optimisers.check(spec)
        if isinstance(model := self.native, MLP) and self.pool.x.device.type == "cpu":
            from feduca.tasks.engines import cpu as compiled  # numba, only where it is needed

            if compiled.fits(model, self.layout, self.pool, self.criterion, plan, spec):
                return compiled.train(model, self.pool, theta, plan, spec, anchor)
        if (order := plan.longest_first()) is None:
            return self._train(theta, plan, spec, anchor, keys)
        pull = None if anchor is None else anchor[order]
        return self._train(theta[order], plan.ordered(order), spec, pull, keys)[np.argsort(order)]

    def _train(self, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None, keys: Keys) -> Tensor:
        """The same for clients of whom those with the most steps come first."""
        if plan.is_plain and (trainers := self._graphs(spec)):
            return trainers.train(theta, plan, spec, anchor)
        self.module.train()
        views = self.layout.unpack(theta)
        entries = {name: value.clone(memory_format=torch.contiguous_format) for name, value in views.items()}
        trained = self.layout.names[: self.layout.trained]
        params = [entries[name].requires_grad_() for name in trained]
        pull, drift, free = (
            None if x is None else [self.layout.unpack(x)[name] for name in trained]
            for x in (anchor, plan.drift, plan.free)
        )
        rates = None if plan.rates is None else torch.as_tensor(plan.rates, dtype=torch.float32, device=theta.device)
        optimiser = Optimiser(spec, params, pull, lr=rates, drift=drift, free=free)
        devices = [self.pool.x.device] if self.pool.x.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(keys.seed(0))
            for first, last, clients in plan.stretches():
                optimiser = optimiser.of_first(clients)
                here = {name: value[:clients] for name, value in entries.items()} | dict(zip(trained, optimiser.params))
                self._by_autograd(here, _steps(plan, theta.device, slice(first, last), clients), optimiser)
        return self.layout.pack({name: value.detach() for name, value in entries.items()})

    def _by_autograd(self, entries: dict[str, Tensor], steps: Iterable[Step], optimiser: Optimiser) -> None:
        for index, sizes, augment in steps:
            if self.native is not None or (sizes == index.shape[1]).all():
                outputs = self.forward(entries, self.pool.examples(index, augment))
                mean, active = self._mean_losses(outputs, index, sizes)
            else:
                mean, active = self._size_by_size(entries, index, sizes, augment)
            loss = objective(mean, optimiser.spec).sum()
            grads = torch.autograd.grad(loss, optimiser.params, allow_unused=True, materialize_grads=True)
            optimiser.step(list(grads), active)

    def _mean_losses(self, outputs: Tensor, index: Tensor, sizes: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Mini-batch mean losses `[K]`, padding left out, and who still trains (None: everybody, with full batches)."""
        losses = self.criterion.loss(outputs.flatten(0, 1), self.pool.targets(index).flatten()).view(index.shape)
        if (sizes == index.shape[1]).all():
            return losses.mean(1), None
        count = torch.as_tensor(sizes, device=losses.device)
        real = torch.arange(index.shape[1], device=losses.device) < count[:, None]
        mean = torch.where(real, losses, 0.0).sum(1) / count.clamp(min=1)
        return mean, (count > 0).to(losses.dtype)

    def _size_by_size(
        self, entries: dict[str, Tensor], index: Tensor, sizes: np.ndarray, augment: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same for any module: clients with equally many examples at a time (a BatchNorm would see padding)."""
        mean = torch.zeros(len(index), device=index.device)
        for n in np.unique(sizes[sizes > 0]):
            who = torch.from_numpy(np.flatnonzero(sizes == n)).to(index.device)
            part = {name: value[who] for name, value in entries.items()}
            rows = index[who, :n]
            outputs = self.forward(part, self.pool.examples(rows, None if augment is None else augment[who, :n]))
            mean = mean.index_put((who,), self._mean_losses(outputs, rows, sizes[sizes == n])[0])
            for name in self.layout.names[self.layout.trained :]:
                entries[name][who] = part[name]
        return mean, torch.as_tensor(sizes > 0, dtype=torch.float32, device=index.device)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        self.module.eval()
        with torch.no_grad():
            return self.forward(self.layout.unpack(theta), x)

    def between(self, start: Tensor, end: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
        self.module.eval()
        first, last = self.layout.unpack(start), self.layout.unpack(end)
        model = self.native

        @torch.no_grad()
        def at_native(r: Tensor) -> Tensor:
            assert model is not None
            entries = {name: mix(first[name], last[name], r) for name in model.after_stem(self.layout.names)}
            out = model.rest(entries, mix(stems[0], stems[1], r))
            return out.reshape(*r.shape, *out.shape[1:])

        @torch.no_grad()
        def at(r: Tensor) -> Tensor:
            out = self.forward({n: mix(first[n], last[n], r) for n in first}, x.repeat_interleave(r.shape[1], 0))
            return out.reshape(*r.shape, *out.shape[1:])

        if model is None:
            return at
        with torch.no_grad():
            stems = model.stem(first, x), model.stem(last, x)
        return at_native


def unstackable(engine: Stacked) -> str | None:
    """Why K models of a user's cannot be computed at once; None where they can.

    Tried, not guessed: outputs and gradients of two models on two examples each, in training and in evaluation mode.
    """
    if engine.native is not None:
        return None
    try:
        _try(engine, 2, engine.forward)
    except Exception as error:  # whatever a module of the user's may raise
        return (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0][:160]
    return None


def least_batch(engine: Sequential | Stacked) -> int:
    """How many examples a mini-batch of a user's module must have: 2 where its batch norm fails on one."""
    norms = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in engine.module.modules())
    if not norms or (isinstance(engine, Stacked) and engine.native is not None):
        return 1
    try:
        _try(engine, 1, lambda entries, x: answer(engine.module, {n: e[0] for n, e in entries.items()}, x[0]))
    except ValueError:  # "Expected more than 1 value per channel when training"
        return 2
    return 1


def _try(engine: Sequential | Stacked, batch: int, forward: Callable[[dict[str, Tensor], Tensor], Tensor]) -> None:
    """Outputs of two copies of the module on `batch` examples, and gradients; leaves the module as it was."""
    pool, module = engine.pool, engine.module
    index = torch.zeros(2, batch, dtype=torch.int64, device=pool.x.device)
    index[:, -1] = len(pool.x) - 1
    with _on_trial(module, pool) as start, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a batching rule that PyTorch lacks, for instance
        for mode in (False, True):
            module.train(mode)
            entries = {name: value.detach().expand(2, *value.shape).clone() for name, value in start.items()}
            params = [entries[name].requires_grad_() for name in engine.layout.names[: engine.layout.trained]]
            outputs = forward(entries, pool.examples(index))
            torch.autograd.grad(outputs.float().sum(), params, allow_unused=True)


Step = tuple[Tensor, np.ndarray, Tensor | None]  # rows [K, B], how many are real [K], how they are augmented


def _steps(plan: Plan, device: torch.device, some: slice = slice(None), clients: int | None = None) -> Iterator[Step]:
    """These steps of the plan, of the first so many clients (None: all)."""
    index = torch.from_numpy(plan.index[some, :clients]).to(device)
    sizes = plan.sizes[some, :clients]
    augment = None if plan.augment is None else torch.from_numpy(plan.augment[some, :clients]).to(device)
    for s in range(len(sizes)):
        yield index[s], sizes[s], None if augment is None else augment[s]


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"engine.device is {device!r}: choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine.device is {device!r}, but PyTorch sees no CUDA device here: use --device cpu")


def out_of_memory(error: torch.OutOfMemoryError, chunk: int, batch_size: int | None = None) -> RunError:
    """The message for a GPU that is too small."""
    also = "" if batch_size is None else f", local.batch_size ({batch_size})"
    return RunError(
        f"out of GPU memory: lower engine.chunk ({chunk} examples at a time over all runs){also}, --lockstep or task.clients, "
        "or use engine.precision bf16 "
        f"({str(error).splitlines()[0][:120]})"
    )
