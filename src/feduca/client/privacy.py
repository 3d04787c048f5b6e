"""Differential privacy inside the silo: a budget for every silo, what of it is spent, and who may still train and decide.

Record-level: what leaves a silo hardly depends on any one of its examples (Liu et al. 2022, arXiv 2206.07902: silo-specific
sample-level differential privacy). Training examples are hidden by clipped and noisy gradients (tasks/engines/private.py);
validation examples by noise on the count of right answers that a decision rests on. An example is in one of the two parts, so
what a silo has spent is the larger of the two, not their sum.

    extra["privacy"]  [K, 2, orders]: the curves (accounting.py) spent on training and on validation examples

Trained with noise is whatever can reach the server. An outside option stays at the silo, is trained as ever, and costs nothing:
`recipes/privacy.py` refuses what would mix it into a model that is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from feduca.client import accounting
from feduca.client.participation import Situation
from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.types import Array, Bools, Floats, Ints, LocalSpec, Private, Reports, Scores, Task

KEY = "privacy"  # in ClientMemory.extra
SPENT = "its privacy budget is spent"
TRAINING, VALIDATION = 0, 1
ROUNDING = 1e-9  # of a budget, that sums of curves may be off


@dataclass(frozen=True)
class Allowance:
    """What silos may do in a round, and what it would cost; all `[K, ...]`."""

    trains: Bools
    decides: Bools
    spent: Floats  # before this round
    training: Floats  # the cost of one training, [K, orders]
    answer: Floats  # of one noisy decision, [K, orders]
    deltas: Floats
    answer_noise: Floats  # the deviation of the noise on a count

    def joins(self, has_own: Bools) -> Bools:
        """Who may take part: whoever may train, and decide, where there is something to decide."""
        return self.trains & (self.decides | ~has_own)

    def after(self, trained: Bools, decided: Bools) -> Floats:
        """What is spent once these have trained and decided."""
        costs = np.stack([trained[:, None] * self.training, decided[:, None] * self.answer], 1)
        return self.spent + costs


@dataclass(frozen=True)
class Privacy:
    """`[privacy]` of a recipe, where silos hide single examples."""

    epsilon: float  # what every silo may spend
    rounds: int  # over so many rounds
    clip: float
    delta: float | None = None
    noise: float | None = None
    noisy: bool = True  # decisions, too
    asks: bool = True  # whether the rule looks at data at all
    share: float = 1.0  # of the budget that decisions may spend of validation examples'
    secret: bool = False  # the noise cannot be repeated: what a deployed silo draws

    def delta_of(self, examples: Ints, validation: Ints | None) -> Floats:
        n = np.asarray(examples) if validation is None else np.maximum(examples, validation)
        return np.full(len(n), self.delta) if self.delta is not None else 1 / (10.0 * n)

    def allow(
        self, kept: Mapping[str, Array], spec: LocalSpec, examples: Ints, validation: Ints | None, has_own: Bools
    ) -> Allowance:
        """Who may still train and decide. Whoever has no model of its own yet decides nothing."""
        k, orders = len(examples), len(accounting.ORDERS)
        spent = np.asarray(kept.get(KEY, np.zeros((k, 2, orders))), float)
        deltas = self.delta_of(examples, validation)
        training = np.stack(
            [
                accounting.curve(q, sigma, int(steps))
                for q, sigma, steps in zip(
                    spec.rates(examples), self.noises(spec, examples, deltas), spec.steps(examples)
                )
            ]
        )
        answer, noise = np.zeros((k, orders)), np.zeros(k)
        if self.noisy and self.asks:
            noise = np.array([accounting.least_noise(self.epsilon * self.share, d, 1.0, self.rounds) for d in deltas])
            answer = np.stack([accounting.curve(1.0, sigma) for sigma in noise])
        within = Allowance(np.ones(k, bool), np.ones(k, bool), spent, training, answer, deltas, noise)
        would = within.after(np.ones(k, bool), has_own)
        trains = self._fits(would[:, TRAINING], deltas, self.epsilon)
        decides = has_own & trains & self._fits(would[:, VALIDATION], deltas, self.epsilon * self.share)
        return replace(within, trains=trains, decides=decides)

    def _fits(self, spent: Floats, deltas: Floats, budget: float) -> Bools:
        return np.array([accounting.epsilon(one, d) <= budget + ROUNDING for one, d in zip(spent, deltas)], bool)

    def noises(self, spec: LocalSpec, examples: Ints, deltas: Floats) -> Floats:
        """The noise multipliers `[K]` of training: as set, or the least with which all rounds fit the budget."""
        if self.noise is not None:
            return np.full(len(examples), self.noise)
        steps = self.rounds * spec.steps(examples)
        each = zip(deltas, spec.rates(examples), steps)
        return np.array([accounting.least_noise(self.epsilon, d, float(q), int(n)) for d, q, n in each])

    def training(self, spec: LocalSpec, examples: Ints, validation: Ints | None) -> Private:
        """How silos train."""
        return Private(self.clip, self.noises(spec, examples, self.delta_of(examples, validation)), self.secret)

    def spent(self, curves: Floats, deltas: Floats) -> Floats:
        """The epsilon `[K]`: the larger of what training and validation examples have paid."""
        return np.array([max(accounting.epsilon(part, d) for part in one) for one, d in zip(curves, deltas)])

    def blurred(self, situation: Situation, clients: Ints, seed: int, allowed: Allowance) -> Situation:
        """What the rule sees: the count of right answers of the offered model minus those of the own, with noise.

        One example changes that difference by one at most. Nothing else of a situation is left to look at.
        """
        if not (self.noisy and self.asks):
            return situation
        if situation.validation is None:
            raise ConfigError(
                "privacy.decisions is 'noisy', but the task does not say on how many examples it scores; give it"
                " `validation_examples`, or use participation.rule = 'always'"
            )
        n = np.asarray(situation.validation)
        noise = self._normal(clients, seed, situation.round) * allowed.answer_noise
        count = np.round((situation.offered.accuracy - situation.own.accuracy) * n) + noise
        nothing = np.full(len(n), np.nan)
        return replace(
            situation, own=Scores(np.zeros(len(n)), nothing), offered=Scores(count / n, nothing), validation=None
        )

    def _normal(self, clients: Ints, seed: int, round: int) -> Floats:
        if self.secret:
            from feduca.core.secret import normal

            return normal(len(clients))
        return np.array([stream(seed, "private decision", round, int(k)).normal() for k in clients])

    def discreet(self, reports: Reports) -> Reports:
        """What a deployed silo sends of its reports: no scores, and no words, which would tell of single examples."""
        from feduca.core.messages import measurements, unmeasured

        m, k = reports.measurements, len(reports.clients)
        epsilon = {"noted.epsilon": m.noted["epsilon"]} if "epsilon" in m.noted else {}
        kept = measurements({**unmeasured(k), "examples": m.examples, **epsilon})
        said = [why if why == SPENT else "" for why in reports.reason]
        return replace(reports, reason=said, measurements=kept)


def never_less(kept: Mapping[str, Array], on_disk: Floats | None) -> dict[str, Array]:
    """What a silo remembers, with no less spent than its ledger says, which outlives runs and goes back with no server."""
    if on_disk is None:
        return dict(kept)
    ledger = on_disk[None]
    return {**kept, KEY: np.maximum(kept[KEY], ledger) if KEY in kept else ledger}


def check_first_round(privacy: Privacy, spec: LocalSpec, task: Task) -> None:
    """Refuse a noise with which a silo could not train once."""
    examples = np.asarray(task.examples)
    allowed = privacy.allow(
        {}, spec, examples, getattr(task, "validation_examples", None), np.zeros(len(examples), bool)
    )
    if not allowed.trains.all():
        k = int(np.flatnonzero(~allowed.trains)[0])
        cost = accounting.epsilon(allowed.training[k], float(allowed.deltas[k]))
        raise ConfigError(
            f"privacy.noise is {privacy.noise or 0:g}: one round costs silo {task.silos[k]} an epsilon of {cost:.3g}, more than"
            f" its budget of {privacy.epsilon:g}; leave privacy.noise out, and it is found"
        )
