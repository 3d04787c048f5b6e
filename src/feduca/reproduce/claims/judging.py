"""What a claim and a verdict are, and how figures are compared: what counts as clear, and what as the same."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

ONE_SEED = (
    0.05  # without a spread over seeds: less than this is called noise (FedUCA's spread on CIFAR-10 is 1 to 3 points)
)
RULES = (
    "A difference is **clear** when it exceeds two standard errors over seeds (both sides' spreads) and one point; with a"
    " single seed, when it exceeds five points. For participation no spread is used: there a difference is clear above"
    " five points with one seed, above five over the root of their number with more. An accuracy, or a lead, is **the paper's**"
    " when it is within two standard errors (ours and the paper's together), never asked to be closer than two points nor"
    " allowed to be off by more than five; a participation when it is within five points. `holds in direction` is a clear"
    " difference of the same sign and another size. What noise could have made does not hold."
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
            return judge(summaries)
        except Missing as missing:
            return Verdict(UNTESTED, f"no committed {missing}")

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
    """Table 1, or the table about text."""
    return "text" if data == "20news" else "table1"


def table(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    """A cell of the paper's tables of accuracies."""
    return need(summaries, study(data), data=data, split=split, method=method)


def rivals(data: str) -> tuple[str, ...]:
    """The baselines that the paper has on this data."""
    return tuple(method for method in BASELINES if (data, "0.5,1.0", method) in paper.ACCURACY)


def columns(summaries: Summaries, *methods: str) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """The columns of Table 1 that have all these methods, with their names; `Missing` where there is none."""
    found = 0
    for data, split in COLUMNS:
        row = [find(summaries, "table1", data=data, split=split, method=method) for method in methods]
        there = [cell for cell in row if cell is not None]
        if len(there) == len(row):
            found += 1
            yield place(data, split), tuple(there)
    if not found:
        raise Missing(f"column of table1 with {', '.join(methods)}")


# ---------------------------------------------------------------------------------------------------------------------
# Comparing figures


@dataclass(frozen=True)
class Figure:
    mean: float
    std: float | None
    n: int


def accuracy(cell: Cell) -> Figure:
    return Figure(entry(cell, "accuracy_mean"), cell.get("accuracy_std"), len(cell["seeds"]))


def printed(data: str, split: str, method: str) -> Figure:
    """The paper's accuracy, over its three seeds."""
    mean, std = paper.ACCURACY[data, split, method]
    return Figure(mean, std, 3)


def errors(figures: Sequence[Figure]) -> float | None:
    """Two standard errors of a sum or difference of means; None where one has no spread."""
    squares = [f.std**2 / f.n if f.std is not None and f.n > 1 else None for f in figures]
    return 2 * math.sqrt(sum(known(squares))) if None not in squares else None


def noise(*figures: Figure) -> float:
    """What a difference must exceed to be clear."""
    two = errors(figures)
    return ONE_SEED if two is None else max(0.01, two)


def tolerance(*figures: Figure) -> float:
    """How far from the paper's figure is still the paper's figure."""
    two = errors(figures)
    return 0.05 if two is None else min(0.05, max(0.02, two))


def share(cell: Cell) -> float:
    return entry(cell, "participation_mean")


def share_noise(*chosen: Cell) -> float:
    """The same for participation, without its spread, which older summaries do not hold (a run is about a thousand decisions)."""
    return ONE_SEED / math.sqrt(min(len(cell["seeds"]) for cell in chosen))


def sized(ours: float, theirs: float, clear: float, close: float) -> str:
    """The verdict on a difference that the paper gives a sign and a size."""
    same = ours * theirs > 0 and abs(ours) > clear
    return FAILS if not same else HOLDS if abs(ours - theirs) <= close else DIRECTION


def gain(ahead: Cell, behind: Cell, theirs: tuple[Figure, Figure]) -> Verdict:
    """The verdict on a lead in accuracy, with the paper's two figures beside."""
    ours = accuracy(ahead), accuracy(behind)
    lead, printed_lead = (pair[0].mean - pair[1].mean for pair in (ours, theirs))
    clear = noise(*ours)
    word = sized(lead, printed_lead, clear, tolerance(*ours, *theirs))
    levels = f"{pct(ours[0].mean)} against {pct(ours[1].mean)}"
    return Verdict(word, f"{change(lead, clear)}: {levels}{seeds(ahead, behind)}")


def both(cell: Cell, theirs: Figure, part: float) -> tuple[str, str]:
    """The verdict on an accuracy and a participation that the paper gives together, and which of them is off."""
    ours = accuracy(cell)
    close = abs(ours.mean - theirs.mean) <= tolerance(ours, theirs), abs(share(cell) - part) <= 0.05
    missed = [name for name, fits in zip(("accuracy", "participation"), close) if not fits]
    return (HOLDS, "") if not missed else (FAILS, f"; off: {' and '.join(missed)}")


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


def change(value: float, clear: float) -> str:
    """A difference of ours, and whether noise could have made it."""
    return f"ours {points(value)}" + (" (within noise)" if abs(value) <= clear else "")


def place(data: str, split: str) -> str:
    """A column of the paper's tables; its text has one split only."""
    return f"{DATA[data]} ({split})" if data != "20news" else DATA[data]


def seeds(*chosen: Cell) -> str:
    """Said where a verdict rests on single seeds."""
    return "; one seed" if min(len(cell["seeds"]) for cell in chosen) == 1 else ""
