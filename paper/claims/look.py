"""What a claim and a verdict are, and how figures are compared: what counts as clear, and what as the same."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feduca.reproduce import paper
from feduca.reproduce.tables import Cell, known

HOLDS, DIRECTION, FAILS, UNTESTED = "holds", "holds in direction", "does not hold", "not testable here"
WORDS = (HOLDS, DIRECTION, FAILS, UNTESTED)

Summaries = Mapping[str, Any]  # by study: a list of cells (a few are one dictionary: audit)

PROOF, SILENT = "mathematics or the protocol decides", "-"  # criteria of claims that no run is asked about

DATA = {"cifar10": "CIFAR-10", "fmnist": "F-MNIST", "cifar100": "CIFAR-100", "20news": "20 Newsgroups"}
NAMES = {
    "fedavg": "FedAvg",
    "incfl": "IncFL",
    "fedprox": "FedProx",
    "aaggff": "AAggFF-S",
    "fedavg-ws": "FedAvg-WS",
    "feduca": "FedUCA",
}
BASELINES = tuple(name for name in NAMES if name != "feduca")
COLUMNS = [(data, split) for data in ("cifar10", "fmnist", "cifar100") for split in paper.SPLITS]
TEXT = ("20news", "0.5,1.0")

UNDECIDED = "undecided"  # a judge's word for `not testable here`, with a reason that says so
ONE_SEED = 0.05  # the error of a difference whose spread over seeds is not known
ONE_SEED_EQ1 = 0.25  # the same for participation under Eq. 1, which varies far more (tests look it up)
LEAST = 0.01  # no error is smaller, however alike a few seeds happen to be
CLOSE, FAR = 0.02, 0.05  # an accuracy this close to the paper's is never missed, one this far is never the same
CLOSE_SHARE = 0.05  # the same for participation, which the paper rounds and gives no spread of
WIDE = 0.10  # an error beyond which a level is neither the paper's nor not
RULES = (
    "The **error** of a difference is half its 95 % interval: Student's t for the number of seeds, of the differences seed"
    " by seed where both sides ran the same seeds (a pair shares data and initial model), else of two independent samples"
    " (Welch); against the paper's figures, whose spreads are over three seeds, always the latter. It is never taken to be"
    " less than a point. Where the spread over seeds is not known (one seed, or a summary that holds only the mean) five"
    " points are assumed, for participation under Eq. 1 twenty-five (or twice its distance from 0 or 1, if less: in the"
    " median cell that records every seed its standard deviation is above ten), or what is known of one side if that is"
    " more; both cases are said. A difference is **clear** when it exceeds its error. A lead is **the paper's size** when it"
    " differs from the paper's by no more than the two errors together, never asked to be closer than two points nor allowed"
    " to be off by more than five; an accuracy is **the paper's** by the same measure if its error is at most ten points, a"
    " participation when it is within five. `holds`: clear, and of the paper's size where it states one. `holds in"
    " direction`: clear, of the same sign and another size. `does not hold`: clear and the other way, or the size or level"
    " that the paper states lies outside the error. What our errors leave open is `not testable here`, with a reason that"
    " begins with *undecided*: zero (or the opposite) and what the paper says are both inside the error, or a level is"
    " inside it and more than five points off, or the error is more than ten, or an accuracy is that of a model trained from"
    " scratch where the paper's was not. A claim about several columns holds if it does in each, and fails if it does so in"
    " one."
)


@dataclass(frozen=True)
class Verdict:
    word: str
    why: str


@dataclass(frozen=True)
class Claim:
    where: str  # in the paper
    text: str  # in our words
    criterion: str  # what earns `holds` (and `holds in direction`)
    judge: Callable[[Summaries], Verdict]


class Missing(Exception):
    """Raised by the helpers below when a summary lacks what a judge asks for; the claim is then not testable."""


def from_runs(where: str, text: str, criterion: str, judge: Callable[[Summaries], Verdict]) -> Claim:
    """A claim that committed runs decide; not testable while one of them is missing."""

    def tolerant(summaries: Summaries) -> Verdict:
        try:
            found = judge(summaries)
        except Missing as missing:
            return Verdict(UNTESTED, f"no committed {missing}")
        return Verdict(UNTESTED, f"{UNDECIDED}: {found.why}") if found.word == UNDECIDED else found

    return Claim(where, text, criterion, tolerant)


def proved(where: str, text: str, word: str, why: str) -> Claim:
    """A claim that mathematics, or the protocol as the paper states it, decides."""
    return Claim(where, text, PROOF, lambda summaries: Verdict(word, why))


def silent(where: str, text: str, why: str) -> Claim:
    """A claim about which the summaries say nothing, whatever is run."""
    return Claim(where, text, SILENT, lambda summaries: Verdict(UNTESTED, why))


# ---------------------------------------------------------------------------------------------------------------------
# Finding cells


def cells(summaries: Summaries, study: str) -> list[Cell]:
    """The cells of a study; none where it was not run."""
    return list(summaries.get(study, ()))


def find(summaries: Summaries, study: str, /, **wanted: str) -> Cell | None:
    """The cell of a study at a place, by its fields or labels."""
    for cell in cells(summaries, study):
        if all(value in (str(cell.get(key)), cell["labels"].get(key)) for key, value in wanted.items()):
            return cell
    return None


def where(cell: Cell) -> str:
    """A cell's place in words."""
    return ", ".join(cell["labels"].values())


def need(summaries: Summaries, study: str, /, **wanted: str) -> Cell:
    """The same; `Missing` where there is none."""
    cell = find(summaries, study, **wanted)
    if cell is None:
        raise Missing(f"run of {study}: {', '.join(wanted.values())}")
    return cell


def entry(cell: Cell, key: str) -> Any:
    """A field of a cell; `Missing` where it was not recorded."""
    if cell.get(key) is None:
        raise Missing(f"{key} in the summary of {where(cell)}")
    return cell[key]


def study(data: str) -> str:
    """The study of the paper's Table 2, or the one about text."""
    return "text" if data == "20news" else "table1"


def table(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    """A cell of the paper's tables of accuracies."""
    return need(summaries, study(data), data=data, split=split, method=method)


def rivals(data: str) -> tuple[str, ...]:
    """The baselines that the paper has on this data."""
    return tuple(method for method in BASELINES if (data, "0.5,1.0", method) in paper.ACCURACY)


def columns(summaries: Summaries, *methods: str) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """The columns of the paper's Table 2 that have all these methods, with their names; `Missing` where there is none."""
    found = 0
    for data, split in COLUMNS:
        row = [find(summaries, "table1", data=data, split=split, method=method) for method in methods]
        there = [cell for cell in row if cell is not None]
        if len(there) == len(row):
            found += 1
            yield place(data, split), tuple(there)
    if not found:
        raise Missing(f"column of table1 with {', '.join(methods)}")


def near(summaries: Summaries, beside: Cell) -> Cell | None:
    """The control with random weights about as far from uniform as FedUCA's, in the column of another cell, where it was run."""
    return find(summaries, "table1", data=beside["data"], split=beside["split"], method="random-near")


# ---------------------------------------------------------------------------------------------------------------------
# Comparing figures


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


def exact(value: float) -> Figure:
    """A figure that is given without a spread."""
    return Figure(value, 0.0, 3)


def _by_seed(cell: Cell, key: str) -> dict[int, float]:
    values = cell.get(key) or ()
    return {} if None in values else dict(zip(cell["seeds"], values))


def accuracy(cell: Cell) -> Figure:
    mean = entry(cell, "accuracy_mean")
    return Figure(mean, cell.get("accuracy_std"), len(cell["seeds"]), _by_seed(cell, "accuracies"))


def shares(cell: Cell) -> Figure:
    """Participation; older summaries hold only its mean."""
    by_seed = _by_seed(cell, "participations")
    std = statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None
    return Figure(share(cell), std, len(cell["seeds"]), by_seed, _assumed(cell))


def _assumed(cell: Cell) -> float:
    """How far participation may be off by seeds that a summary does not show; near 0 and 1 it cannot be off by much."""
    ends = 2 * min(share(cell), 1 - share(cell))
    return min(ONE_SEED_EQ1, max(ONE_SEED, ends)) if cell.get("rule") == "accuracy" else ONE_SEED


def share(cell: Cell) -> float:
    return entry(cell, "participation_mean")


def printed(data: str, split: str, method: str) -> Figure:
    """The paper's accuracy, over its three seeds."""
    mean, std = paper.ACCURACY[data, split, method]
    return Figure(mean, std, 3)


def t95(freedom: float) -> float:
    """Student's t beyond which, on both sides together, lie 5 %."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def spread_error(*figures: Figure) -> float:
    """Half the 95 % interval of a sum or difference of independent means (Welch); at least what is assumed of unknown spreads."""
    parts = [(f.std**2 / f.n, f.n - 1) for f in figures if f.std is not None and f.n > 1]
    total = sum(square for square, _ in parts)
    freedom = total**2 / sum(square**2 / n for square, n in parts) if total else 1.0
    error = t95(freedom) * math.sqrt(total)
    return max([error, *(f.assumed for f in figures if f.std is None or f.n < 2)])


def difference(first: Figure, second: Figure) -> Difference:
    """How much larger the first is: seed by seed where both have the same seeds, else as two samples."""
    if len(first.by_seed) > 1 and first.by_seed.keys() == second.by_seed.keys():
        gaps = [value - second.by_seed[seed] for seed, value in first.by_seed.items()]
        error = t95(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
        return Difference(statistics.fmean(gaps), max(LEAST, error))
    return Difference(first.mean - second.mean, max(LEAST, spread_error(first, second)))


def positive(ours: Difference) -> str:
    """The verdict on a claim that something is larger, of no stated size."""
    return UNDECIDED if not ours.clear else HOLDS if ours.value > 0 else FAILS


def sized(ours: Difference, theirs: Difference, close: float = CLOSE) -> str:
    """The verdict on a difference that the paper gives a sign and a size."""
    off, error = abs(ours.value - theirs.value), max(close, math.hypot(ours.error, theirs.error))
    if not ours.clear:
        return UNDECIDED if off <= error else FAILS
    if ours.value * theirs.value < 0:
        return FAILS
    return HOLDS if off <= min(FAR, error) else DIRECTION


def level(off: Difference, close: float = CLOSE) -> str:
    """The verdict on a figure, from how far it is from the paper's."""
    if abs(off.value) > max(close, off.error):
        return FAILS
    return HOLDS if abs(off.value) <= FAR and off.error <= WIDE else UNDECIDED


def accuracy_level(cell: Cell, off: Difference) -> str:
    """The same for an accuracy; a model that starts otherwise than the paper's says nothing of the level it would reach."""
    return UNDECIDED if paper.from_scratch(cell) else level(off)


def share_level(cell: Cell, theirs: float) -> str:
    return level(difference(shares(cell), exact(theirs)), CLOSE_SHARE)


def below(ours: Figure, bound: float) -> str:
    """The verdict on a figure that is said to stay under a bound."""
    return positive(difference(exact(bound), ours))


def at_most(ours: Figure, bound: float) -> str:
    """The verdict on a figure that is said to be no more than a bound, give or take the error."""
    over = difference(ours, exact(bound))
    return HOLDS if over.value <= 0 else FAILS if over.clear else UNDECIDED


def every(words: Iterable[str]) -> str:
    """The verdict on a claim about several things at once: it holds if all do, and fails if one does."""
    found = set(words)
    for word in (FAILS, UNDECIDED, DIRECTION):
        if word in found:
            return word
    return HOLDS


def gain(ahead: Cell, behind: Cell, theirs: tuple[Figure, Figure]) -> Verdict:
    """The verdict on a lead in accuracy, with the paper's two figures beside."""
    ours = accuracy(ahead), accuracy(behind)
    lead = difference(*ours)
    levels = f"{pct(ours[0].mean)} against {pct(ours[1].mean)}"
    return Verdict(sized(lead, difference(*theirs)), f"{change(lead)}: {levels}{caveats(ahead, behind)}")


def both(cell: Cell, theirs: Figure, part: float) -> tuple[str, str]:
    """The verdict on an accuracy and a participation that the paper gives together, and which of them is off."""
    words = {
        "accuracy": accuracy_level(cell, difference(accuracy(cell), theirs)),
        "participation": share_level(cell, part),
    }
    missed = [name for name, word in words.items() if word == FAILS]
    return every(words.values()), f"; off: {' and '.join(missed)}" if missed else ""


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share their mean rank."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's; 0 where one side is constant."""
    a, b = ranks(first), ranks(second)
    return statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Curves over rounds


def curve(cell: Cell, key: str) -> list[float | None]:
    """A quantity by round, of runs of full length."""
    values = entry(cell, key)
    if len(values) < 100:
        raise Missing(f"run of 100 rounds for {where(cell)}")
    return values


def block(values: Sequence[float | None], first: int, last: int) -> Figure:
    """Mean and spread over rounds `first` to `last`, counted from 1."""
    found = known(values[first - 1 : last])
    if len(found) < 2:
        raise Missing(f"values in rounds {first} to {last}")
    return Figure(statistics.fmean(found), statistics.stdev(found), len(found))


# ---------------------------------------------------------------------------------------------------------------------
# Words


def pct(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def change(ours: Difference) -> str:
    """A difference of ours with its error."""
    return f"ours {100 * ours.value:+.1f} ± {100 * ours.error:.1f} points"


def place(data: str, split: str) -> str:
    """A column of the paper's tables; its text has one split only."""
    return f"{DATA[data]} ({split})" if data != "20news" else DATA[data]


def caveats(*chosen: Cell) -> str:
    """Said where a verdict rests on single seeds, or on a model that starts otherwise than the paper's."""
    single = "; one seed" if min(len(cell["seeds"]) for cell in chosen) == 1 else ""
    return single + ("; from scratch, the paper's from ImageNet" if any(map(paper.from_scratch, chosen)) else "")


def unknown(*chosen: Cell) -> str:
    """The same about participation, also where several seeds' spread was not recorded."""
    several = min(len(cell["seeds"]) for cell in chosen) > 1
    unrecorded = several and any(shares(cell).std is None for cell in chosen)
    return caveats(*chosen) + ("; spread over seeds not recorded" if unrecorded else "")
