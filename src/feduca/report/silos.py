"""The silos' records of a run, round by round: of every round what each chart needs, and all of a round when somebody asks.

Small runs stay in memory. Of a run of thousands of silos only the statuses and the spread of kept promises do, and rounds that
a page shows in detail are read from the file again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from feduca.errors import InputError
from feduca.report.cleaning import (
    MAX_ROUNDS,
    ClientRound,
    Number,
    client_round,
    letters,
    numbers,
    round_number,
    widened,
)
from feduca.runs.lines import Lines, decoded

IN_MEMORY = 50_000  # silos times rounds: some 50 MB

MEANS = {  # over silos, of every round: what a chart calls it, and the column
    "own": "own_accuracy",
    "offered": "offered_accuracy",
    "deployed": "test_deployed",
    "alone": "test_alone",
}
_COLUMNS = ("round", "status", "promise_kept", "global_accuracy", *MEANS.values())
ABSURD = 1e9  # scores beyond it are none


@dataclass(frozen=True)
class Glimpse:
    """What is known of every round without reading it again."""

    round: int
    status: str  # one letter per silo, as in ClientRound
    promise_low: Number
    promise_high: Number
    means: Mapping[str, Number]  # of MEANS
    shared_wins: (
        str  # the same letters: j where the shared model is more accurate than the silo's own, d where it is not ...
    )
    offer_wins: str  # ... and where what it was offered is


class SiloRounds(Sequence[ClientRound]):
    """Looks like a list of the rounds whose lines could be read; `glimpses` has an entry for each, too."""

    def __init__(self, path: Path = Path(), grows: bool = False) -> None:
        self.path, self.grows = path, grows  # `grows`: silos may come later, and earlier lines are shorter
        self.glimpses: list[Glimpse] = []
        self._lines = Lines(path)
        self._places: list[int] = []  # which line a round is
        self._read: OrderedDict[int, ClientRound] = (
            OrderedDict()
        )  # the rounds in memory, the one asked for last at the end
        self._size = self._cells = 0

    def look(self, line: bytes) -> dict[str, Any] | None:
        """The next line of the file, or what is needed of it now; None where it is no JSON object."""
        self._lines.note(line)
        return item_of(line, None if self._cells <= IN_MEMORY else _COLUMNS)

    def add(self, item: dict[str, Any] | None, n: int) -> bool:
        """Keep what `look` gave, of `n` silos. False for what makes no sense, or does not come after the last round."""
        if item is None or (round := round_number(item)) is None or len(self) >= MAX_ROUNDS:
            return False
        item = widened(item, n) or item if self.grows else item
        status = item.get("status")
        if not isinstance(status, list) or len(status) != n or n == 0:
            return False
        if self.glimpses and round <= self.glimpses[-1].round:
            return False
        said = letters(status)
        if self.glimpses and self.glimpses[-1].status == said:
            said = self.glimpses[-1].status  # mostly nothing changes, and then it takes no room
        kept = [value for value in numbers(item.get("promise_kept"), n) if value is not None]
        self._places.append(len(self._lines) - 1)
        scores = {name: _scores(item.get(column), n) for name, column in MEANS.items()}
        shared = _scores(item.get("global_accuracy"), n)
        self.glimpses.append(
            Glimpse(
                round,
                said,
                min(kept, default=None),
                max(kept, default=None),
                {name: _mean(values) for name, values in scores.items()},
                _wins(said, shared, scores["own"]),
                _wins(said, scores["offered"], scores["own"]),
            )
        )
        if self._cells <= IN_MEMORY and (found := client_round(item, n)) is not None:
            self._remember(len(self) - 1, found)
        self._cells += n
        return True

    def __len__(self) -> int:
        return len(self.glimpses)

    @overload
    def __getitem__(self, i: int) -> ClientRound: ...
    @overload
    def __getitem__(self, i: slice) -> list[ClientRound]: ...
    def __getitem__(self, i: int | slice) -> ClientRound | list[ClientRound]:
        place = range(len(self))[i]
        return self._one(place) if isinstance(place, int) else [self._one(k) for k in place]

    def _one(self, i: int) -> ClientRound:
        if i in self._read:
            self._read.move_to_end(i)
            return self._read[i]
        seen = self.glimpses[i]
        try:
            item = self._lines.one(self._places[i])
            found = client_round(widened(item, len(seen.status)) if self.grows else item, len(seen.status))
        except (ValueError, RecursionError):
            found = None
        if found is None:
            raise InputError(
                f"{self.path} has a line of round {seen.round} that cannot be read; repeat the run with --again"
            )
        self._remember(i, found)
        return found

    def _remember(self, i: int, found: ClientRound) -> None:
        """Keep a round in memory, and let go of those that nobody has asked for the longest."""
        self._read[i] = found
        self._size += len(found.status)
        while self._size > IN_MEMORY and len(self._read) > 1:
            _, old = self._read.popitem(last=False)
            self._size -= len(old.status)


def _scores(values: Any, n: int) -> list[Number]:
    return [None if v is None or abs(v) > ABSURD else v for v in numbers(values, n)]


def _mean(values: Sequence[Number]) -> Number:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _wins(status: str, new: Sequence[Number], own: Sequence[Number]) -> str:
    """Who would say yes to a model if accuracy alone decided; whoever was not asked keeps its letter."""
    said = "".join(
        letter if letter in "arln" else "j" if a is None or b is None or a > b + 1e-12 else "d"
        for letter, a, b in zip(status, new, own)
    )
    return status if said == status else said


def item_of(line: bytes, only: Sequence[str] | None = None) -> dict[str, Any] | None:
    """A line's JSON object, or some columns of it; None where it is none."""
    try:
        item = decoded(line, only)
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None
