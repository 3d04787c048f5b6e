"""Who belongs: silos that do not answer, that come later, that leave.

Absent is not unwilling. A silo that does not answer is treated like one that declines (its remembered update counts, its last
curve stands); after `patience` silent rounds in a row it is left out of the program, until it answers again. A silo that
has left stays out, whether it still answers, falls silent or would come back: the server's state says who has. New silos are
appended, so everybody keeps its place.

A mechanism never sees any of this: it is given the silos that are in, as if there were no others, and its weights are spread over
all of them with zeros for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from feduca.arrays import put, take, zeros
from feduca.types import LEFT, Allocation, Bools, Floats, Ints, Mechanism, Reports, Round, ServerState
from feduca.weights import checked

_NOT_PER_SILO = ("round", "previous", "told")  # of a Round, as an array
_PER_SILO = ("alpha", "slack", "satisfied", "applied", "fresh", "stored")  # of an Allocation, `[N]` each


@dataclass(frozen=True)
class Census:
    """Who is known at the start of a round, in the server's order; nobody ever loses its place."""

    examples: Ints  # [N]
    left: Bools  # [N], for good


TakeCensus = Callable[[], Census]


def departed(state: ServerState, reports: Reports | None = None, left: Bools | None = None) -> Bools:
    """Who has left for good: earlier, by this round's own word (participation.Quits), or by its operator's (the census)."""
    gone = np.zeros(len(state.examples), bool) if state.left is None else state.left.copy()
    if reports is not None:
        gone[[k for k, status in zip(reports.clients, reports.status) if status == LEFT]] = True
    return gone if left is None else gone | left


def absences(before: Ints, reports: Reports) -> Ints:
    """Silent rounds in a row, after this round's reports."""
    heard = [k for k, status in zip(reports.clients, reports.status) if status != "absent"]
    after = before + 1
    after[heard] = 0
    return after


def active(absent: Ints, left: Bools, patience: int) -> Bools:
    """Who is in the program. `patience` 0 leaves nobody out for being silent; if nobody were left, all of them stay."""
    inside = ~left if patience == 0 else ~left & (absent < patience)
    return inside if inside.any() else np.ones(len(absent), bool)


def allocate(mechanism: Mechanism, state: Any, seen: Round, seed: int) -> tuple[Any, Allocation]:
    """`mechanism.allocate` among the active silos."""
    if seen.active.all():
        return checked(mechanism, mechanism.allocate(state, seen, seed), len(seen.active), seen.round)
    n, inside = len(seen.active), np.flatnonzero(seen.active)
    part = replace(
        seen,
        **{f.name: take(getattr(seen, f.name), inside) for f in fields(Round) if f.name not in _NOT_PER_SILO},
        previous=_cut(seen.previous, inside),
        told={name: values[inside] for name, values in seen.told.items()},
    )
    given = mechanism.allocate(_rows(state, inside, n), part, seed)
    inner, solved = checked(mechanism, given, len(inside), seen.round)
    return _merged(state, inner, inside, n), spread(solved, inside, n)


def spread(allocation: Allocation, inside: Ints, n: int) -> Allocation:
    """Weights among `inside` as weights among all n silos: zero elsewhere, and nobody else is satisfied."""

    def wide(values: Floats | None) -> Floats | None:
        if values is None:
            return None
        full = np.zeros((*values.shape[:-1], n), values.dtype)
        full[..., inside] = values
        return full

    changed = {name: wide(getattr(allocation, name)) for name in (*_PER_SILO, "R")}
    return replace(allocation, **changed)


def grow(state: ServerState, census: Census, mechanism: Mechanism, seed: int) -> ServerState:
    """The state with rows for silos that have come since: they have sent nothing and weigh nothing yet."""
    old, n = len(state.examples), len(census.examples)
    if n == old:
        return state
    more, known = n - old, np.arange(old)
    fresh, _ = mechanism.init(census.examples, seed)
    return replace(
        state,
        remembered=put(zeros(state.remembered, n, state.remembered.shape[1]), known, state.remembered),
        last_joined=np.concatenate([state.last_joined, np.zeros(more, int)]),
        formed=spread(state.formed, known, n),
        announced=spread(state.announced, known, n),
        pending=spread(state.pending, known, n),
        mechanism=_merged(fresh, state.mechanism, known, n),
        gamma=np.concatenate([state.gamma, np.full(more, np.nan)]),
        zeta=np.concatenate([state.zeta, np.full((more, state.zeta.shape[1]), np.nan)]),
        examples=np.asarray(census.examples),
        absences=np.concatenate([state.absences, np.zeros(more, int)]),
        history={name: np.concatenate([x, np.zeros((more, *x.shape[1:]))]) for name, x in state.history.items()},
        left=None if state.left is None else np.concatenate([state.left, np.zeros(more, bool)]),
    )


def _cut(allocation: Allocation, inside: Ints) -> Allocation:
    """The part of earlier weights that belongs to `inside`, scaled to what all of them had."""

    def narrow(values: Floats) -> Floats:
        kept, total = values[..., inside], values.sum(-1, keepdims=True)
        left = kept.sum(-1, keepdims=True)
        return np.where(left > 0, kept * (total / np.where(left > 0, left, 1)), total / len(inside))

    weights = {name: getattr(allocation, name) for name in ("alpha", "R", "applied")}
    others = {name: getattr(allocation, name) for name in _PER_SILO if name not in weights}
    return replace(
        allocation,
        **{name: None if value is None else narrow(value) for name, value in weights.items()},
        **{name: None if value is None else value[inside] for name, value in others.items()},
    )


# A mechanism's own state is None or a tree of dicts, lists, numbers and arrays. Arrays with a row per silo follow the silos,
# square ones in both directions; weights that sum to one are scaled to do so among those that remain.


def _rows(tree: Any, inside: Ints, n: int) -> Any:
    """The part of a mechanism's state that belongs to the silos `inside`, of n."""
    if isinstance(tree, dict):
        return {key: _rows(value, inside, n) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_rows(value, inside, n) for value in tree)
    if not _is_per_silo(tree, n):
        return tree
    if _is_square(tree):
        return tree[np.ix_(inside, inside)]
    part = take(tree, inside)
    if not _sums_to_one(tree):
        return part
    return part / part.sum() if part.sum() > 0 else np.full(len(inside), 1 / len(inside))


def _merged(whole: Any, part: Any, inside: Ints, n: int) -> Any:
    """`whole` with the rows `inside` as `part` has them; what has no rows comes from `part`."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {key: _merged(whole.get(key), value, inside, n) for key, value in part.items()}
    if isinstance(whole, list | tuple) and isinstance(part, list | tuple):
        return type(part)(_merged(a, b, inside, n) for a, b in zip(whole, part))
    if not (_is_per_silo(whole, n) and _is_per_silo(part, len(inside))):
        return part
    if _is_square(whole) and _is_square(part):
        full = np.array(whole)
        full[np.ix_(inside, inside)] = part
        return full
    if _sums_to_one(whole) and _sums_to_one(part):
        return put(whole, inside, part * whole[inside].sum()) if len(inside) < n else part
    return put(whole, inside, part)


def _is_per_silo(value: Any, n: int) -> bool:
    return hasattr(value, "shape") and len(value.shape) > 0 and value.shape[0] == n


def _is_square(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[0] == value.shape[1]


def _sums_to_one(value: Any) -> bool:
    plain = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f"
    return plain and bool((value >= 0).all()) and abs(value.sum() - 1) < 1e-9
