"""An offer over more than a line: the shared, the tuned and the private model, mixed by weights on the simplex.

The candidates are the models a silo has anyway: the shared model, what the silo trained from it last round (tuned), and its
outside option, which trains apart from the others (private). Parameters of models that went different ways mix badly, so by
default their *outputs* are mixed, as class probabilities, with the weights that minimise the log-loss on the silo's validation
data; what is deployed is then the weights and the models. Whoever takes the offer trains from the shared model.

Few validation examples must not fool it. `folds`: the mixture is judged on each part of the examples by weights found on the
others. `errors`: it must be better than the outside option by so many standard errors of the paired difference in log-loss, or
the silo keeps to its outside option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feduca.client.offers import Asked, Mixture, Offered, at
from feduca.client.requests import Along, Predict, Steps
from feduca.client.simplex import likeliest
from feduca.core.arrays import differ, mix, repeat, select
from feduca.errors import ConfigError
from feduca.types import Answered, Array, Bools, Floats, Ints, Needs, Predictions, Scores

LEAST = 1e-3  # a smaller weight is none: its model need not be computed
FEWEST = 2  # validation examples that a choice of weights can rest on


@dataclass(frozen=True)
class Stack:
    """A mixture of the shared, the tuned and the private model, by the weights of lowest validation log-loss."""

    space: str = "outputs"  # or "parameters"
    folds: int = 0  # parts of the validation data to judge by weights found on the others; 0: all on all
    errors: float = 0.0  # standard errors by which it must be better
    points: int = 10  # of either line in parameter space
    needs = Needs()

    def of(self, asked: Asked) -> Steps[Offered]:
        if asked.option is None:
            raise ConfigError(
                "an offer of kind 'stack' needs silos' outside options: set participation.against = 'outside'"
            )
        if not asked.has_own.any():
            return at(asked, np.zeros(len(asked.clients)), asked.global_scores, np.zeros(len(asked.clients), int))
        return (
            yield from self._outputs(asked, asked.option)
            if self.space == "outputs"
            else self._lines(asked, asked.option)
        )

    def _outputs(self, asked: Asked, private: Array) -> Steps[Offered]:
        k, has = len(asked.clients), asked.has_own
        models = {"shared": repeat(asked.theta, k), "tuned": asked.own, "private": private}
        there = np.stack([np.ones(k, bool), has & differ(asked.own, private), has], 1)
        said: list[Predictions] = []
        for model in models.values():
            said.append((yield Predict(model, asked.clients)))
        chances = np.stack([s.probabilities for s in said], 2)  # [K, n, M, C]
        targets = said[0].targets
        weights, judged_by = self._weights(true_class(chances, targets), targets >= 0, there)
        gain, errors, better = compare(chances, targets, judged_by)
        known = (targets >= 0).sum(1) >= FEWEST
        take = has & known & (weights[:, -1] < 1) & (gain > self.errors * errors)
        weights = np.where(take[:, None], weights, np.where(has, [[0.0], [0.0], [1.0]], [[1.0], [0.0], [0.0]]).T)
        scores = Scores(
            np.where(
                take, asked.bar.accuracy + better, np.where(has, asked.bar.accuracy, asked.global_scores.accuracy)
            ),
            np.where(take, asked.bar.loss - gain, np.where(has, asked.bar.loss, asked.global_scores.loss)),
        )
        mixture = Mixture(models, weights)
        behind = asked.global_scores.loss - asked.bar.loss
        why = ["" if new else self._why(*case) for new, *case in zip(~has, take, known, gain, errors, behind)]
        return Offered(repeat(asked.theta, k), weights[:, -1], scores, there.sum(1) * has, mixture, why, mixture.noted)

    def _weights(self, p: Floats, real: Bools, there: Bools) -> tuple[Floats, Floats]:
        """Weights to deploy `[K, M]`, and those that each example is judged by `[K, n, M]`."""
        p = np.where(there[:, None], p, 0.0)
        weights = pruned(likeliest(p, real.astype(float))[0])
        if not self.folds:
            return weights, np.broadcast_to(weights[:, None], p.shape)
        part = np.arange(p.shape[1]) % self.folds
        parts = [likeliest(p, np.asarray(real & (part != f), float))[0] for f in range(self.folds)]
        return weights, np.stack(parts, 1)[:, part]

    def _why(self, take: bool, known: bool, gain: float, error: float, behind: float) -> str:
        """Why nothing better than the outside option is offered, and by how much; "" where something is."""
        if take:
            return ""
        if not known:
            return f"fewer than {FEWEST} validation examples: no weights can be chosen"
        if gain > 0 and self.errors:
            return f"a mixture's gain in log-loss, {gain:.3g}, is within {self.errors:g} standard errors of {error:.3g}"
        best = "no mixture with the shared model beats the private model alone"
        if gain < 0:
            return f"{best}: judged on examples that did not choose it, the best one's log-loss is {-gain:.3g} higher"
        return f"{best}; the shared model's own log-loss is {behind:.3g} higher"

    def _lines(self, asked: Asked, private: Array) -> Steps[Offered]:
        """In parameter space: the best point from the shared to the tuned model, then from there to the private one."""
        k, has = len(asked.clients), asked.has_own
        shared, grid = repeat(asked.theta, k), np.tile(np.linspace(0, 1, self.points + 1), (k, 1))
        tuned = select(has, asked.own, shared)
        first: Scores = yield Along(shared, tuned, grid, asked.clients)
        toward = grid[0][first.loss.argmin(1)]
        middle = mix(shared, tuned, toward)
        second: Scores = yield Along(middle, select(has, private, shared), grid, asked.clients)
        row, column = np.arange(k), second.loss.argmin(1)
        c = np.where(has, grid[0][column], 0.0)
        found = Scores(second.accuracy[row, column], second.loss[row, column])
        end = Scores(np.where(c == 1, asked.bar.accuracy, found.accuracy), np.where(c == 1, asked.bar.loss, found.loss))
        scores = Scores(
            np.where(has, end.accuracy, asked.global_scores.accuracy), np.where(has, end.loss, asked.global_scores.loss)
        )
        weights = np.stack([(1 - c) * (1 - toward), (1 - c) * toward, c], 1)
        models = {"shared": shared, "tuned": tuned, "private": private}
        theta = select(has & (c > 0), mix(middle, private, c), middle)
        noted = Mixture(models, np.where(has[:, None], weights, [[1.0, 0.0, 0.0]])).noted
        return Offered(theta, c, scores, 2 * grid.shape[1] * has.astype(int), noted=noted)


def true_class(chances: Floats, targets: Ints) -> Floats:
    """The probability `[K, n, M]` that each model gives an example's own class, of `chances[K, n, M, C]`."""
    index = np.broadcast_to(np.maximum(targets, 0)[:, :, None, None], (*chances.shape[:3], 1))
    return np.take_along_axis(chances, index, 3)[..., 0]


def compare(chances: Floats, targets: Ints, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """By how much the mixture beats the last model alone: mean log-loss, its standard error, and accuracy; all `[K]`."""
    mixed = (chances * weights[..., None]).sum(2)
    alone, real = chances[:, :, -1], targets >= 0
    n = np.maximum(real.sum(1), 1)
    p = true_class(np.stack([mixed, alone], 2), targets)
    gains = np.where(real, np.log(np.maximum(p[..., 0], 1e-300)) - np.log(np.maximum(p[..., 1], 1e-300)), 0.0)
    mean = gains.sum(1) / n
    spread = np.where(real, (gains - mean[:, None]) ** 2, 0.0).sum(1) / np.maximum(n - 1, 1)
    hits = np.where(real, (mixed.argmax(2) == targets).astype(float) - (alone.argmax(2) == targets), 0.0)
    return mean, np.sqrt(spread / n), hits.sum(1) / n


def pruned(weights: Floats) -> Floats:
    """Weights without those that are next to nothing, in millionths: how a sum was rounded is not to be seen in them."""
    weights = np.where(weights < LEAST, 0.0, weights)
    weights = np.round(weights / weights.sum(1, keepdims=True), 6)
    return weights / weights.sum(1, keepdims=True)


def mixed_answers(mixture: Mixture, clients: Ints, split: str) -> Steps[Answered]:
    """How mixtures of outputs answer single examples; models that nobody uses are not computed."""
    weights, said = mixture.weights, []
    used = [m for m in range(weights.shape[1]) if weights[:, m].any()]
    models: Sequence[Array] = list(mixture.models.values())
    for m in used:
        said.append((yield Predict(models[m], clients, split)))
    targets = said[0].targets
    mixed = np.asarray(sum(s.probabilities * weights[:, m, None, None] for s, m in zip(said, used)))
    real = targets >= 0
    p = true_class(mixed[:, :, None], targets)[..., 0]
    right = mixed.argmax(2) == targets
    loss = -np.log(np.maximum(p, 1e-300))
    return Answered(np.where(real, right, np.nan), np.where(real, loss, np.nan), real.sum(1))


def mixed_scores(mixture: Mixture, clients: Ints, split: str) -> Steps[Scores]:
    """Scores `[K]` of mixtures of outputs; NaN where a silo has no examples."""
    answered = yield from mixed_answers(mixture, clients, split)
    n = np.where(answered.counts > 0, answered.counts, np.nan)
    return Scores(np.nansum(answered.right, 1) / n, np.nansum(answered.loss, 1) / n)
