"""What a client is asked to accept: the shared model, or a point on the way to its own (SPEC section 10).

`offer(c) = (1 - c) * theta + c * theta_k` with the concession `c` in [0, 1]: `c = 0` is consensus, `c = 1` the client's own
model. Searching `c` costs forward passes over the validation data; they are counted. The realised point decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feduca.arrays import mix, repeat, take
from feduca.participation import beats
from feduca.types import Array, Bools, Floats, Ints, Needs, Scores
from feduca.work import Along, Steps


@dataclass(frozen=True)
class Asked:
    """What an offer is made of. `own` rows and scores matter only where `has_own`."""

    clients: Ints
    theta: Array  # [P]
    own: Array  # [K, P]
    has_own: Bools
    global_scores: Scores
    own_scores: Scores


@dataclass(frozen=True)
class Offered:
    theta: Array  # [K, P]
    concession: Floats  # [K]
    scores: Scores  # [K], validation
    evaluations: Ints  # [K]


class Offer(Protocol):
    @property
    def needs(self) -> Needs: ...

    def of(self, asked: Asked) -> Steps[Offered]:
        """A coroutine that may ask for evaluations (`work.Along`) and returns the offers."""
        ...


def at(asked: Asked, concession: Floats, scores: Scores, evaluations: Ints) -> Offered:
    theta = repeat(asked.theta, len(asked.clients))
    if concession.any():
        theta = mix(theta, asked.own, concession)
    return Offered(theta, concession, scores, evaluations)


def _choose(better: Bools, new: Scores, old: Scores) -> Scores:
    return Scores(np.where(better, new.accuracy, old.accuracy), np.where(better, new.loss, old.loss))


def _improves(new: Scores, old: Scores, metric: str, ties: str) -> Bools:
    gain = new.metric(metric) - old.metric(metric)
    return (gain > 0) | ((gain == 0) & (new.loss < old.loss)) if ties == "loss" else gain > 0


@dataclass(frozen=True)
class Global:
    """The shared model itself: the paper's offer."""

    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        none = np.zeros(len(asked.clients))
        return at(asked, none, asked.global_scores, none.astype(int))
        yield  # a coroutine that never asks


@dataclass(frozen=True)
class LeastConcession:
    """The smallest `c` whose realised utility beats the own model's by more than `margin`; the best point if none does.

    Candidates are `c = j / points`, nearest consensus first; a client stops searching at its first success.
    """

    margin: float = 0.0
    points: int = 10
    ties: str = "strict"
    metric: str = "accuracy"
    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        k = len(asked.clients)
        own = asked.own_scores
        best = Scores(asked.global_scores.accuracy.copy(), asked.global_scores.loss.copy())
        found = beats(best, own, self.ties, self.margin, self.metric) | ~asked.has_own
        concession, evaluations = np.zeros(k), np.zeros(k, int)
        for j in range(1, self.points):
            todo = np.flatnonzero(~found)
            if len(todo) == 0:
                break
            start = repeat(asked.theta, len(todo))
            places = np.full((len(todo), 1), j / self.points)
            scores: Scores = yield Along(start, take(asked.own, todo), places, asked.clients[todo])
            evaluations[todo] += 1
            new = Scores(scores.accuracy[:, 0], scores.loss[:, 0])
            here = Scores(best.accuracy[todo], best.loss[todo])
            mine = Scores(own.accuracy[todo], own.loss[todo])
            hit = beats(new, mine, self.ties, self.margin, self.metric)
            better = hit | _improves(new, here, self.metric, self.ties)
            chosen = _choose(better, new, here)
            best.accuracy[todo], best.loss[todo] = chosen.accuracy, chosen.loss
            concession[todo] = np.where(better, j / self.points, concession[todo])
            found[todo] = hit
        own_is_best = ~found & _improves(own, best, self.metric, self.ties)
        concession = np.where(own_is_best, 1.0, concession)
        return at(asked, concession, _choose(own_is_best, own, best), evaluations)


@dataclass(frozen=True)
class BestMixture:
    """The `c` with the highest realised utility; among equals the one nearest consensus (or the one of lowest loss)."""

    points: int = 10
    ties: str = "strict"
    metric: str = "accuracy"
    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        k = len(asked.clients)
        best, concession, evaluations = asked.global_scores, np.zeros(k), np.zeros(k, int)
        if asked.has_own.any():
            grid = np.arange(1, self.points) / self.points
            places = np.tile(grid, (k, 1))
            scores: Scores = yield Along(repeat(asked.theta, k), asked.own, places, asked.clients)
            evaluations[asked.has_own] = len(grid)
            candidates = [(c, Scores(scores.accuracy[:, j], scores.loss[:, j])) for j, c in enumerate(grid)]
            for c, new in [*candidates, (1.0, asked.own_scores)]:
                better = _improves(new, best, self.metric, self.ties) & asked.has_own
                best, concession = _choose(better, new, best), np.where(better, c, concession)
        return at(asked, concession, best, evaluations)
