"""What a claim, a case of it and a verdict are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feduca.core.wording import points
from paper import printed as paper
from paper.claims.compare import FAILS, UNDECIDED, UNTESTED, Difference, every
from paper.tables import Cell

Summaries = Mapping[str, Any]  # by study: a list of cells (a few are one dictionary: audit)

PROOF, SILENT = "mathematics or the protocol decides", "-"  # criteria of claims that no run is asked about

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

READINGS = (
    "A claim that fails under the paper's recipes is judged again under every other [reading](../which-reading.md) that was run"
    " on CIFAR-10, with FedUCA's cells of that reading in the place of ours: `holds under another reading` names those under"
    " which it holds, `holds under no reading tried` all under which it was tried. `does not hold` stays where none bears on it."
)


class Missing(Exception):
    """Raised where a summary lacks what a claim asks for; the claim is then not testable."""


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


@dataclass(frozen=True)
class Seen:
    """What our runs say: figures by place, and how to read them. `against`: figures that can only refute."""

    figures: Mapping[str, Any]  # a Difference or a number each; "" where there is only one
    cells: Sequence[Cell] = ()  # that they rest on: with one seed, or from other weights than the paper's, that is said
    about: str = ""
    beside: str = ""
    against: Mapping[str, Difference] = field(default_factory=dict)
    caveats: Callable[..., str] | None = None
    open: bool = False  # whatever the figures are, they decide nothing


@dataclass(frozen=True)
class Case:
    """One claim of a family: what is looked at, what compares it, and what its words have in place of {...}."""

    see: Callable[[Summaries], Seen | Verdict]
    word: Callable[[Any], str] = every
    fill: Mapping[str, Any] = field(default_factory=dict)
    shown: Callable[[float], str] = "{:.2f}".format  # of a plain number
    if_it_fails: str = ""

    def judge(self, summaries: Summaries) -> Verdict:
        try:
            seen = self.see(summaries)
        except Missing as missing:
            return Verdict(UNTESTED, f"no committed {missing}")
        found = seen if isinstance(seen, Verdict) else self._compared(seen)
        return Verdict(UNTESTED, f"{UNDECIDED}: {found.why}") if found.word == UNDECIDED else found

    def _compared(self, seen: Seen) -> Verdict:
        word = UNDECIDED if seen.open else every(map(self.word, seen.figures.values()))
        if any(self.word(one) == FAILS for one in seen.against.values()):
            word = FAILS
        listed = "; ".join(self._listed(figures) for figures in (seen.figures, seen.against) if figures)
        if isinstance(seen.figures.get(""), Difference):
            listed = f"{'' if seen.about else 'ours '}{listed} points"
        caveats = (seen.caveats or said_of)(*seen.cells) if seen.cells else ""
        fails = self.if_it_fails if word == FAILS else ""
        return Verdict(word, f"{seen.about}{listed}{seen.beside}{caveats}{fails}")

    def _listed(self, figures: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {self._said(one)}".strip() for name, one in figures.items())

    def _said(self, one: Difference | float) -> str:
        if isinstance(one, Difference):
            return f"{points(one.value)} ± {100 * one.error:.1f}"
        return self.shown(one)


def said_of(*chosen: Cell) -> str:
    """Said where a verdict rests on single seeds, or on a model that starts otherwise than the paper's."""
    single = "; one seed" if min(len(cell["seeds"]) for cell in chosen) == 1 else ""
    starts = ", ".join(dict.fromkeys(filter(None, map(paper.other_start, chosen))))
    return single + (f"; {starts}, the paper's from ImageNet" if starts else "")
