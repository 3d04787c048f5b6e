"""The server's side of secure aggregation in the round loop: running sums instead of single updates.

Who joins adds, masked, the change of its contribution (its new weighted update minus the one it contributed last); whoever
declines or is silent adds nothing, and its last contribution stays in the sum. A silo's weight therefore stays as it was until it
joins again: varying it would give the server a new equation a round, and in the end single updates (docs/secure-aggregation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from feduca.core.arrays import like, zeros
from feduca.core.records import UNRELEASED
from feduca.errors import RunError
from feduca.privacy.encoding import decode
from feduca.trust.gate import Admitted
from feduca.trust.plausibility import merged
from feduca.types import Allocation, Array, Bools, Floats, Released, Reports, ServerState

HELD = "held"  # in the state's history: the weights with which last contributions count


@dataclass(frozen=True)
class Sums:
    """What goes into the next model, and what is kept."""

    step: tuple[
        Array, Floats, Array, Floats, Array, Bools
    ]  # the first arguments of `Weighted.next`: of one update, the sum
    counted: Bools  # [N], whose changes are in the round's sum
    formed: Allocation
    history: Mapping[str, Floats]
    contributed: Array
    why: str


def weights(state: ServerState) -> Floats:
    """With which this round's updates count: those that are known when the round begins, for silos apply them themselves."""
    return state.pending.alpha if state.pending.applied is None else state.pending.applied


def unseen(admitted: Admitted, reports: Reports) -> Admitted:
    """What the gate saw, without lengths of updates that nobody saw, and with a word to those who were not counted."""
    released, said = _released(reports), []
    counted = dict(zip(reports.clients.tolist(), released.counted.tolist()))
    for k, joined in zip(admitted.reports.clients.tolist(), admitted.reports.joined):
        lost = joined and not counted[k]
        said.append(f"not counted this time: {released.why or 'it dropped out'}" if lost else "")
    lengths = np.full(len(admitted.norms), np.nan)
    kept = replace(admitted.reports, released=released)
    return Admitted(kept, lengths, merged(admitted.advice, said))


def gathered(state: ServerState, reports: Reports, used: Allocation, memory: str, parameters: int) -> Sums:
    """The round's sum laid over the running one. `used` is the allocation that the weights belong to."""
    released, n = _released(reports), len(state.examples)
    everybody = np.zeros(n)
    counted = np.zeros(n, bool)
    counted[reports.clients], everybody[reports.clients] = released.counted, released.weights
    fresh = np.where(counted, everybody, 0.0)
    number = int(counted.sum())
    if memory == "none":  # the participants' weights, scaled to the sum that all have
        total = released.total.copy()
        scale = everybody.sum() / fresh.sum() if fresh.sum() > 0 else 0.0
        held = fresh * scale
    else:
        total = released.total if state.contributed is None else state.contributed + released.total
        held, scale = np.where(counted, fresh, state.history.get(HELD, np.zeros(n))), 1.0
    row = decode(total) * scale
    tail = decode(released.total[parameters:])  # buffers: the plain mean of this round's participants
    row[parameters:] = tail / number if number else 0.0
    kept = total.copy()
    kept[parameters:] = 0
    if not number and reports.joined.any():
        row[:] = 0.0  # a round that is lost moves nothing: a step of old updates alone would be taken twice
    theta = state.theta
    empty = zeros(theta, 1, len(theta))
    step = (theta, np.ones(1), like(theta, row)[None], np.zeros(1), empty, np.array([number > 0]))
    formed = replace(used, alpha=held, applied=None)
    return Sums(step, counted, formed, {HELD: held}, kept, released.why and f"{UNRELEASED}{released.why}.")


def _released(reports: Reports) -> Released:
    if reports.released is None:
        raise RunError(
            "privacy.secure_aggregation is on, and this federation sent no sum; use one that runs the protocol"
            " (federation/masked.py), or turn it off"
        )
    return reports.released
