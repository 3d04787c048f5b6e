"""A task of silos on PyTorch: the object that federations train and evaluate through (`types.Task`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feduca.core.rng import derive
from feduca.errors import ConfigError, DataError, RunError
from feduca.recipes.folders import NATURAL
from feduca.tasks import identity
from feduca.tasks.data.batches import Ahead, plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines import (
    Engine,
    Keys,
    Sequential,
    Stacked,
    check_device,
    draws,
    least_batch,
    out_of_memory,
    unstackable,
)
from feduca.tasks.engines.private import train_private
from feduca.tasks.metrics import Criterion, each, mixable, why_not_mixable
from feduca.tasks.models.layout import Layout
from feduca.tasks.tally import Tally
from feduca.types import SPLITS, Answered, Array, Floats, Ints, LocalSpec, Predictions, Scores

log = logging.getLogger("feduca")

ENGINES = {"sequential": Sequential, "stacked": Stacked}
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
PRECISIONS = ("fp32", "tf32", "bf16")

ROOM = 2**28  # numbers in models that exist for an evaluation only, at a time: 1 GiB; one model per client in any case


@dataclass(frozen=True)
class Settings:
    """How to compute: `[engine]` of a recipe.

    `chunk` bounds how many examples are evaluated at a time, over all clients of a call, each of which has at least one.
    """

    kind: str = "stacked"
    device: str = "cpu"
    precision: str = "fp32"
    chunk: int = 10_000
    threads: int | None = None

    def check(self) -> None:
        """Refuse what cannot be had here."""
        if self.kind not in ENGINES:
            raise ConfigError(f"engine.kind is {self.kind!r}: choose stacked or sequential")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"engine.precision is {self.precision!r}: choose fp32, tf32 or bf16")
        if self.chunk < 1:
            raise ConfigError(f"engine.chunk is {self.chunk}: evaluate at least 1 example at a time")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"engine.threads is {self.threads}: use at least 1 thread")
        check_device(self.device)
        if self.precision == "tf32" and not self.device.startswith("cuda"):
            raise ConfigError(f"engine.precision is tf32 on {self.device}: tf32 is CUDA's; use fp32")


@dataclass(frozen=True)
class Silo:
    """Where one silo's examples lie in the pool, and whose random streams it draws from."""

    name: str
    rows: dict[str, np.ndarray]  # by split
    client: int  # its number in its own federation


@dataclass(frozen=True)
class TorchTask:
    """A model, its criterion and the data of every silo. Build one with `feduca.tasks.build_task`."""

    make: Callable[[], nn.Module]
    members: tuple[Silo, ...]
    pool: Pool
    test_pool: Pool | None
    criterion: Criterion
    settings: Settings = Settings()
    about: dict[str, Any] = field(default_factory=dict)
    origin: Any = field(default=None, compare=False, repr=False)  # the recipe's tables it was made from, if it was

    def __post_init__(self) -> None:
        self.settings.check()
        if not self.members:
            raise DataError("the task has no silos: give it at least one")
        for silo in self.members:
            if not len(silo.rows["train"]):
                raise DataError(f"silo {silo.name} has no training data: leave it out or give it some")
            if not len(silo.rows["validation"]):
                raise DataError(f"silo {silo.name} has no validation data to decide by: give it some")
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        module = self.make().to(self.settings.device)
        layout = Layout.of(module)
        if not layout.parameters:
            raise ConfigError("the model has no parameters: there is nothing to train")
        engine = ENGINES[self.settings.kind](module, layout, self.pool, self.criterion)
        if isinstance(engine, Stacked) and (why := unstackable(engine)):
            log.warning(
                "silos are trained one after another (engine sequential): %s cannot be stacked (%s)",
                type(module).__name__,
                why,
            )
            engine = Sequential(module, layout, self.pool, self.criterion)
            object.__setattr__(self, "settings", replace(self.settings, kind="sequential"))
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "least", least_batch(engine))
        if self.least > 1 and (lonely := [silo.name for silo in self.members if len(silo.rows["train"]) < self.least]):
            raise DataError(
                f"silo {lonely[0]} has 1 training example, and the model's batch norm needs 2: give it more, leave it out, "
                "or use another normalisation"
            )
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "ahead", Ahead())

    def __repr__(self) -> str:
        return identity.short(self)

    engine: Engine = field(init=False)
    least: int = field(init=False, compare=False)  # examples that a mini-batch must have
    layout: Layout = field(init=False)
    ahead: Ahead = field(init=False, compare=False, repr=False)

    # What a federation asks -------------------------------------------------------------------------------------------

    @property
    def silos(self) -> Sequence[str]:
        return self._names

    @property
    def examples(self) -> Ints:
        return self._counts["train"]

    @property
    def validation_examples(self) -> Ints:
        return self._counts["validation"]

    @property
    def test_examples(self) -> Ints:
        return self._counts["test"]

    @cached_property
    def _names(self) -> Sequence[str]:
        return tuple(silo.name for silo in self.members)

    @cached_property
    def _counts(self) -> dict[str, Ints]:
        """How many examples each silo has, which is asked in every round."""
        found = {s: np.array([len(silo.rows.get(s, ())) for silo in self.members]) for s in SPLITS}
        for counts in found.values():
            counts.flags.writeable = False
        return found

    @property
    def parameters(self) -> int:
        return self.layout.parameters

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def parameter_names(self) -> dict[str, int]:
        """The parts of theta in their order, with how many entries each has."""
        return {name: shape.numel() for name, shape in zip(self.layout.names, self.layout.shapes)}

    @property
    def norm_names(self) -> tuple[str, ...]:
        """Parts of theta that belong to normalisation layers."""
        stems = {name for name, part in self.engine.module.named_modules() if isinstance(part, NORMS)}
        return tuple(name for name in self.layout.names if name.rpartition(".")[0] in stems)

    @property
    def frozen_names(self) -> tuple[str, ...]:
        """Parameters that are not trained, and therefore never travel."""
        return tuple(name for name, part in self.engine.module.named_parameters() if not part.requires_grad)

    @cached_property
    def trains_together(self) -> bool:
        """Whether clients of several federations may train in one call: not where what one draws depends on the others."""
        return not (isinstance(self.engine, Stacked) and draws(self.engine.module, self.pool))

    def init(self, seed: int) -> Tensor:
        """The initial model `theta[size]`; a function of `seed` alone, the same on every device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "init"))
            module = self.make()
        entries = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return self.layout.pack({name: value.detach() for name, value in entries.items()}).to(self.settings.device)

    def train(
        self,
        theta: Array,
        clients: Ints,
        spec: LocalSpec,
        round: int,
        seed: int | Ints,
        anchor: Array | None = None,
        rates: Floats | None = None,
        drift: Array | None = None,
        free: Array | None = None,
    ) -> Tensor:
        """Local training of `theta[K, size]` by `clients[K]`. `seed` may be one per client (lockstep), as `rates` are.

        `drift[K, size]` is added to every gradient; where `free[K, size]` is 0, nothing moves.
        """
        clients = self._clients(clients)
        theta = self._models(theta, len(clients))
        if spec.augment and not self.pool.is_image:
            raise ConfigError(
                f"local.augment is true, but examples of shape {self.pool.example_shape} are no images to mirror and move: "
                "set local.augment = false"
            )
        if anchor is not None:
            anchor = self._tensor(anchor)
            anchor = anchor.expand(len(clients), -1) if anchor.dim() == 1 else anchor
        seeds = np.broadcast_to(np.asarray(seed, dtype=np.int64), clients.shape)
        own = np.array([self.members[k].client for k in clients])
        rows = [self.members[k].rows["train"] for k in clients]
        if self.pool.x.is_cuda:
            batches = self.ahead.plan(clients, rows, own, spec, round, seeds, self.least)
        else:  # a CPU that trains has no time to spare
            batches = plan(rows, own, spec, round, seeds, self.least)
        if rates is not None:
            batches = replace(batches, rates=self._rates(rates, len(clients)))
        if drift is not None or free is not None:
            slants = (None if x is None else self._models(x, len(clients)) for x in (drift, free))
            batches = replace(batches, **dict(zip(("drift", "free"), slants)))
        with self._computing(spec.batch_size):
            return self.engine.train(theta, batches, spec, anchor, Keys(seeds, round, own))

    train_private = train_private

    def evaluate(self, theta: Array, clients: Ints, split: str) -> Scores:
        """Scores `[K]` of `theta[K, size]`, client by client, on the client's own `split` (NaN where it has none)."""
        clients = self._clients(clients)
        theta = self._models(theta, len(clients))
        tally = self._tally(clients, 1, split)
        models = tally.laid(theta)
        with self._computing():
            for block in tally.blocks():
                outputs = self.engine.outputs(models[block.who], self.pool.examples(block.index))
                tally.add(outputs.unsqueeze(1), block)
        return tally.scores(lambda value: value[:, 0])

    def answers(self, theta: Array, clients: Ints, split: str) -> Answered:
        """How `theta[K, size]` answer each example of the clients' own `split`."""
        clients = self._clients(clients)
        theta = self._models(theta, len(clients))
        tally = self._tally(clients, 1, split)
        models = tally.laid(theta)
        loss = np.full((len(clients), tally.counts.max(initial=0)), np.nan)
        right = np.full(loss.shape, np.nan)
        with self._computing():
            for block in tally.blocks():
                outputs = self.engine.outputs(models[block.who], self.pool.examples(block.index))
                targets = self.pool.targets(block.index)
                here = block.who, slice(block.begin, block.begin + block.index.shape[1])
                loss[here] = each(self.criterion, outputs, targets).cpu().numpy()
                if (hits := tally.hits(outputs, targets)) is not None:
                    right[here] = hits.cpu().numpy()
        return Answered(tally.back(right), tally.back(loss), tally.back(tally.counts))

    def along(self, start: Array, end: Array, places: Floats, clients: Ints, split: str) -> Scores:
        """Scores `[K, M]` at `(1 - r) * start + r * end` for `r` in `places[K, M]`.

        At most `chunk` examples are forwarded at a time, and the models between the ends exist in portions of `ROOM` numbers;
        but one example and one model of every client are, however many clients there are.
        """
        clients = self._clients(clients)
        start, end = self._models(start, len(clients)), self._models(end, len(clients))
        places = np.broadcast_to(np.asarray(places, dtype=np.float64), (len(clients), np.shape(places)[-1]))
        r = torch.as_tensor(places.copy(), dtype=torch.float32, device=self.settings.device)
        tally = self._tally(clients, r.shape[1], split)
        start, end, r = (tally.laid(x) for x in (start, end, r))
        with self._computing():
            for block in tally.blocks():
                x, some = self.pool.examples(block.index), r[block.who]
                at = self.engine.between(start[block.who], end[block.who], x)
                step = max(1, min(self.settings.chunk // block.index.numel(), ROOM // (len(some) * self.size)))
                tally.add(torch.cat([at(some[:, m : m + step]) for m in range(0, r.shape[1], step)], 1), block)
        return tally.scores(lambda value: value)

    def predict(self, theta: Array, clients: Ints, split: str) -> Predictions:
        """Class probabilities of `theta[K, size]` for every example of the client's own `split`."""
        if not mixable(self.criterion):
            raise ConfigError(why_not_mixable(self.criterion))
        clients = self._clients(clients)
        theta = self._models(theta, len(clients))
        tally = self._tally(clients, 1, split)
        models, said = tally.laid(theta), np.zeros((len(clients), 0, 1))
        wanted = np.full((len(clients), tally.counts.max(initial=0)), -1)
        with self._computing():
            for block in tally.blocks():
                outputs = self.engine.outputs(models[block.who], self.pool.examples(block.index))
                if not said.size:
                    said = np.zeros((*wanted.shape, outputs.shape[-1]))
                here = block.who, slice(block.begin, block.begin + block.index.shape[1])
                said[here] = outputs.double().softmax(-1).cpu().numpy()
                targets = self.pool.targets(block.index).cpu().numpy()
                wanted[here] = targets if block.real is None else np.where(block.real.cpu().numpy(), targets, -1)
        return Predictions(tally.back(said), tally.back(wanted))

    def test(self, theta: Array) -> Scores | None:
        """Scores (shape `[1]`) of one model on the global test set, where there is one."""
        if self.test_pool is None:
            return None
        theta = self._models(self._tensor(theta).reshape(1, -1), 1)
        rows = [np.arange(len(self.test_pool.y))]
        tally = Tally(self.test_pool, self.criterion, rows, 1, self.settings.chunk)
        with self._computing():
            for block in tally.blocks():
                tally.add(self.engine.outputs(theta, self.test_pool.examples(block.index)).unsqueeze(1), block)
        return tally.scores(lambda value: value[:, 0])

    def describe(self) -> dict[str, Any]:
        """What the record says of this task: sizes, classes, split, model, how it is computed."""
        counts = {s: [len(silo.rows.get(s, ())) for silo in self.members] for s in ("train", "validation", "test")}
        return {
            **self.about,
            "silos": list(self.silos),
            "examples": counts,
            "parameters": self.parameters,
            "size": self.size,
            "engine": {k: getattr(self.settings, k) for k in ("kind", "device", "precision", "chunk", "threads")},
        }

    def fingerprint(self) -> str:
        """A name for everything that decides what is computed: data, model, metric, loss, engine and precision."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return identity.fingerprint(self)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _clients(self, clients: Ints) -> Ints:
        clients = np.atleast_1d(np.asarray(clients, dtype=np.int64))
        if len(clients) and not (clients.min() >= 0 and clients.max() < len(self.members)):
            raise ConfigError(f"clients {clients.tolist()} are not all silos: there are {len(self.members)}, from 0")
        return clients

    def _rates(self, rates: Floats, count: int) -> Floats:
        rates = np.asarray(rates, dtype=np.float64)
        if rates.shape != (count,) or not (rates >= 0).all():
            raise ConfigError(
                f"learning rates are {rates.tolist()}: give {count} numbers of at least 0, one per client"
            )
        return rates

    def _tensor(self, theta: Array) -> Tensor:
        return torch.as_tensor(theta, dtype=torch.float32, device=self.settings.device).detach()

    def _models(self, theta: Array, count: int) -> Tensor:
        theta = self._tensor(theta)
        if tuple(theta.shape) != (count, self.size):
            raise RunError(
                f"models have shape {tuple(theta.shape)}: expected one row of {self.size} per client ({count})"
            )
        return theta

    def _tally(self, clients: Ints, points: int, split: str) -> Tally:
        if split not in ("train", "validation", "test"):
            raise ConfigError(f"split is {split!r}: choose train, validation or test")
        rows = [self.members[k].rows.get(split, np.empty(0, np.int64)) for k in clients]
        return Tally(self.pool, self.criterion, rows, points, self.settings.chunk)

    @contextmanager
    def _computing(self, batch_size: int | None = None):
        with precision(self.settings):
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise out_of_memory(error, self.settings.chunk, batch_size) from error


@contextmanager
def precision(settings: Settings):
    """Compute inside in the precision asked for, and leave PyTorch's switches as they were."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.precision != "fp32"
    kind = settings.device.split(":")[0]
    half: AbstractContextManager = nullcontext()
    if settings.precision == "bf16":
        half = torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False)
    try:
        with half:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def merge(tasks: Sequence[TorchTask]) -> TorchTask:
    """Several federations over the same data and model as one task, for lockstep: silos of all, one after the other.

    Client k of federation f is silo `sum of earlier sizes + k`, and keeps the random streams it has alone: pass `train`
    one seed per client. The examples are shared, not copied, but for splits that each have their own (natural silos). Each
    federation keeps its own `chunk`: so many examples are evaluated at a time for every one of them; in the same slices as
    alone, where all ask at once. Where the model draws random numbers (dropout) in the stacked engine, `trains_together` is
    False, and lockstep trains one federation after another.
    """
    if not tasks:
        raise ConfigError("nothing to merge: give at least one task")
    first = tasks[0]
    for task in tasks[1:]:
        if not _alike(task, first) or task.layout != first.layout or task.settings != first.settings:
            raise ConfigError(
                "tasks can run in lockstep only with the same data, model and engine: build them over one data set"
            )
        one, other = (t.engine.module for t in (first, task))
        if type(one) is not type(other) or str(one) != str(other):
            raise ConfigError(
                f"tasks can run in lockstep only with the same model: here are {type(one).__name__} and "
                f"{type(other).__name__}, which differ; merge those that have one model"
            )
        if task.criterion != first.criterion:
            raise ConfigError(
                f"tasks can run in lockstep only with the same loss and metric: here are {first.criterion.name} and "
                f"{task.criterion.name}, or their losses differ; merge those that have one criterion"
            )
    pools = list({id(task.pool.x): task.pool for task in tasks}.values())
    starts = dict(zip(map(id, (pool.x for pool in pools)), np.cumsum([0, *(len(pool.y) for pool in pools)]).tolist()))

    def moved(silo: Silo, f: int, start: int) -> Silo:
        rows = {part: own + start for part, own in silo.rows.items()} if start else silo.rows
        return replace(silo, name=f"{f}/{silo.name}", rows=rows)

    members = tuple(moved(silo, f, starts[id(task.pool.x)]) for f, task in enumerate(tasks) for silo in task.members)
    pool = first.pool
    if len(pools) > 1:
        pool = Pool(torch.cat([one.x for one in pools]), torch.cat([one.y for one in pools]))
    about = {**first.about, "federations": [task.describe() for task in tasks]}
    settings = replace(first.settings, chunk=first.settings.chunk * len(tasks))
    return replace(first, members=members, pool=pool, about=about, settings=settings)


def _alike(task: TorchTask, first: TorchTask) -> bool:
    """Whether two tasks have the same examples, or the same ones standardised anew for another split (natural silos)."""
    same = task.about.get("data") == first.about.get("data")
    return task.pool.x is first.pool.x or (same and first.about.get("data") in NATURAL)
