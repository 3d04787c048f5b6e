"""The model a silo would have had alone: the same start, the same batches, the same budget, never federated.

It is what "better off" is measured against. A run computes it beside its own work only where asked (`alone = true`, or a rule
that needs it); it does not depend on the method, so a study computes it once, as a row under the rule `never`, and joins the two
afterwards (reproduce/summary.py). Both ways give the same models to the bit.
"""

from __future__ import annotations

from dataclasses import replace

from feduca.arrays import repeat, select
from feduca.types import Announcements, Array, ClientMemory, LocalSpec
from feduca.work import Steps, Train


def current(memory: ClientMemory, asked: Announcements) -> Array:
    """The models alone before this round's training `[K, P]`; a silo's first one is the model it is first sent."""
    first = repeat(asked.theta, len(asked.clients))
    kept = memory.extra.get("alone")
    return first if kept is None else select(memory.trained, kept, first)


def trained(model: Array, asked: Announcements, seed: int) -> Steps[Array]:
    """One more round of training alone, without any term of the method's own."""
    return (yield Train(model, asked.clients, plain(asked.local), asked.round, seed))


def plain(spec: LocalSpec) -> LocalSpec:
    """Local training as everybody does it: no pull towards a shared model, the mean loss."""
    return replace(spec, prox=0.0, objective="mean", bound=0.0)
