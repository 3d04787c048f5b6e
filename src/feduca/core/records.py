"""What every round leaves behind: one `RoundRecord` for the federation, one `ClientRecord` for all its clients.

Both become one line of JSON each (`rounds.jsonl`, `clients.jsonl`; packed by `runs/lines.py`). Undefined is null. Everything
that depends on a clock lives in `seconds`, so that two runs of the same seed are equal but for that one object. Accuracy,
participation and shares are fractions of 1.

Where a cohort is asked, the clients' line has entries for those who were asked alone: its length follows the cohort and not the
federation. `of_cohort` makes such a line, `of_all` is what everybody reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from feduca.types import NOT_ASKED, Ints

Column = Sequence[Any] | np.ndarray

WITHOUT = "without standing: "  # how the server's advice begins to a silo that has none
UNRELEASED = "No sum was released: "  # how a round's reason begins where secure aggregation gave none


@dataclass(frozen=True)
class RoundRecord:
    round: int
    accuracy: float | None  # of the new global model on the global test set
    loss: float | None
    participation: float  # share of the silos asked that joined this round
    joined: int
    satisfied: int | None  # silos whose reported demand the new weights meet
    status: str  # of the allocation
    reason: str
    fallback: str | None
    slack: float | None  # sum over silos
    gap: float | None  # the solver's certificate
    jensen: float | None  # sum of Jensen gaps under the new weights
    discrepancy: float  # ||alpha - beta||^2 of the weights that formed the new model
    discrepancy_bound: float | None  # pointwise, given s
    discrepancy_bound_expected: float | None  # in expectation over s
    r2: float | None  # mean over the fits
    smallest_cohort: int
    largest_staleness: int
    concession: float | None  # mean over participants
    promise_kept: float | None  # mean of realised minus promised utility
    s: Sequence[float] | None
    bytes_down: int  # what a deployment would have sent to the silos ...
    bytes_up: int  # ... and received
    seconds: Mapping[str, float]
    members: int | None = None  # silos that have not left for good
    asked: int | None = None  # silos that were asked, where a cohort was; not there where that was everybody


@dataclass(frozen=True)
class ClientRecord:
    """Columns over the silos, in the server's order."""

    round: int
    status: Sequence[str]
    reason: Sequence[str]
    alpha: Column  # weights that formed the new model
    announced: Column  # weights announced with it
    slack: Column | None
    satisfied: Column | None
    zeta: Column
    gamma: Column
    eq1: Column  # Eq. 1 on realised accuracy, whichever rule is in force
    eq2: Column  # Eq. 2 where a curve exists
    global_accuracy: Column  # validation data, before training
    own_accuracy: Column
    offered_accuracy: Column
    concession: Column
    evaluations: Column
    promised: Column
    promise_kept: Column  # realised minus promised utility
    r2: Column
    capped: Column
    staleness: Column  # rounds since the update in use was made
    update_norm: Column  # as received, also of refused updates
    test_deployed: Column | None  # on data no decision ever saw
    test_own: Column | None
    test_global: Column | None
    test_alone: Column | None = None  # the model it would have had alone
    paired: Mapping[str, Column] | None = None  # deployed against alone, example by example (client/paired.py)
    advice: Column | None = None  # what the server found odd, "" where nothing; null when that is everybody
    utility_points: Mapping[str, Any] | None = None  # places [M], values and losses [N][M], where asked for
    standing: Column | None = (
        None  # between 0 and 1, where the server keeps it; limited at 1/2 and below (trust/work.py)
    )
    noted: Mapping[str, Column] | None = None  # with an outside option: trainings of the round, and an offer's weights
    asked: Ints | None = field(default=None, metadata={"written": False})  # who was; None: everybody


def plain(value: Any) -> Any:
    """JSON-ready: arrays become lists, NaN and infinities become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.metadata.get("written", True)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biu":
            return value.tolist()
        if value.dtype.kind == "f":  # all at once: there may be thousands of silos
            known = np.isfinite(value)
            if known.all():
                return value.tolist()
            found = np.full(value.shape, None, object)
            found[known] = value[known]
            return found.tolist()
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [v if type(v) is str else plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


COHORT = "cohort"  # of a line: {"silos": how many there are, "asked": the places of those the columns are of}
MOST = 1 << 20  # silos of a line
_COMMON = ("round", "places")  # what is no column
_OTHERWISE = {"status": NOT_ASKED, "reason": "", "eq1": False, "capped": False, "advice": ""}  # all else: null


def of_cohort(record: ClientRecord) -> dict[str, Any]:
    """The record as JSON-ready columns; where not everybody was asked, of those who were, under a word on who they are."""
    if record.asked is None:
        return plain(record)
    who, n = record.asked, len(record.status)
    found: dict[str, Any] = {"round": record.round, COHORT: {"silos": n, "asked": who.tolist()}}
    for f in fields(record):
        if f.metadata.get("written", True):
            found[f.name] = plain(_some(getattr(record, f.name), who, who.tolist()))
    return found


def _some(value: Any, who: Ints, places: Sequence[int]) -> Any:
    """The entries `who` of a column, or of every column of a mapping."""
    if isinstance(value, Mapping):
        return {key: x if key in _COMMON else _some(x, who, places) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return value[who]
    return [value[k] for k in places] if isinstance(value, list | tuple) else value


def of_all(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line with entries for all silos again. ValueError where it says nonsense about who was asked."""
    if COHORT not in line:
        return line
    told = line[COHORT]
    n, who = (told.get("silos"), told.get("asked")) if isinstance(told, Mapping) else (None, None)
    if type(n) is not int or not 0 < n <= MOST or not isinstance(who, list) or len(who) > n:
        raise ValueError("a line does not say who was asked")
    if not all(type(k) is int and 0 <= k < n for k in who):
        raise ValueError(f"a line names silos that are none of {n}")

    def wide(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: wide(key, x) for key, x in value.items()}
        if not isinstance(value, list) or len(value) != len(who) or name in _COMMON:
            return value
        full = [_OTHERWISE.get(name)] * n
        for k, entry in zip(who, value):
            full[k] = entry
        return full

    return {name: wide(name, value) for name, value in line.items() if name != COHORT}


def mean(values: Any) -> float | None:
    """Mean over what is defined; None where nothing is."""
    values = np.asarray(values, dtype=float)
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None
