"""What a client step asks of its task, as values.

The client step is a coroutine that yields these and receives their results, so that one driver answers a single run and
another answers many runs at once in one batched call (see federation/).
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from feduca.arrays import put, take
from feduca.types import Array, Floats, Ints, LocalSpec, Scores, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Train:
    """Local training (SPEC step 3); the answer is the new `theta[K, P]`."""

    theta: Array
    clients: Ints
    spec: LocalSpec
    round: int
    seed: int | Ints  # one for all, or one per client (several federations in one call)
    anchor: Array | None = None  # [P]; [K, P] once several federations are in one call
    rates: Floats | None = None  # [K]: learning rates of the clients' own, in place of the spec's

    def on(self, task: Task) -> Array:
        if self.rates is None:
            return task.train(self.theta, self.clients, self.spec, self.round, self.seed, self.anchor)
        train: Any = task.train
        if "rates" in inspect.signature(train).parameters:  # ours do; yours need not
            return train(self.theta, self.clients, self.spec, self.round, self.seed, self.anchor, rates=self.rates)
        trained = self.theta
        for rate in np.unique(self.rates):  # one call for all clients of one rate
            trained = put(trained, who := np.flatnonzero(self.rates == rate), self._of(who, float(rate)).on(task))
        return trained

    def _of(self, who: Ints, rate: float) -> Train:
        """The same for some of the clients, at one rate."""
        seed = self.seed if np.ndim(self.seed) == 0 else np.asarray(self.seed)[who]
        anchor = self.anchor if self.anchor is None or len(self.anchor.shape) == 1 else take(self.anchor, who)
        spec = replace(self.spec, lr=rate)
        return Train(take(self.theta, who), self.clients[who], spec, self.round, seed, anchor)


@dataclass(frozen=True)
class Evaluate:
    """Scores `[K]` of one model per client."""

    theta: Array
    clients: Ints
    split: str = "validation"

    def on(self, task: Task) -> Scores:
        return task.evaluate(self.theta, self.clients, self.split)


@dataclass(frozen=True)
class Along:
    """Scores `[K, M]` on the way from `start` to `end`."""

    start: Array
    end: Array
    places: Floats
    clients: Ints
    split: str = "validation"

    def on(self, task: Task) -> Scores:
        return task.along(self.start, self.end, self.places, self.clients, self.split)


Work = Train | Evaluate | Along
Steps = Generator[Work, Any, T]


def drive(steps: Steps[T], task: Task) -> T:
    """Answer one coroutine's requests, one after another."""
    answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = request.on(task)
