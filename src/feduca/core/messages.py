"""One message per client: a round's announcements taken apart, and single reports put together again.

Clients on machines of their own are stepped one at a time. Taking apart and putting together copies numbers and changes none, so
a federation that works client by client gives the same bits wherever the clients are.

Wherever measurements are handled all alike they are named columns: `own.accuracy`, `r2`, `test.deployed`, `points.places`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from feduca.core.arrays import like, repeat, zeros
from feduca.types import Announcements, Array, Bools, Ints, Measurements, Reports, Scores

_SCORES, _PARTS = ("global_", "own", "offered"), ("accuracy", "loss")
_MAPPINGS = ("test", "told", "points", "noted")
_PLACES = "points.places"
_PLAIN = tuple(f.name for f in fields(Measurements) if f.name not in (*_SCORES, *_MAPPINGS))
NAMES = (*(f"{name}.{part}" for name in _SCORES for part in _PARTS), *_PLAIN)  # what every silo measures
KINDS = {"evaluations": int, "examples": int, "capped": bool}  # all others are floats


def alone(asked: Announcements, place: int) -> Announcements:
    """What the client at `place` of `asked.clients` is told."""
    one = slice(place, place + 1)
    return replace(
        asked,
        theta=asked.older.get(int(asked.clients[place]), asked.theta),
        older={},
        clients=asked.clients[one],
        alpha_formed=asked.alpha_formed[one],
        alpha_announced=asked.alpha_announced[one],
        weights=None if asked.weights is None else asked.weights[one],
    )


def models(asked: Announcements, clients: Ints) -> Array:
    """What `clients` are sent, `[K, P]`: the same for all who have standing."""
    each = repeat(asked.theta, len(clients))
    if not asked.older:
        return each
    each = each.clone() if hasattr(each, "clone") else each.copy()
    for row, k in enumerate(clients):
        if int(k) in asked.older:
            each[row] = asked.older[int(k)]
    return each


def each_its_own(asked: Announcements) -> Announcements:
    """The same with `theta[K, P]` where clients are sent different models: as a client's step is told."""
    return replace(asked, theta=models(asked, asked.clients), older={}) if asked.older else asked


def together(parts: Sequence[Reports], round: int, theta: Array, curve: int) -> Reports:
    """Single reports as one, in the order given; none at all is a round in which nobody answered.

    Models become arrays of `theta`'s kind; `curve` is how many numbers describe a utility curve.
    """
    models = zeros(theta, len(parts), len(theta))
    for row, part in enumerate(parts):
        models[row] = part.theta[0] if type(part.theta) is type(theta) else like(theta, part.theta[0])
    return Reports(
        round=round,
        clients=np.concatenate([np.zeros(0, int), *(part.clients for part in parts)]),
        status=[part.status[0] for part in parts],
        reason=[part.reason[0] for part in parts],
        theta=models,
        gamma=np.concatenate([np.zeros(0), *(part.gamma for part in parts)]),
        zeta=np.concatenate([np.zeros((0, curve)), *(part.zeta for part in parts)]),
        measurements=_stacked([columns(part.measurements) for part in parts]),
    )


def silent(asked: Announcements, status: str, reason: str, curve: int, examples: int = 0) -> Reports:
    """Reports of clients that sent nothing of use: no model, no curve, nothing measured."""
    k = len(asked.clients)
    return Reports(
        round=asked.round,
        clients=np.asarray(asked.clients),
        status=[status] * k,
        reason=[reason] * k,
        theta=zeros(asked.theta, k, len(asked.theta)),
        gamma=np.full(k, np.nan),
        zeta=np.full((k, curve), np.nan),
        measurements=measurements({**unmeasured(k), "examples": np.full(k, examples)}),
    )


def columns(m: Measurements) -> dict[str, np.ndarray]:
    """Measurements as a flat mapping from names to columns `[K, ...]`."""
    scores = {f"{name}.{part}": getattr(getattr(m, name), part) for name in _SCORES for part in _PARTS}
    plain = {name: getattr(m, name) for name in _PLAIN}
    return scores | plain | {f"{kind}.{name}": x for kind in _MAPPINGS for name, x in getattr(m, kind).items()}


def measurements(columns: Mapping[str, np.ndarray]) -> Measurements:
    """The inverse of `columns`."""
    rest: dict[str, Any] = dict(columns)
    scores = {name: Scores(rest.pop(f"{name}.accuracy"), rest.pop(f"{name}.loss")) for name in _SCORES}
    mappings: dict[str, Any] = {
        kind: {name.removeprefix(f"{kind}."): rest.pop(name) for name in list(rest) if name.startswith(f"{kind}.")}
        for kind in _MAPPINGS
    }
    return Measurements(**scores, **rest, **mappings)


def silenced(m: Measurements, unheard: Bools) -> Measurements:
    """Measurements without those of some clients: undefined, zero or False."""
    changed = {name: column.copy() for name, column in columns(m).items()}
    for column in changed.values():
        column[unheard] = np.nan if column.dtype.kind == "f" else 0
    return measurements(changed)


def unmeasured(k: int) -> dict[str, np.ndarray]:
    """The columns of `k` clients that measured nothing: undefined, zero or False."""
    return {name: np.zeros(k, KINDS[name]) if name in KINDS else np.full(k, np.nan) for name in NAMES}


def _stacked(parts: Sequence[Mapping[str, np.ndarray]]) -> Measurements:
    """Columns of one row each as one; NaN for those that have none of such a name, or one of another shape than most."""
    seen: dict[str, Counter[tuple[int, ...]]] = {name: Counter([()]) for name in NAMES}
    for part in parts:
        for name, values in part.items():
            seen.setdefault(name, Counter())[values.shape[1:]] += 1
    whole = {}
    for name, shapes in seen.items():
        shapes = seen.get(_PLACES, shapes) if name.startswith("points.") else shapes  # all of a silo's points, or none
        shape = shapes.most_common(1)[0][0]
        nothing = np.full((1, *shape), np.nan)
        rows = [part.get(name, nothing) for part in parts]
        rows = [row if row.shape == nothing.shape else nothing for row in rows]
        whole[name] = np.concatenate([nothing[:0], *rows]).astype(KINDS.get(name, float))
    return measurements(whole)
