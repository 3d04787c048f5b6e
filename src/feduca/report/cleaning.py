"""A run's records, cleaned: whatever a line holds, what comes out has the type and the length that a page expects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feduca.analysis.judging import COLUMNS
from feduca.core.records import WITHOUT

MAX_SILOS = 10_000
MAX_ROUNDS = 100_000
MAX_TEXT = 200  # characters of any name or reason that is shown

STATUSES = ("joined", "declined", "absent", "refused", "left", "not asked")

ROUND_NUMBERS = (
    "accuracy", "loss", "participation", "joined", "satisfied", "slack", "gap", "jensen", "discrepancy", "discrepancy_bound",
    "discrepancy_bound_expected", "r2", "smallest_cohort", "largest_staleness", "concession", "promise_kept",
)  # fmt: skip
ROUND_WORDS = ("status", "reason", "fallback")
CLIENT_NUMBERS = (
    "alpha", "announced", "slack", "gamma", "global_accuracy", "own_accuracy", "offered_accuracy", "promised", "promise_kept",
    "r2", "concession", "test_deployed", "test_own", "test_global", "test_alone",
)  # fmt: skip

Number = float | None


@dataclass(frozen=True)
class ClientRound:
    """One line of clients.jsonl, cleaned: every column has one entry per silo."""

    round: int
    status: str  # one letter per silo: j, d, a, r, l
    reason: Sequence[str]
    numbers: Mapping[str, Sequence[Number]]
    zeta: Sequence[Sequence[float] | None]
    places: Sequence[float]
    points: Sequence[Sequence[Number] | None]  # measured utilities at `places`
    paired: Mapping[str, Sequence[Number]] | None  # answers against the model alone (analysis/judging.py)
    standing: Sequence[Number]  # what the server thinks of a silo, 0 to 1, where it says so ...
    standing_reason: Sequence[str]  # ... and why
    lost: Sequence[str]  # why a silo has no standing; empty where it has


@dataclass(frozen=True)
class RoundLine:
    """One line of rounds.jsonl, cleaned."""

    round: int
    numbers: Mapping[str, Number]
    words: Mapping[str, str | None]
    seconds: float | None


def text(value: Any) -> str:
    """Something to show: a short string without control characters."""
    if value is None:
        return ""
    shown = str(value)[: MAX_TEXT + 1]
    shown = "".join(c if c.isprintable() else " " for c in shown)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


def number(value: Any) -> Number:
    """A finite number, or None."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def numbers(values: Any, n: int) -> list[Number]:
    return [number(v) for v in values] if isinstance(values, list) and len(values) == n else [None] * n


def _vectors(values: Any, n: int, longest: int) -> list[list[Number] | None]:
    if not isinstance(values, list) or len(values) != n:
        return [None] * n
    return [[number(x) for x in v] if isinstance(v, list) and 0 < len(v) <= longest else None for v in values]


def round_number(item: Mapping[str, Any]) -> int | None:
    value = item.get("round")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_ROUNDS else None


def round_line(item: dict[str, Any] | None) -> RoundLine | None:
    if item is None or (round := round_number(item)) is None:
        return None
    words = {name: None if item.get(name) is None else text(item[name]) for name in ROUND_WORDS}
    clocks = item.get("seconds")
    seconds = number(clocks.get("round")) if isinstance(clocks, dict) else None
    return RoundLine(round, {name: number(item.get(name)) for name in ROUND_NUMBERS}, words, seconds)


def widened(item: dict[str, Any] | None, n: int) -> dict[str, Any] | None:
    """A line of before some of `n` silos came, as long as the others: who was not there yet did not answer."""
    status = None if item is None else item.get("status")
    if item is None or not isinstance(status, list) or not 0 < (here := len(status)) < n:
        return item
    more = n - here
    wide = {k: [*v, *[None] * more] if isinstance(v, list) and len(v) == here else v for k, v in item.items()}
    reasons = item.get("reason")
    if isinstance(reasons, list):
        wide["reason"] = [*reasons, *["it had not come yet"] * more]
    return {**wide, "status": [*status, *["absent"] * more]}


def letters(status: Sequence[Any]) -> str:
    """Statuses, one letter per silo."""
    return "".join(word[0] if word in STATUSES else "a" for word in status)


def _standing(item: Mapping[str, Any], n: int) -> tuple[list[Number], list[str]]:
    """A standing per silo and its reason: two columns, or one of {"standing" or "value": number, "reason": text}."""
    column, because = item.get("standing"), item.get("standing_reason")
    if isinstance(column, dict):  # columns of its own
        column, because = column.get("standing", column.get("value")), column.get("reason", because)
    column = column if isinstance(column, list) and len(column) == n else [None] * n
    because = because if isinstance(because, list) and len(because) == n else [None] * n
    parts = [one if isinstance(one, dict) else {"value": one, "reason": why} for one, why in zip(column, because)]
    return [number(p.get("value", p.get("standing"))) for p in parts], [text(p.get("reason")) for p in parts]


def _lost(advice: Any, n: int) -> list[str]:
    """What the server's advice says of silos without standing, which it gives in every round, joined or not."""
    said = advice if isinstance(advice, list) and len(advice) == n else [""] * n
    return [text(one.partition(WITHOUT)[2]) if isinstance(one, str) else "" for one in said]


def client_round(item: dict[str, Any] | None, n: int) -> ClientRound | None:
    if item is None or (round := round_number(item)) is None:
        return None
    status = item.get("status")
    if not isinstance(status, list) or len(status) != n or n == 0:
        return None
    reasons = item.get("reason")
    kept = item.get("utility_points")
    kept = kept if isinstance(kept, dict) else {}
    places = _vectors([kept.get("places")], 1, 200)[0] or []
    full = [p for p in places if p is not None]
    points = _vectors(kept.get("values"), n, 200) if len(full) == len(places) > 0 else [None] * n
    zeta = [z if z is not None and all(x is not None for x in z) else None for z in _vectors(item.get("zeta"), n, 50)]
    pairs = item.get("paired")
    stand, because = _standing(item, n)
    noted = item["noted"] if isinstance(item.get("noted"), dict) else {}
    return ClientRound(
        round=round,
        status=letters(status),
        reason=[text(r) for r in reasons] if isinstance(reasons, list) and len(reasons) == n else [""] * n,
        numbers={name: numbers(item.get(name), n) for name in CLIENT_NUMBERS}
        | {"epsilon": numbers(noted.get("epsilon"), n)},
        zeta=zeta,  # type: ignore[arg-type]
        places=full,
        points=[p if p is not None and len(p) == len(full) else None for p in points],
        paired={name: numbers(pairs.get(name), n) for name in COLUMNS} if isinstance(pairs, dict) else None,
        standing=stand,
        standing_reason=because,
        lost=_lost(item.get("advice"), n),
    )
