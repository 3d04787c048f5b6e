"""A silo's utility: the curve fitted between the others' model and its own, and the threshold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from feduca.client.behaviour import Behaviour
from feduca.client.requests import Along, Evaluate, Steps
from feduca.core.arrays import columns, mix, repeat
from feduca.core.utility import nodes, r_squared
from feduca.types import Announcements, Array, Bools, ClientMemory, Floats, Scores

CAP = 0.99  # largest alpha_formed for which (theta - a theta_k) / (1 - a) is still formed


@dataclass(frozen=True)
class Estimate:
    """A round's fit, all `[K, ...]`; NaN where nothing needs a curve."""

    zeta: Floats
    gamma: Floats
    r2: Floats
    capped: Bools
    points: dict[str, Floats] = field(default_factory=dict)  # what the fit rests on, where it is kept
    extra: dict[str, Floats] = field(default_factory=dict)  # what the client remembers of it


def leave_one_out(theta: Array, own: Array, alpha: Floats, known: Bools, parameters: int) -> tuple[Array, Bools]:
    """`theta_-k = (theta - a theta_k) / (1 - a)` (Eq. 3), theta itself where no own model is known; and who was capped.

    Buffers (the tail beyond `parameters`) stay theta's: extrapolated running statistics mean nothing.
    """
    a = np.minimum(alpha, CAP)
    without = mix(repeat(theta, len(alpha)), own, np.where(known, -a / (1 - a), 0.0))
    if parameters < theta.shape[-1]:
        without[:, parameters:] = theta[..., parameters:]
    return without, known & (alpha > CAP)


def estimate(
    memory: ClientMemory, asked: Announcements, how: Behaviour, new: Array, parameters: int
) -> Steps[Estimate]:
    """Fit utility between the leave-one-out model and `new`, the models just trained, and set the thresholds."""
    k, family = len(asked.clients), how.family
    r2, capped = np.full(k, np.nan), np.zeros(k, bool)
    if not how.all_needs.curve:
        return Estimate(np.full((k, family.size), np.nan), np.full(k, np.nan), r2, capped)
    local = how.leave_out == "local"
    base, known = (memory.own, memory.trained) if local else (memory.contributed, memory.contributes)
    without, capped = leave_one_out(asked.theta, base, asked.alpha_formed, known, parameters)
    if how.share is not None:  # of what is private nothing is anybody else's
        without = columns(how.share.mask, without, asked.theta)
    r, weights = nodes(how.nodes)
    checking = how.check_every > 0 and (asked.round - 1) % how.check_every == 0
    grid = np.linspace(0, 1, how.check) if checking else np.empty(0)
    places = np.tile(np.concatenate([r, grid]), (k, 1))
    path: Scores = yield Along(without, new, places, asked.clients)
    utility = path.metric(how.metric)
    points: dict[str, Floats] = {}
    keeping = checking and how.keep_curves
    if how.record_points or keeping:
        points = {"places": places, "values": utility} | ({"losses": path.loss} if keeping else {})
    zeta = family.fit(r, utility[:, : len(r)], weights)
    if checking:
        r2 = r_squared(family, zeta, grid, utility[:, len(r) :])
    if how.threshold == "own-accuracy":
        gamma = (yield Evaluate(new, asked.clients)).metric(how.metric)
    else:
        gamma = family.value(zeta, asked.alpha_formed if how.threshold == "previous-weight" else np.ones(k))
    gamma, extra = averaged(memory, gamma, how.average)
    return Estimate(zeta, gamma, r2, capped, points, extra)


def averaged(memory: ClientMemory, gamma: Floats, rounds: int) -> tuple[Floats, dict[str, Floats]]:
    """The mean of this threshold and the last ones, `rounds` in all, and what of them is needed again.

    Kept are how many there are and the last of them; a client's row is zero before it has had any.
    """
    if rounds == 1:
        return gamma, {}
    kept = np.asarray(memory.extra.get("thresholds", np.zeros((len(gamma), rounds))))
    count, recent = kept[:, 0], np.column_stack([kept[:, 1:], gamma])
    there = np.arange(rounds) >= rounds - 1 - np.minimum(count, rounds - 1)[:, None]
    mean = np.where(there, recent, 0.0).sum(1) / there.sum(1)
    return mean, {"thresholds": np.column_stack([count + 1, recent[:, 1:]])}
