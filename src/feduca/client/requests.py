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

from feduca.core.arrays import put, take
from feduca.errors import ConfigError, RunError
from feduca.types import Answered, Array, Floats, Ints, LocalSpec, Predictions, Private, Scores, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Train:
    """Local training; the answer is the new `theta[K, P]`."""

    theta: Array
    clients: Ints
    spec: LocalSpec
    round: int
    seed: int | Ints  # one for all, or one per client (several federations in one call)
    anchor: Array | None = None  # [P]; [K, P] once several federations are in one call
    rates: Floats | None = None  # [K]: learning rates of the clients' own, in place of the spec's
    drift: Array | None = None  # [K, P]: added to every gradient
    free: Array | None = None  # [K, P]: 1 where training may move a model, 0 where not
    private: Private | None = None  # how single examples are hidden; None: they are not

    def hiding(self, private: Private | None, who: Ints) -> Train:
        """The same, hiding single examples; this is the work of the clients `who` of a call."""
        return self if private is None else replace(self, private=replace(private, noise=private.noise[who]))

    def on(self, task: Task) -> Array:
        if self.private is not None:
            return self._privately(task)
        train: Any = task.train
        takes = inspect.signature(train).parameters.keys()  # ours take everything; yours need not
        more = {name: x for name in ("rates", "drift", "free") if (x := getattr(self, name)) is not None}
        if strange := more.keys() - takes - {"rates"}:
            raise RunError(
                f"the method works inside local steps, and the task's `train` takes no `{min(strange)}`; give it one"
                " (types.Task), or use another method"
            )
        if self.rates is None or "rates" in takes:
            return train(self.theta, self.clients, self.spec, self.round, self.seed, self.anchor, **more)
        trained = self.theta
        for rate in np.unique(self.rates):  # one call for all clients of one rate
            trained = put(trained, who := np.flatnonzero(self.rates == rate), self._of(who, float(rate)).on(task))
        return trained

    def _privately(self, task: Task) -> Array:
        train: Any = getattr(task, "train_private", None)
        if train is None:
            raise RunError(
                "privacy.dp is 'records', and the task has no method `train_private` that clips examples' gradients; give it"
                " one (types.Task), or set privacy.dp = 'off'"
            )
        return train(self.theta, self.clients, self.spec, self.round, self.seed, self.private, self.anchor)

    def _of(self, who: Ints, rate: float) -> Train:
        """The same for some of the clients, at one rate."""
        seed = self.seed if np.ndim(self.seed) == 0 else np.asarray(self.seed)[who]
        anchor = self.anchor if self.anchor is None or len(self.anchor.shape) == 1 else take(self.anchor, who)
        spec = replace(self.spec, lr=rate)
        drift, free = (None if x is None else take(x, who) for x in (self.drift, self.free))
        return Train(take(self.theta, who), self.clients[who], spec, self.round, seed, anchor, None, drift, free)


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


@dataclass(frozen=True)
class Answers:
    """How one model per client answers single examples; the answer is None where the task cannot say."""

    theta: Array
    clients: Ints
    split: str

    def on(self, task: Task) -> Answered | None:
        answers = getattr(task, "answers", None)  # ours has it; yours need not
        return None if answers is None else answers(self.theta, self.clients, self.split)


@dataclass(frozen=True)
class Predict:
    """Class probabilities of one model per client, example by example."""

    theta: Array
    clients: Ints
    split: str = "validation"

    def on(self, task: Task) -> Predictions:
        predict: Any = getattr(task, "predict", None)
        if predict is None:
            raise ConfigError(
                "offer.space is 'outputs', but the task cannot say what its models predict for an example; give it a method"
                " `predict`, or use offer.space = 'parameters'"
            )
        return predict(self.theta, self.clients, self.split)


Work = Train | Evaluate | Along | Answers | Predict
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
