"""A rule around a rule: a silo's own bound on what it must gain over the model it would have had alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from feduca.client.participation import Decision, ParticipationRule, Situation, decided
from feduca.types import Needs

GAIN, ALONE = "policy.gain", "policy.alone"  # in what a rule keeps, for whoever looks at a silo's own disk


@dataclass(frozen=True)
class LeastGain:
    """Only what `rule` takes and what is at least `least` more accurate, on the silo's validation data, than its model alone.

    Where the model alone is not known nothing is gained. The reasons are the inner rule's for whoever joins: the figures of the
    model alone are nobody else's.
    """

    least: float
    rule: ParticipationRule

    @property
    def needs(self) -> Needs:
        return self.rule.needs | Needs(alone=True)

    def decide(self, situation: Situation) -> Decision:
        inner = decided(self.rule, situation)
        unknown = np.full(len(situation.gamma), np.nan)
        alone = unknown if situation.alone is None else situation.alone.accuracy
        gain = situation.offered.accuracy - alone
        enough = gain >= self.least - 1e-12
        reason = [
            why if yes or not would else f"gain over alone {g:+.4f} is below {self.least:g}"
            for yes, would, why, g in zip(enough, inner.join, inner.reason, gain)
        ]
        kept = {**inner.extra, GAIN: gain, ALONE: np.asarray(alone)}
        return replace(inner, join=inner.join & enough, reason=reason, extra=kept)
