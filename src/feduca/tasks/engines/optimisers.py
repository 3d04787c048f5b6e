"""One optimiser step for K models at once: every tensor carries a leading client axis.

The order is that of the usual PyTorch recipe: gradient, plus the proximal pull and a drift, plus weight decay, then the clip by
the norm over all of a client's parameters, then momentum or Adam.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from feduca.errors import ConfigError
from feduca.types import LocalSpec

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_

OPTIMISERS = ("sgd", "adam")


def check(spec: LocalSpec) -> None:
    """Refuse what no engine can do."""
    if spec.optimiser not in OPTIMISERS:
        raise ConfigError(f"local.optimiser is {spec.optimiser!r}: choose sgd or adam")
    if spec.optimiser != "sgd" and spec.momentum:
        raise ConfigError(f"local.momentum is {spec.momentum} with adam: momentum belongs to sgd; set it to 0")
    if not spec.lr >= 0:
        raise ConfigError(f"local.lr is {spec.lr}: a learning rate is a number of at least 0")


def hyper(spec: LocalSpec, rates: np.ndarray | None, clients: int) -> Tensor:
    """What a step on a GPU reads from memory: learning rate, decay, clip and mu of every client, `[K, 4]`."""
    numbers = torch.tensor([[spec.lr, spec.weight_decay, spec.clip, spec.prox]]).repeat(clients, 1)
    if rates is not None:
        numbers[:, 0] = torch.as_tensor(rates)
    return numbers


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """`value[K]` shaped to multiply `like[K, ...]`."""
    return value.view(-1, *[1] * (like.dim() - 1))


def norms(grads: list[Tensor]) -> Tensor:
    """The Euclidean norm over all of a client's gradients, `[K]`."""
    each = [g if g.dim() > 1 else g[:, None] for g in grads]  # of a scalar: no axes to sum over would mean all
    return torch.stack([torch.linalg.vector_norm(g, dim=tuple(range(1, g.dim()))) for g in each]).norm(dim=0)


@dataclass
class Optimiser:
    """The optimiser of one call of training; its state dies with the call, as a client's does between rounds."""

    spec: LocalSpec
    params: list[Tensor]
    anchor: list[Tensor] | None = None
    state: list[list[Tensor]] = field(default_factory=list)
    steps: int = 0
    drift: list[Tensor] | None = None  # added to every gradient
    free: list[Tensor] | None = None  # what every gradient is multiplied by: 0 where nothing moves
    lr: Tensor | None = None  # on the device, where it changes under a captured graph; else the spec's

    def of_first(self, clients: int) -> Optimiser:
        """The same for the first so many clients; what moves lies where it lay."""
        if clients == len(self.params[0]):
            return self

        def cut(tensors: list[Tensor] | None) -> list[Tensor] | None:
            return None if tensors is None else [t[:clients] for t in tensors]

        params = [p.detach()[:clients].requires_grad_() for p in self.params]
        state = [[t[:clients] for t in one] for one in self.state]
        lr = None if self.lr is None else self.lr[:clients]
        anchor, drift, free = (cut(x) for x in (self.anchor, self.drift, self.free))
        return replace(self, params=params, anchor=anchor, state=state, drift=drift, free=free, lr=lr)

    @torch.no_grad()
    def step(self, grads: list[Tensor], active: Tensor | None) -> None:
        """Move the parameters; clients whose `active[K]` is 0 stay where they are (None: all move)."""
        spec = self.spec
        if self.anchor is not None and spec.prox:
            for p, g, a in zip(self.params, grads, self.anchor):
                g.add_(p - a, alpha=spec.prox)
        if self.drift is not None:
            for g, d in zip(grads, self.drift):
                g.add_(d)
        if spec.weight_decay:
            for p, g in zip(self.params, grads):
                g.add_(p, alpha=spec.weight_decay)
        if self.free is not None:
            for g, f in zip(grads, self.free):
                g.mul_(f)
        scale = active
        if spec.clip:
            scale = (spec.clip / (norms(grads) + CLIP_EPSILON)).clamp_(max=1.0)
            if spec.momentum or spec.optimiser == "adam":  # their state must see the clipped gradient
                for g in grads:
                    g.mul_(per_client(scale, g))
                scale = active
            elif active is not None:
                scale = scale * active
        if self.lr is not None:
            scale = self.lr.expand(len(self.params[0])) if scale is None else scale * self.lr
        for p, move in zip(self.params, self._direction(grads)):
            if self.lr is not None and scale is not None:
                p.addcmul_(move, per_client(scale, move), value=-1)
            elif scale is None:
                p.add_(move, alpha=-spec.lr)
            else:
                p.addcmul_(move, per_client(scale, move), value=-spec.lr)

    def _direction(self, grads: list[Tensor]) -> list[Tensor]:
        self.steps += 1
        if self.spec.optimiser == "adam":
            b1, b2 = ADAM_BETAS
            first, second = self._state(0), self._state(1)
            moves = []
            for m, v, g in zip(first, second, grads):
                m.lerp_(g, 1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)
                root = (v / (1 - b2**self.steps)).sqrt_().add_(ADAM_EPSILON)
                moves.append((m / root).div_(1 - b1**self.steps))
            return moves
        if self.spec.momentum:
            velocity = self._state(0)
            for v, g in zip(velocity, grads):
                v.mul_(self.spec.momentum).add_(g)
            return velocity
        return grads

    def _state(self, which: int) -> list[Tensor]:
        while len(self.state) <= which:
            self.state.append([torch.zeros_like(p) for p in self.params])
        return self.state[which]
