"""The model a silo would have had alone: the same start, the same batches, the same budget, never federated.

It is what "better off" is measured against. A run computes it beside its own work only where asked (`alone = true`, or a rule
that needs it); it does not depend on the method, so a study computes it once, as a row under the rule `never`, and joins the two
afterwards (reproduce/summary.py). Both ways give the same models to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from feduca.arrays import finite, repeat, select
from feduca.types import Announcements, Array, ClientMemory, LocalSpec
from feduca.work import Steps, Train

Initial = Callable[[], Array]  # the run's first model, not finite where nobody knows it


def current(memory: ClientMemory, asked: Announcements, initial: Initial | None = None) -> Array | None:
    """The models alone before this round's training `[K, P]`; the first one is the run's first, whenever the silo comes.

    What a newcomer is sent is federated already, so it is no such start. None where the run's first model is not known.
    """
    kept = memory.extra.get("alone")
    if memory.trained.all():
        return kept
    if kept is None and memory.trained.any():
        return None
    start = asked.theta if asked.round == 1 else None if initial is None else initial()
    if start is None or not finite(start):
        return None
    first = repeat(start, len(asked.clients))
    return first if kept is None else select(memory.trained, kept, first)


def trained(model: Array, asked: Announcements, seed: int) -> Steps[Array]:
    """One more round of training alone, without any term of the method's own."""
    return (yield Train(model, asked.clients, plain(asked.local), asked.round, seed))


def plain(spec: LocalSpec) -> LocalSpec:
    """Local training as everybody does it: no pull towards a shared model, the mean loss."""
    return replace(spec, prox=0.0, objective="mean", bound=0.0)
