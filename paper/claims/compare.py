"""How figures are compared: the error of a difference, and the words that comparators have for what they see."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

HOLDS, DIRECTION, FAILS, UNTESTED = "holds", "holds in direction", "does not hold", "not testable here"
UNDER, NONE = "holds under another reading", "holds under no reading tried"  # of claims that fail under ours
WORDS = (HOLDS, DIRECTION, FAILS, UNTESTED)
ALL_WORDS = (HOLDS, DIRECTION, UNDER, NONE, FAILS, UNTESTED)
UNDECIDED = "undecided"  # a comparator's word for `not testable here`, with a reason that says so

ONE_SEED = 0.05  # the error of a difference whose spread over seeds is not known
ONE_SEED_EQ1 = 0.25  # the same for participation under Eq. 1, which varies far more (tests look it up)
LEAST = 0.01  # no error is smaller, however alike a few seeds happen to be
CLOSE, FAR = 0.02, 0.05  # an accuracy this close to the paper's is never missed, one this far is never the same
CLOSE_SHARE = 0.05  # the same for participation, which the paper rounds and gives no spread of
WIDE = 0.10  # an error beyond which a level is neither the paper's nor not


@dataclass(frozen=True)
class Figure:
    """A mean over seeds; with every seed's own value where a summary holds them."""

    mean: float
    std: float | None
    n: int
    by_seed: Mapping[int, float] = field(default_factory=dict)
    assumed: float = ONE_SEED  # its error where there is no spread


@dataclass(frozen=True)
class Difference:
    value: float
    error: float  # half of the 95 % interval

    @property
    def clear(self) -> bool:
        return abs(self.value) > self.error

    def __neg__(self) -> Difference:
        return Difference(-self.value, self.error)


def exact(value: float) -> Figure:
    """A figure that is given without a spread."""
    return Figure(value, 0.0, 3)


def together(figures: Sequence[Figure]) -> Figure:
    """The mean of figures; without their seeds where these differ."""
    n, mean = len(figures), statistics.fmean(figure.mean for figure in figures)
    first = figures[0].by_seed
    if any(figure.by_seed.keys() != first.keys() for figure in figures) or len(first) < 2:
        spreads = [figure.std for figure in figures]
        std = None if None in spreads else math.hypot(*(std or 0.0 for std in spreads)) / n
        return Figure(mean, std, min(figure.n for figure in figures))
    by_seed = {seed: statistics.fmean(figure.by_seed[seed] for figure in figures) for seed in first}
    return Figure(mean, statistics.stdev(by_seed.values()), len(by_seed), by_seed)


def t95(freedom: float) -> float:
    """Student's t beyond which, on both sides together, lie 5 %."""
    return float(stats.t.ppf(0.975, freedom))


def spread_error(*figures: Figure) -> float:
    """Half the 95 % interval of a sum or difference of independent means (Welch); at least what is assumed of unknown spreads."""
    parts = [(f.std**2 / f.n, f.n - 1) for f in figures if f.std is not None and f.n > 1]
    total = sum(square for square, _ in parts)
    freedom = total**2 / sum(square**2 / n for square, n in parts) if total else 1.0
    return max([t95(freedom) * math.sqrt(total), *(f.assumed for f in figures if f.std is None or f.n < 2)])


def difference(first: Figure, second: Figure) -> Difference:
    """How much larger the first is: seed by seed where both have the same seeds, else as two samples."""
    if len(first.by_seed) > 1 and first.by_seed.keys() == second.by_seed.keys():
        gaps = [value - second.by_seed[seed] for seed, value in first.by_seed.items()]
        error = t95(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
        return Difference(statistics.fmean(gaps), max(LEAST, error))
    return Difference(first.mean - second.mean, max(LEAST, spread_error(first, second)))


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's; 0 where one side is constant."""
    constant = len(set(first)) < 2 or len(set(second)) < 2
    return 0.0 if constant else float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])


# ---------------------------------------------------------------------------------------------------------------------
# Comparators: from a difference (or, the last two, a plain number) to a word


def undecided(ours: object) -> str:
    """Whatever the figure is, it decides nothing."""
    return UNDECIDED


def positive(ours: Difference) -> str:
    """Something is larger, of no stated size."""
    return UNDECIDED if not ours.clear else HOLDS if ours.value > 0 else FAILS


def below(over: Difference) -> str:
    """A figure is under a bound, of no stated distance."""
    return positive(-over)


def a_point_less(ours: Difference) -> str:
    """Something is smaller by more than a point."""
    return positive(Difference(-0.01 - ours.value, ours.error))


def still(move: Difference) -> str:
    """Something does not move."""
    return FAILS if move.clear else HOLDS


def highest(ours: Difference) -> str:
    """Something has the highest mean; undecided where another is ahead within the error."""
    return HOLDS if ours.value > 0 else FAILS if ours.clear else UNDECIDED


def sized(ours: Difference, theirs: Difference, close: float = CLOSE) -> str:
    """Something is larger by what the paper says."""
    off, error = abs(ours.value - theirs.value), max(close, math.hypot(ours.error, theirs.error))
    if not ours.clear:
        return UNDECIDED if off <= error else FAILS
    if ours.value * theirs.value < 0:
        return FAILS
    return HOLDS if off <= min(FAR, error) else DIRECTION


def level(off: Difference, close: float = CLOSE) -> str:
    """A figure is the paper's, from how far it is from it."""
    if abs(off.value) > max(close, off.error):
        return FAILS
    return HOLDS if abs(off.value) <= FAR and off.error <= WIDE else UNDECIDED


def no_more(over: Difference) -> str:
    """Something is not larger, give or take the error."""
    return HOLDS if over.value <= 0 else FAILS if over.clear else UNDECIDED


def within(
    least: float = -math.inf,
    most: float = math.inf,
    nearly_least: float | None = None,
    nearly_most: float | None = None,
) -> Callable[[float], str]:
    """A number lies between bounds; in direction: between wider ones."""
    low = least if nearly_least is None else nearly_least
    high = most if nearly_most is None else nearly_most
    return lambda ours: HOLDS if least <= ours <= most else DIRECTION if low <= ours <= high else FAILS


def every(words: Iterable[str]) -> str:
    """Several things at once: it holds if all do, and fails if one does."""
    found = set(words)
    return next((word for word in (FAILS, UNDECIDED, DIRECTION) if word in found), HOLDS)


NAMED: dict[str, Callable[[Any], str]] = {
    "clear": positive,
    "below": below,
    "a point less": a_point_less,
    "still": still,
    "highest": highest,
    "size": every,  # these two beside what the paper prints for the cell: views.py says what that is
    "level": every,
}


def named(must: str | Mapping[str, float] | None) -> Callable[[Any], str]:
    """The comparator that claims.toml says: by name, or the bounds of `within`; without one the judge gives the verdict."""
    if must is None:
        return every
    return NAMED[must] if isinstance(must, str) else within(**must)
