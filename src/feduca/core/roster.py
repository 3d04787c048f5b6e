"""Who belongs: silos that do not answer, that come later, that leave.

Absent is not unwilling. A silo that does not answer is treated like one that declines (its remembered update counts, its last
curve stands); after `patience` silent rounds in a row it is left out of the program, until it answers again. A silo that
has left stays out, whether it still answers, falls silent or would come back: the server's state says who has. New silos are
appended, so everybody keeps its place.

A mechanism never sees any of this: it is given the silos that are in, as if there were no others, and its weights are spread over
all of them with zeros for the rest. Of its state, what it declares as `per_silo` follows the silos; the rest is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from feduca.core.arrays import put, take, zeros
from feduca.core.rows import Rows
from feduca.core.weights import checked, name_of
from feduca.errors import ConfigError, RunError
from feduca.types import LEFT, Allocation, Bools, Floats, Ints, Mechanism, Reports, Round, ServerState

_NOT_PER_SILO = ("round", "delta", "previous", "told", "local", "validation_loss")  # of a Round, as an array here
_PER_SILO = ("alpha", "slack", "satisfied", "applied", "fresh", "stored")  # of an Allocation, `[N]` each


@dataclass(frozen=True)
class Census:
    """Who is known at the start of a round, in the server's order; nobody ever loses its place."""

    examples: Ints  # [N]
    left: Bools  # [N], for good
    erased: Bools | None = None  # [N], whose updates and curves are to be forgotten, too


TakeCensus = Callable[[], Census]


def departed(state: ServerState, reports: Reports | None = None, left: Bools | None = None) -> Bools:
    """Who has left for good: earlier, by this round's own word (participation.Quits), or by its operator's (the census)."""
    gone = np.zeros(len(state.examples), bool) if state.left is None else state.left.copy()
    if reports is not None:
        gone[[k for k, status in zip(reports.clients, reports.status) if status == LEFT]] = True
    return gone if left is None else gone | left


def absences(before: Ints, reports: Reports, asked: Ints | None = None) -> Ints:
    """Silent rounds in a row, after this round's reports; those in which a silo was not `asked` (None: all were) do not count."""
    heard = [k for k, status in zip(reports.clients, reports.status) if status != "absent"]
    after = before.copy()
    after[slice(None) if asked is None else asked] += 1
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
        delta=lambda: take(seen.delta, inside),
        previous=_cut(seen.previous, inside),
        told={name: values[inside] for name, values in seen.told.items()},
        validation_loss=None if seen.validation_loss is None else seen.validation_loss[inside],
    )
    declared, who = getattr(mechanism, "per_silo", None), name_of(mechanism)
    try:
        given = mechanism.allocate(_narrowed(state, declared, inside, n, who), part, seed)
    except (ValueError, IndexError) as error:
        if state is None or declared is not None:
            raise
        raise RunError(
            f"the mechanism {who} in round {seen.round} cannot do without {n - len(inside)} of {n} silos ({str(error)[:100]});"
            " if its state has a row per silo, say so: per_silo (docs/your-mechanism.md)"
        ) from error
    inner, solved = checked(mechanism, given, len(inside), seen.round)
    return _widened(state, inner, declared, inside, n, who), spread(solved, inside, n)


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


def erase(state: ServerState, who: Bools | None) -> ServerState:
    """The state without what silos sent that have left and asked for that. Nothing of it was aggregated any more."""
    if who is None or not who.any():
        return state
    rows = np.flatnonzero(who)
    stay = ~who
    return replace(
        state,
        remembered=put(state.remembered, rows, zeros(state.remembered, len(rows), state.remembered.shape[1])),
        recalled={},  # to be summed anew
        last_joined=np.where(stay, state.last_joined, 0),
        gamma=np.where(stay, state.gamma, np.nan),
        zeta=np.where(stay[:, None], state.zeta, np.nan),
        history={
            name: np.where(stay.reshape(-1, *[1] * (x.ndim - 1)), x, 0).astype(x.dtype)
            for name, x in state.history.items()
        },
    )


def grow(state: ServerState, census: Census, mechanism: Mechanism, seed: int) -> ServerState:
    """The state with rows for silos that have come since: they have sent nothing and weigh nothing yet."""
    old, n = len(state.examples), len(census.examples)
    if n == old:
        return state
    more, known, rows = n - old, np.arange(old), state.remembered
    fresh, _ = mechanism.init(census.examples, seed)
    declared = getattr(mechanism, "per_silo", None)
    return replace(
        state,
        remembered=rows.grown(n) if isinstance(rows, Rows) else put(zeros(rows, n, rows.shape[1]), known, rows),
        recalled={},
        last_joined=np.concatenate([state.last_joined, np.zeros(more, int)]),
        formed=spread(state.formed, known, n),
        announced=spread(state.announced, known, n),
        pending=spread(state.pending, known, n),
        mechanism=_widened(fresh, state.mechanism, declared, known, n, name_of(mechanism)),
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


# A mechanism's own state is None or a tree of dicts, lists, numbers and arrays. What of it follows the silos, the mechanism
# declares (`per_silo`): one of these words for an array, or a mapping from keys of the state to such declarations.

KINDS = {
    "rows": "a row per silo",
    "weights": "a share per silo, 1 in all: those who remain share it among themselves",
    "square": "a row and a column per silo",
}


def check_declaration(declared: Any, who: str) -> None:
    """Refuse a `per_silo` that says nothing: neither a kind nor a mapping of such."""
    if isinstance(declared, Mapping):
        for inner in declared.values():
            check_declaration(inner, who)
    elif declared is not None and (not isinstance(declared, str) or declared not in KINDS):
        raise ConfigError(
            f"{who} says per_silo = {declared!r}; choose {', '.join(map(repr, KINDS))}, or a mapping from keys of its state"
            " to these"
        )


def _narrowed(tree: Any, declared: Any, inside: Ints, n: int, who: str) -> Any:
    """The part of a mechanism's state that belongs to the silos `inside`, of n."""
    if declared is None or tree is None:
        return tree
    if isinstance(tree, dict):
        below = _below(tree, declared, who)
        return {key: _narrowed(value, below[key], inside, n, who) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_narrowed(value, declared, inside, n, who) for value in tree)
    _check_shape(tree, declared, n, who)
    if declared == "square":
        return tree[np.ix_(inside, inside)]
    part = take(tree, inside)
    if declared == "rows":
        return part
    return part / part.sum() if part.sum() > 0 else np.full(len(inside), 1 / len(inside))


def _widened(whole: Any, part: Any, declared: Any, inside: Ints, n: int, who: str) -> Any:
    """`whole` with the rows `inside` as `part` has them; what is not declared comes from `part`."""
    if declared is None or whole is None or part is None:
        return part
    if isinstance(part, dict):
        below, before = _below(part, declared, who), whole if isinstance(whole, dict) else {}
        return {k: _widened(before.get(k), value, below[k], inside, n, who) for k, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(_widened(a, b, declared, inside, n, who) for a, b in zip(whole, part))
    _check_shape(whole, declared, n, who)
    _check_shape(part, declared, len(inside), who)
    if declared == "square":
        full = np.array(whole)
        full[np.ix_(inside, inside)] = part
        return full
    if declared == "weights" and len(inside) < n:  # the others keep their share
        return put(whole, inside, part * whole[inside].sum())
    return put(whole, inside, part)


def _below(tree: Mapping[str, Any], declared: Any, who: str) -> Mapping[str, Any]:
    """What is declared of each entry of a dictionary."""
    if not isinstance(declared, Mapping):
        return dict.fromkeys(tree, declared)
    if strange := [key for key in declared if key not in tree]:
        raise RunError(
            f"the mechanism {who} declares per_silo[{strange[0]!r}], and its state holds {', '.join(tree) or 'nothing'}; declare"
            " what is there"
        )
    return {key: declared.get(key) for key in tree}


def _check_shape(value: Any, declared: Any, n: int, who: str) -> None:
    shape, axes = tuple(getattr(value, "shape", ())), 2 if declared == "square" else 1
    if isinstance(declared, Mapping) or shape[:axes] != (n,) * axes:
        what = "a mapping" if isinstance(declared, Mapping) else f"{declared!r} ({KINDS[declared]})"
        raise RunError(
            f"the mechanism {who} declares per_silo as {what}, and its state there has shape {shape} for {n} silos; declare only"
            " what has a row for each"
        )
