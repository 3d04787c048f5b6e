"""The outside option of a silo: what it has without the federation, and what an offer has to beat.

*Alone* is the model a silo would have had alone: the same start, the same batches, the same budget, never federated. It is what
"better off" is measured against. A run computes it beside its own work only where asked (`alone = true`, or a rule that needs
it); it does not depend on the method, so a study computes it once, as a row under the rule `never`, and joins the two
afterwards (studies/summarise.py). Both ways give the same models to the bit.

Under `participation.against = "current"` a silo compares an offer with the model it has, which earlier offers have shaped: what
it would have had alone is gone once it has accepted. Under `"outside"` it keeps an `Outside` option alive whatever it accepts:

private    a model that trains on, by itself, every round or every `every` rounds: what the silo would have alone
best-kept  the best of all models of its own so far, by its validation data: no training, one more model and one more score

Whoever declines deploys its outside option and trains on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from feduca.client.participation import Comparison
from feduca.client.requests import Evaluate, Steps, Train
from feduca.core.arrays import finite, put, repeat, select, take
from feduca.types import Announcements, Array, Bools, ClientMemory, Floats, Ints, LocalSpec, Scores

Initial = Callable[[], Array]  # the run's first model, not finite where nobody knows it


@dataclass(frozen=True)
class Outside:
    """How a silo keeps its outside option."""

    kind: str = "private"  # or "best-kept"
    every: int = 1  # rounds between two trainings of a private model
    better: Comparison = Comparison(ties="loss")  # which of two own models to keep

    @property
    def alone(self) -> bool:
        """Whether it is the model alone, to the bit: then one training serves as both."""
        return self.kind == "private" and self.every == 1

    @property
    def name(self) -> str:
        """What it is called in reasons, and in `ClientMemory.extra`."""
        return "alone" if self.alone else "private" if self.kind == "private" else "best kept"

    def before(
        self, memory: ClientMemory, asked: Announcements, own: Scores, initial: Initial | None = None
    ) -> Steps[tuple[Array, Scores]]:
        """The models `[K, P]` that silos have without this round's offer, and their scores on validation data.

        A silo that comes later, of whose run nobody knows the first model, starts from what it is sent.
        """
        if self.kind == "best-kept":
            return (yield from self._best(memory, asked, own))
        model = current(memory, asked, initial, self.key)
        if model is None:
            shared = repeat(asked.theta, len(asked.clients))
            model = select(memory.trained, memory.extra.get(self.key, shared), shared)
        return model, (yield Evaluate(model, asked.clients))

    def _best(self, memory: ClientMemory, asked: Announcements, own: Scores) -> Steps[tuple[Array, Scores]]:
        kept = memory.extra.get(self.key)
        if kept is None or not memory.trained.any():
            return memory.own, own
        scores: Scores = yield Evaluate(kept, asked.clients)
        better = self.better.beats(own, scores) | ~memory.trained
        best = Scores(np.where(better, own.accuracy, scores.accuracy), np.where(better, own.loss, scores.loss))
        return select(better, memory.own, kept), best

    def trains(self, round: int, join: Bools) -> Ints:
        """Whose outside option trains in this round: everybody's when it is due, and always that of who declines."""
        due = self.kind == "private" and (round - 1) % self.every == 0
        return np.flatnonzero(np.ones(len(join), bool) if due else ~join)

    def after(self, model: Array, trained: Array, who: Ints) -> Array:
        """The option that is kept: a private model as it has been trained, the best so far as it was."""
        return model if self.kind == "best-kept" else put(model, who, take(trained, who))

    def worth(self, asked: Announcements, option: Array, new: Array, before: Scores, metric: str) -> Steps[Floats]:
        """The utility, on validation data, of what silos now have without the next offer: their threshold in Eq. 2."""
        if self.kind == "private":
            return (yield Evaluate(option, asked.clients)).metric(metric)
        now: Scores = yield Evaluate(new, asked.clients)
        return np.fmax(now.metric(metric), before.metric(metric))

    @property
    def key(self) -> str:
        """Its place in `ClientMemory.extra`."""
        return "alone" if self.alone else "outside"


def current(
    memory: ClientMemory, asked: Announcements, initial: Initial | None = None, key: str = "alone"
) -> Array | None:
    """The models alone before this round's training `[K, P]`; the first one is the run's first, whenever the silo comes.

    What a newcomer is sent is federated already, so it is no such start. None where the run's first model is not known.
    """
    kept = memory.extra.get(key)
    if memory.trained.all():
        return kept
    if kept is None and memory.trained.any():
        return None
    start = asked.theta if asked.round == 1 else None if initial is None else initial()
    if start is None or not finite(start):
        return None
    first = repeat(start, len(asked.clients))
    return first if kept is None else select(memory.trained, kept, first)


def trained(model: Array, asked: Announcements, seed: int, who: Ints | None = None) -> Steps[Array]:
    """One more round of training alone, without any term of the method's own; of some silos (None: all)."""
    who = np.arange(len(asked.clients)) if who is None else who
    if not len(who):
        return model
    some = yield Train(take(model, who), asked.clients[who], plain(asked.local), asked.round, seed)
    return put(model, who, some)


def plain(spec: LocalSpec) -> LocalSpec:
    """Local training as everybody does it: no pull towards a shared model, the mean loss."""
    return replace(spec, prox=0.0, objective="mean", bound=0.0)
