"""Training that hides single examples (DP-SGD, Abadi et al. 2016): K silos at once, on any device by the same code.

In every step each of a silo's n examples is drawn with the chance q = min(1, batch_size / n), by lots of their own: that is what
the accountant reckons with, and no permutation is it. Each drawn example's gradient is shortened to the norm `clip`; their sum
gets Gaussian noise of the deviation `noise * clip` on every parameter and is divided by q n, which is the same whoever was drawn.
What follows (the proximal pull, weight decay, momentum, Adam) sees no examples.

Gradients of single examples come from `vmap(grad)`; of a perceptron from its inputs and errors, layer by layer, where they need
not exist one by one; of a module that cannot be mapped, from one pass each.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from feduca.core import secret
from feduca.core.rng import derive, stream
from feduca.errors import ConfigError
from feduca.tasks.data.batches import AUGMENTATIONS
from feduca.tasks.engines import Sequential, Stacked, answer, optimisers
from feduca.tasks.engines.optimisers import Optimiser, per_client
from feduca.tasks.models.networks import MLP
from feduca.types import Array, Ints, LocalSpec, Private

if TYPE_CHECKING:
    from feduca.tasks.task import TorchTask

log = logging.getLogger("feduca")

ROOM = {"cpu": 2**25, "cuda": 2**29}  # numbers in single gradients that exist at a time
FAR = 1e24  # a squared length of inputs beyond which a product with small errors is not measured well
MIXING = (nn.modules.batchnorm._BatchNorm,)  # layers in which one example's output depends on the others

Entries = dict[str, Tensor]
Sums = Callable[[Entries, Tensor, Tensor, Tensor, float], list[Tensor]]


def train_private(
    task: TorchTask,
    theta: Array,
    clients: Ints,
    spec: LocalSpec,
    round: int,
    seed: int | Ints,
    private: Private,
    anchor: Array | None = None,
) -> Tensor:
    """Local training of `theta[K, size]` by `clients[K]` that hides single examples."""
    clients = task._clients(clients)
    theta = task._models(theta, len(clients))
    assert isinstance(task.engine, Sequential | Stacked)
    check(task.engine, spec, task.settings.precision)
    if anchor is not None:
        anchor = task._tensor(anchor)
        anchor = anchor.expand(len(clients), -1) if anchor.dim() == 1 else anchor
    seeds = np.broadcast_to(np.asarray(seed, dtype=np.int64), clients.shape)
    own = [task.members[k].client for k in clients]
    rows = [task.members[k].rows["train"] for k in clients]
    lots = [Lots(int(s), round, int(k), private.secret, task.pool.x.device) for s, k in zip(seeds, own)]
    with task._computing(spec.batch_size):
        return trained(task.engine, theta, rows, lots, spec, private, anchor)


def check(engine: Sequential | Stacked, spec: LocalSpec, precision: str) -> None:
    """Refuse what cannot be clipped example by example."""
    optimisers.check(spec)
    kind = type(engine.module).__name__
    if any(isinstance(part, MIXING) for part in engine.module.modules()):
        raise ConfigError(
            f"privacy.dp clips the gradient of every example, and {kind}'s batch norm mixes examples; use group norm, another"
            " model, or privacy.dp = 'off'"
        )
    if any(getattr(part, "track_running_stats", False) for part in engine.module.modules()):
        raise ConfigError(
            f"privacy.dp noises gradients, and {kind}'s running statistics are none; give its norm layers"
            " track_running_stats=False, use another model, or privacy.dp = 'off'"
        )
    if spec.objective != "mean":
        raise ConfigError(
            f"privacy.dp with the objective {spec.objective!r}, which is no sum over examples; use mechanism.name = 'fedavg'"
        )
    if precision != "fp32":
        raise ConfigError(f"engine.precision is {precision!r} with privacy.dp, whose clipping is exact; use 'fp32'")


@dataclass
class Lots:
    """One silo's randomness in one round's training."""

    seed: int
    round: int
    client: int
    secret: bool
    device: torch.device

    def __post_init__(self) -> None:
        self._lots = stream(self.seed, "private lots", self.round, self.client)
        self._noise = torch.Generator(self.device)
        self._noise.manual_seed(derive(self.seed, "private noise", self.round, self.client))

    def drawn(self, rows: np.ndarray, chance: float) -> np.ndarray:
        """Those of the rows that are in this step."""
        lots = secret.uniform(len(rows)) if self.secret else self._lots.random(len(rows))
        return rows[lots < chance]

    def codes(self, size: int) -> np.ndarray:
        """How the drawn images are changed."""
        return self._lots.integers(AUGMENTATIONS, size=size)

    def normal(self, size: int) -> Tensor:
        if self.secret:
            return torch.from_numpy(secret.normal(size)).to(self.device, torch.float32)
        return torch.randn(size, generator=self._noise, device=self.device)


def trained(
    engine: Sequential | Stacked,
    theta: Tensor,
    rows: Sequence[np.ndarray],
    lots: Sequence[Lots],
    spec: LocalSpec,
    private: Private,
    anchor: Tensor | None,
) -> Tensor:
    """The models `[K, size]` after a round's steps."""
    layout, pool, device = engine.layout, engine.pool, theta.device
    engine.module.train()
    entries = {name: value.clone().contiguous() for name, value in layout.unpack(theta).items()}
    names = layout.names[: layout.trained]
    params = [entries[name] for name in names]
    pull = None if anchor is None else [layout.unpack(anchor)[name] for name in names]
    optimiser = Optimiser(spec, params, pull)
    examples = np.array([len(own) for own in rows])
    chances, steps = spec.rates(examples), spec.steps(examples)
    deviation = torch.as_tensor(private.noise * private.clip, dtype=torch.float32, device=device)
    expected = torch.as_tensor(1 / (chances * examples), dtype=torch.float32, device=device)
    sizes = [p[0].numel() for p in params]
    sums = summed(engine)
    for s in range(int(steps.max(initial=0))):
        active = s < steps
        drawn = [one.drawn(own, q) if on else own[:0] for one, own, q, on in zip(lots, rows, chances, active)]
        index, real = padded(drawn, rows)
        augment = None
        if spec.augment:
            codes = np.zeros(index.shape, np.int64)
            for k, own in enumerate(drawn):
                codes[k, : len(own)] = lots[k].codes(len(own))
            augment = torch.from_numpy(codes).to(device)
        places = torch.from_numpy(index).to(device)
        x, y = pool.examples(places, augment), pool.targets(places)
        grads = sums(entries, x, y, torch.from_numpy(real).to(device), private.clip)
        noise = [
            one.normal(sum(sizes)) if on else torch.zeros(sum(sizes), device=device) for one, on in zip(lots, active)
        ]
        for g, z in zip(grads, torch.stack(noise).split(sizes, 1)):
            g.add_(z.view_as(g) * per_client(deviation, g)).mul_(per_client(expected, g))
        everybody = active.all()
        optimiser.step(grads, None if everybody else torch.as_tensor(active, dtype=torch.float32, device=device))
    return layout.pack({name: value.detach() for name, value in entries.items()})


def padded(drawn: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The drawn rows as `[K, B]`, and which of them are real; at least one column, so that an empty draw is a step, too."""
    width = max(1, max(len(own) for own in drawn))
    index = np.repeat(np.array([own[0] for own in rows])[:, None], width, 1)
    real = np.zeros(index.shape, np.float32)
    for k, own in enumerate(drawn):
        index[k, : len(own)], real[k, : len(own)] = own, 1.0
    return index, real


# ---------------------------------------------------------------------------------------------------------------------
# Sums of clipped gradients: of entries [K, ...], inputs [K, B, ...], targets [K, B], real [K, B]


def summed(engine: Sequential | Stacked) -> Sums:
    """The fastest way that this module allows."""
    if isinstance(model := engine.module, MLP) and model.runs_as(MLP) and engine.layout.trained == 2 * len(model.sizes):
        return lambda *what: of_perceptron(engine, *what)
    if engine.module not in _TRIED:
        _TRIED[engine.module] = mappable(engine)
    way = mapped if _TRIED[engine.module] else one_by_one
    return lambda *what: way(engine, *what)


_TRIED: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def shortened(squares: Tensor, real: Tensor, clip: float) -> Tensor:
    """What each example's gradient is multiplied by, of its squared norm `[K, B]`; 0 for padding, and where that is not finite.

    Sums in single precision are rounded: the factor stays a hair below what the norm allows.
    """
    factor = real * (clip * (1 - 1e-5) / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return factor.where(squares.isfinite(), 0.0)


def kept(scale: Tensor, of: Tensor) -> Tensor:
    """`of`, and exactly 0 where an example counts nothing: 0 times infinity would be no number, and tell of that example."""
    return torch.where(scale > 0, of, 0.0)


def of_perceptron(
    engine: Sequential | Stacked, entries: Entries, x: Tensor, y: Tensor, real: Tensor, clip: float
) -> list[Tensor]:
    """Of dense layers: the gradient of one example is the product of a layer's input and its error."""
    model = engine.module
    assert isinstance(model, MLP)
    inputs: list[Tensor] = []
    before: list[Tensor] = []
    with torch.enable_grad():
        h = x.flatten(2)
        for i in range(len(model.layers)):
            h = F.relu(h) if i else h
            inputs.append(h.detach())
            h = torch.baddbmm(entries[f"layers.{i}.bias"].unsqueeze(1), h, entries[f"layers.{i}.weight"])
            if not i:
                h.requires_grad_()
            before.append(h)
        loss = engine.criterion.loss(h.flatten(0, 1), y.flatten()).sum()
        errors = torch.autograd.grad(loss, before)
    lengths = [a.square().sum(2) for a in inputs]
    lengths = [length.where(length < FAR, torch.inf) for length in lengths]
    squares = torch.stack([e.square().sum(2) * (1 + length) for length, e in zip(lengths, errors)]).sum(0)
    scale = shortened(squares, real, clip).unsqueeze(2)
    sums: Entries = {}
    for i, (a, e) in enumerate(zip(inputs, errors)):
        a, e = kept(scale, a), kept(scale, e) * scale
        sums[f"layers.{i}.weight"], sums[f"layers.{i}.bias"] = a.mT @ e, e.sum(1)
    return [sums[name] for name in engine.layout.names]


def _loss(engine: Sequential | Stacked) -> Callable[..., Tensor]:
    def loss(params: Entries, others: Entries, x: Tensor, y: Tensor) -> Tensor:
        outputs = answer(engine.module, {**params, **others}, x.unsqueeze(0))
        return engine.criterion.loss(outputs, y.unsqueeze(0))[0]

    return loss


def _apart(engine: Sequential | Stacked, entries: Entries) -> tuple[Entries, Entries]:
    """What is trained, and what is not."""
    names, trained = engine.layout.names, engine.layout.trained
    return {n: entries[n] for n in names[:trained]}, {n: entries[n] for n in names[trained:]}


def mapped(
    engine: Sequential | Stacked, entries: Entries, x: Tensor, y: Tensor, real: Tensor, clip: float
) -> list[Tensor]:
    """Of any module that `vmap` can do, some examples at a time."""
    params, others = _apart(engine, entries)
    each = vmap(vmap(grad(_loss(engine)), (None, None, 0, 0), randomness="different"), randomness="different")
    total = [torch.zeros_like(p) for p in params.values()]
    numbers = sum(p.numel() for p in params.values())
    wide = max(1, ROOM[x.device.type] // numbers)
    for a in range(0, x.shape[1], wide):
        some = slice(a, a + wide)
        buffers = {n: p.clone() for n, p in others.items()}  # a module may write into them: nothing of that is kept
        single = list(each(params, buffers, x[:, some], y[:, some]).values())
        squares = torch.stack([g.flatten(2).square().sum(2) for g in single]).sum(0)
        scale = shortened(squares, real[:, some], clip)
        for t, g in zip(total, single):
            t += torch.einsum("kb,kbp->kp", scale, kept(scale.unsqueeze(2), g.flatten(2))).view_as(t)
    return total


def one_by_one(
    engine: Sequential | Stacked, entries: Entries, x: Tensor, y: Tensor, real: Tensor, clip: float
) -> list[Tensor]:
    """Of any module, by a pass for every example: slow, and what the other ways are held against."""
    params, others = _apart(engine, entries)
    total = [torch.zeros_like(p) for p in params.values()]
    for k in range(len(x)):
        mine = {n: p[k].detach().clone().requires_grad_() for n, p in params.items()}
        for b in np.flatnonzero(real[k].cpu().numpy()):
            rest = {n: p[k].clone() for n, p in others.items()}  # as above
            with torch.enable_grad():
                loss = _loss(engine)(mine, rest, x[k, b], y[k, b])
                single = torch.autograd.grad(loss, list(mine.values()), allow_unused=True, materialize_grads=True)
            squares = torch.stack([g.square().sum() for g in single]).sum()
            scale = shortened(squares, torch.ones_like(squares), clip)
            for t, g in zip(total, single):
                t[k] += scale * kept(scale, g)
    return total


def mappable(engine: Sequential | Stacked) -> bool:
    """Whether single gradients of this module can be mapped: tried on two examples; said once where they cannot."""
    start = {**dict(engine.module.named_parameters()), **dict(engine.module.named_buffers())}
    entries = {name: start[name].detach().unsqueeze(0).clone() for name in engine.layout.names}
    rows = torch.zeros(1, 2, dtype=torch.int64, device=engine.pool.x.device)  # two: what one writes could fit one
    with torch.random.fork_rng(devices=[engine.pool.x.device] if engine.pool.x.is_cuda else []):
        try:
            mapped(
                engine,
                entries,
                engine.pool.examples(rows),
                engine.pool.targets(rows),
                torch.ones_like(rows).float(),
                1.0,
            )
        except Exception as error:  # whatever a module of the user's may raise
            why = (str(error) or type(error).__name__).splitlines()[0][:120]
            kind = type(engine.module).__name__
            log.warning("privacy.dp: gradients of %s are computed example by example, slowly (%s)", kind, why)
            return False
    return True
