"""One message per client: a round's announcements taken apart, and single reports put together again.

Clients on machines of their own are stepped one at a time. Taking apart and putting together copies numbers and changes none, so
a federation that works client by client gives the same bits wherever the clients are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from feduca.arrays import like, zeros
from feduca.types import Announcements, Array, Measurements, Reports, Scores

_SCORES = ("global_", "own", "offered")


def alone(asked: Announcements, place: int) -> Announcements:
    """What the client at `place` of `asked.clients` is told."""
    one = slice(place, place + 1)
    return replace(
        asked,
        clients=asked.clients[one],
        alpha_formed=asked.alpha_formed[one],
        alpha_announced=asked.alpha_announced[one],
    )


def together(parts: Sequence[Reports], round: int, theta: Array, curve: int) -> Reports:
    """Single reports as one, in the order given; none at all is a round in which nobody answered.

    Models become arrays of `theta`'s kind; `curve` is how many numbers describe a utility curve.
    """
    models = zeros(theta, len(parts), len(theta))
    for row, part in enumerate(parts):
        models[row] = part.theta[0] if type(part.theta) is type(theta) else like(theta, part.theta[0])
    measured = [part.measurements for part in parts]
    kinds = {"examples": int, "evaluations": int, "capped": bool}
    rest: dict[str, Any] = {
        f.name: _column([getattr(m, f.name) for m in measured], kinds.get(f.name, float))
        for f in fields(Measurements)
        if f.name not in (*_SCORES, "test", "told", "points")
    }
    return Reports(
        round=round,
        clients=_column([part.clients for part in parts], int),
        status=[part.status[0] for part in parts],
        reason=[part.reason[0] for part in parts],
        theta=models,
        gamma=_column([part.gamma for part in parts], float),
        zeta=np.concatenate([np.zeros((0, curve)), *(part.zeta for part in parts)]),
        measurements=Measurements(
            global_=_scores([m.global_ for m in measured]),
            own=_scores([m.own for m in measured]),
            offered=_scores([m.offered for m in measured]),
            test=_mapping([m.test for m in measured]),
            told=_mapping([m.told for m in measured]),
            points=_mapping([m.points for m in measured]),
            **rest,
        ),
    )


def silent(round: int, client: int, status: str, reason: str, theta: Array, curve: int, examples: int = 0) -> Reports:
    """The report of a client that sent nothing of use: no model, no curve, nothing measured."""
    nothing = np.full(1, np.nan)
    return Reports(
        round=round,
        clients=np.array([client]),
        status=[status],
        reason=[reason],
        theta=zeros(theta, 1, len(theta)),
        gamma=nothing,
        zeta=np.full((1, curve), np.nan),
        measurements=Measurements(
            global_=Scores(nothing, nothing),
            own=Scores(nothing, nothing),
            offered=Scores(nothing, nothing),
            train_loss=nothing,
            concession=nothing,
            evaluations=np.zeros(1, int),
            examples=np.array([examples]),
            promised=nothing,
            eq2=nothing,
            r2=nothing,
            capped=np.zeros(1, bool),
        ),
    )


def _mapping(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Named columns `[K, ...]`; NaN for those that have no such name."""
    shapes = {name: values.shape[1:] for part in parts for name, values in part.items()}
    return {
        name: np.concatenate([part.get(name, np.full((1, *shape), np.nan)) for part in parts])
        for name, shape in shapes.items()
    }


def _column(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)


def _scores(parts: Sequence[Scores]) -> Scores:
    return Scores(_column([p.accuracy for p in parts], float), _column([p.loss for p in parts], float))
