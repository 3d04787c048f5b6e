"""What a client is asked to accept: the shared model, or a point on the way to its own.

`offer(c) = (1 - c) * theta + c * theta_k` with the concession `c` in [0, 1]: `c = 0` is consensus, `c = 1` the client's own
model. Searching `c` costs forward passes over the validation data; they are counted, and a budget bounds them. The realised
point decides: a curve may say where to look first, never what is offered. Theory and measurements: docs/offers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from feduca.client.participation import Comparison
from feduca.client.requests import Along, Steps
from feduca.core.arrays import mix, part, repeat, take
from feduca.errors import RunError, shown
from feduca.types import Array, Bools, Floats, Ints, Needs, Scores


@dataclass(frozen=True)
class Asked:
    """What an offer is made of. `own` rows and scores matter only where `has_own`."""

    clients: Ints
    theta: Array  # [P], or [K, P] where silos keep a part to themselves
    own: Array  # [K, P]
    has_own: Bools
    global_scores: Scores
    own_scores: Scores
    validation: Ints | None = None  # examples behind the scores, where the task says
    predict: Callable[[Floats], Floats] | None = None  # last curves: utility [M, K] at concessions [M]
    metric: str = "accuracy"  # what those curves are of
    outside: Scores | None = None  # what an offer has to beat, where that is not the own model ...
    option: Array | None = None  # ... and the models [K, P] that have these scores

    @property
    def bar(self) -> Scores:
        return self.own_scores if self.outside is None else self.outside


@dataclass(frozen=True)
class Mixture:
    """Several models of every client and their weights; the last is its outside option."""

    models: Mapping[str, Array]  # by name, [K, P] each
    weights: Floats  # [K, models]

    def for_who(self, join: Bools) -> Mixture:
        """The same, with all weight on the outside option where clients decline."""
        alone = np.zeros(self.weights.shape[1])
        alone[-1] = 1.0
        return replace(self, weights=np.where(join[:, None], self.weights, alone))

    @property
    def noted(self) -> dict[str, Floats]:
        return {f"weight_{name}": self.weights[:, m] for m, name in enumerate(self.models)}


@dataclass(frozen=True)
class Offered:
    theta: Array  # [K, P]; of a mixture of outputs, what to train from
    concession: Floats  # [K]
    scores: Scores  # [K], validation
    evaluations: Ints  # [K]
    mixture: Mixture | None = None  # what is deployed, where outputs are mixed
    why: Sequence[str] | None = None  # why nothing better than the outside option is offered; "" where something is
    noted: Mapping[str, Floats] = field(default_factory=dict)  # for the record, [K] each


class Offer(Protocol):
    @property
    def needs(self) -> Needs: ...

    def of(self, asked: Asked) -> Steps[Offered]:
        """A coroutine that may ask for evaluations (`work.Along`) and returns the offers."""
        ...


def made(offer: Offer, asked: Asked) -> Steps[Offered]:
    """What the offer makes, whoever wrote it: a model, its place and its scores for each silo of the call."""
    steps, silos, named = offer.of(asked), len(asked.clients), f"the offer {type(offer).__name__}"
    if not isinstance(steps, Generator):
        raise RunError(
            f"{named} returned {type(steps).__name__}; its `of` is a coroutine: it has a yield, even if it asks for nothing"
            " (docs/your-mechanism.md)"
        )
    found = yield from steps
    if not isinstance(found, Offered):
        raise RunError(f"{named} returned {shown(found)}; return a feduca.client.offers.Offered, such as `at` makes")
    rows = {
        "theta": found.theta.shape[:1],
        "concession": np.shape(found.concession),
        "evaluations": np.shape(found.evaluations),
        "scores.accuracy": np.shape(found.scores.accuracy),
        "scores.loss": np.shape(found.scores.loss),
    }
    for name, shape in rows.items():
        if tuple(shape) != (silos,):
            raise RunError(f"{named} gave {name} of shape {tuple(shape)}; give one for each of the {silos} silos")
    return found


def at(asked: Asked, concession: Floats, scores: Scores, evaluations: Ints) -> Offered:
    theta = repeat(asked.theta, len(asked.clients))
    if concession.any():
        theta = mix(theta, asked.own, concession)
    return Offered(theta, concession, scores, evaluations)


def _choose(better: Bools, new: Scores, old: Scores) -> Scores:
    return Scores(np.where(better, new.accuracy, old.accuracy), np.where(better, new.loss, old.loss))


def _rows(scores: Scores, index: Ints) -> Scores:
    return Scores(scores.accuracy[index], scores.loss[index])


def _higher(new: Scores, old: Scores, by: Comparison) -> Bools:
    """Which of two points to offer when neither is good enough: the higher metric; equal ones as `ties` says."""
    gain = new.metric(by.metric) - old.metric(by.metric)
    return (gain > 0) | ((gain == 0) & (new.loss < old.loss)) if by.ties == "loss" else gain > 0


def _preferred(new: Scores, old: Scores, own: Scores, n: Ints | None, by: Comparison) -> Bools:
    """Which of two points to offer: one that would be accepted before one that would not, else the higher."""
    accepted, was = by.beats(new, own, n), by.beats(old, own, n)
    return (accepted & ~was) | ((accepted == was) & _higher(new, old, by))


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

    Candidates are `c = j / points`. `upwards` tries them from consensus on and stops at the first success. `guided` halves the
    range instead, beginning where last round's curve (if there is one) crosses the own model's score: on a concave path without
    a margin whoever succeeds at `c` succeeds from there to its own model, so about log2(points) passes find the same point. With
    a margin, or where the path is not concave, halving may pass over successes: it may find a larger point, and where it finds
    none, the candidates not yet tried follow from consensus on, so that only a silo about to decline pays for them. `budget`
    bounds a client's passes per round (0 = no bound).
    """

    margin: float = 0.0
    points: int = 10
    better: Comparison = Comparison()
    relative: bool = False  # the margin is a share of the own model's score
    budget: int = 0
    search: str = "upwards"  # or "guided"
    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        k, own, bar, n = len(asked.clients), asked.own_scores, asked.bar, asked.validation
        margin = self._margin(bar)
        best = _rows(asked.global_scores, np.arange(k))  # copies: filled in below
        found = self.better.beats(best, bar, n, margin)
        concession, evaluations = np.zeros(k), np.zeros(k, int)
        low, high = np.ones(k, int), np.full(k, self.points - 1)  # the range that is halved
        low[found | ~asked.has_own] = self.points
        tried = np.zeros((k, self.points), bool)
        tried[:, 0] = True  # consensus
        guess = self._guess(asked, bar, margin)
        limit = self.budget or self.points
        while True:
            halving = (low <= high) & (self.search == "guided")
            seeking = asked.has_own & ~found & ~tried.all(1)
            todo = np.flatnonzero((halving | seeking) & (evaluations < limit))
            if len(todo) == 0:
                break
            half = np.where(evaluations == 0, guess, (low + high) // 2)
            j = np.where(halving, np.clip(half, low, high), tried.argmin(1))[todo]  # argmin: the first not yet tried
            tried[todo, j] = True
            c = j / self.points
            line: Scores = yield Along(
                repeat(part(asked.theta, todo), len(todo)), take(asked.own, todo), c[:, None], asked.clients[todo]
            )
            evaluations[todo] += 1
            new, here = Scores(line.accuracy[:, 0], line.loss[:, 0]), _rows(best, todo)
            hit = self.better.beats(new, _rows(bar, todo), None if n is None else n[todo], margin[todo])
            near = _preferred(new, here, _rows(bar, todo), None if n is None else n[todo], self.better)
            taken = hit | (~found[todo] & near)
            chosen = _choose(taken, new, here)
            best.accuracy[todo], best.loss[todo] = chosen.accuracy, chosen.loss
            concession[todo] = np.where(taken, c, concession[todo])
            found[todo] |= hit
            high[todo] = np.where(hit, j - 1, high[todo])
            low[todo] = np.where(hit | ~halving[todo], low[todo], j + 1)
        own_is_best = ~found & asked.has_own & _preferred(own, best, bar, n, self.better)
        concession = np.where(own_is_best, 1.0, concession)
        return at(asked, concession, _choose(own_is_best, own, best), evaluations)

    def _margin(self, own: Scores) -> Floats:
        value = own.metric(self.better.metric)
        return self.margin * np.abs(value) if self.relative else np.full(len(value), self.margin)

    def _guess(self, asked: Asked, bar: Scores, margin: Floats) -> Ints:
        """The first candidate that last round's curve expects to succeed; the middle where there is no such curve.

        Under Eq. 1 the own model is judged by accuracy even where utility is the negative loss: such curves say nothing here.
        """
        middle = np.full(len(asked.clients), self.points // 2)
        if self.search != "guided" or asked.predict is None or asked.metric != self.better.metric:
            return middle
        grid = np.arange(1, self.points) / self.points
        hopeful = asked.predict(grid) > (bar.metric(self.better.metric) + margin)[None]  # NaN compares as False
        return np.where(hopeful.any(0), 1 + hopeful.argmax(0), middle)


@dataclass(frozen=True)
class BestMixture:
    """The `c` with the highest realised utility; among equals the one nearest consensus (or the one of lowest loss).

    With a confidence, a point that beats the own model comes before a higher one that does not. Candidates are `c = j / points`,
    tried in one call. A `budget` spreads as many passes evenly instead (0 = no bound).
    """

    points: int = 10
    better: Comparison = Comparison()
    budget: int = 0
    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        k = len(asked.clients)
        best, concession, evaluations = asked.global_scores, np.zeros(k), np.zeros(k, int)
        if asked.has_own.any():
            points = min(self.points, self.budget + 1) if self.budget else self.points
            grid = np.arange(1, points) / points
            places = np.tile(grid, (k, 1))
            line: Scores = yield Along(repeat(asked.theta, k), asked.own, places, asked.clients)
            evaluations[asked.has_own] = len(grid)
            candidates = [(c, Scores(line.accuracy[:, j], line.loss[:, j])) for j, c in enumerate(grid)]
            for c, new in [*candidates, (1.0, asked.own_scores)]:
                chosen = _preferred(new, best, asked.bar, asked.validation, self.better) & asked.has_own
                best, concession = _choose(chosen, new, best), np.where(chosen, c, concession)
        return at(asked, concession, best, evaluations)
