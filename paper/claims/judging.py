"""What a claim and a verdict are, and how what our runs say becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from feduca.core.wording import points
from paper import printed as paper
from paper.claims.compare import FAILS, UNDECIDED, UNTESTED, Difference, every
from paper.tables import Cell

Summaries = Mapping[str, Any]  # by study: a list of cells (a few are one dictionary: audit)
Comparator = Callable[[Any], str]  # from a figure to a word

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
    """What our runs say: a figure, or figures by place, and what is said before and behind them."""

    figures: Any  # a Difference or a number, or a mapping of them
    before: str = ""
    behind: str = ""
    against: Mapping[str, Difference] = field(default_factory=dict)  # figures that can only refute
    must: Comparator | None = None  # in place of the row's, where it depends on what the paper prints for a cell


@dataclass(frozen=True)
class Judge:
    """A claim that runs decide: what is looked at, what compares it, and how it is said."""

    see: Callable[[Summaries], Any]  # a Verdict, a Seen, or its figures alone
    must: Comparator = every
    says: str = "{}"  # the figures' place in a sentence
    shown: Callable[[float], str] = "{:.2f}".format  # of a plain number
    fails: str = ""  # what is added where the claim fails

    def __call__(self, summaries: Summaries) -> Verdict:
        try:
            seen = self.see(summaries)
        except Missing as missing:
            return Verdict(UNTESTED, f"no committed {missing}")
        if not isinstance(seen, Verdict):
            seen = self._compared(seen if isinstance(seen, Seen) else Seen(seen))
        if seen.word == UNDECIDED:
            return Verdict(UNTESTED, f"{UNDECIDED}: {seen.why}")
        return Verdict(seen.word, seen.why + self.fails) if seen.word == FAILS else seen

    def _compared(self, seen: Seen) -> Verdict:
        must = seen.must or self.must
        figures = seen.figures if isinstance(seen.figures, Mapping) else {"": seen.figures}
        refuted = FAILS in map(must, seen.against.values())
        word = FAILS if refuted else every(map(must, figures.values()))
        listed = "; ".join(
            ", ".join(f"{name} {self._said(one)}".strip() for name, one in some.items())
            for some in (figures, seen.against)
            if some
        )
        unit = " points" if isinstance(figures.get(""), Difference) else ""
        return Verdict(word, f"{seen.before}{self.says.format(listed + unit)}{seen.behind}")

    def _said(self, one: Difference | float) -> str:
        if isinstance(one, Difference):
            return f"{points(one.value)} ± {100 * one.error:.1f}"
        return self.shown(one)


def caveats(*cells: Cell) -> str:
    """Said where a verdict rests on single seeds, or on a model that starts otherwise than the paper's."""
    single = "; one seed" if min(len(cell["seeds"]) for cell in cells) == 1 else ""
    starts = ", ".join(dict.fromkeys(filter(None, map(paper.other_start, cells))))
    return single + (f"; {starts}, the paper's from ImageNet" if starts else "")
