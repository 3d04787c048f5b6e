"""Every claim the paper makes, in words or numbers, and what our runs say about it.

A verdict is computed from the committed summaries, never written by hand, except where mathematics decides: `holds`, `holds in
direction` (a clear difference of the same sign, not the size), `does not hold`, or `not testable here` with what is missing, or
with what our errors leave undecided.
Each claim carries its own criterion.
"""

from __future__ import annotations

from collections import Counter

from feduca.reproduce.claims import accuracy, cost, discrepancy, honesty, mechanism, participation, splits, theory
from feduca.reproduce.claims.judging import RULES, UNDECIDED, UNTESTED, WORDS, Claim, Summaries, Verdict

__all__ = ["ALSO", "CLAIMS", "SECTIONS", "Claim", "Summaries", "Verdict", "register"]

ALSO = ("audit", "cross")  # summaries that judges read besides those of the studies

SECTIONS: dict[str, list[Claim]] = {
    "Accuracy: leads, orders, spreads": accuracy.LEADS,
    "Accuracy: where it comes from": accuracy.CAUSES,
    "Accuracy: the figures": accuracy.LEVELS,
    "Participation": participation.CLAIMS,
    "Delta, Jensen's gap, strategies, curves": mechanism.CLAIMS,
    "Aggregation discrepancy": discrepancy.CLAIMS,
    "Misreporting": honesty.CLAIMS,
    "Splits": splits.CLAIMS,
    "Cost": cost.CLAIMS,
    "Theory and protocol": theory.CLAIMS,
}
CLAIMS: list[Claim] = [claim for section in SECTIONS.values() for claim in section]


def register(summaries: Summaries) -> str:
    """The register as a section of the page: how the verdicts are spread, then every claim with its verdict and why."""
    verdicts = {name: [claim.judge(summaries) for claim in section] for name, section in SECTIONS.items()}
    lines = ["## The paper's claims\n", f"Each verdict is computed from the committed summaries. {RULES}\n"]
    lines += ["| | " + " | ".join(WORDS) + " |", "|---|" + "---:|" * len(WORDS)]
    for name, found in verdicts.items():
        lines.append(_row(name, *(str(Counter(v.word for v in found)[word]) for word in WORDS)))
    everything = Counter(verdict.word for found in verdicts.values() for verdict in found)
    lines.append(_row("all", *(str(everything[word]) for word in WORDS)))
    open_ = sum(verdict.why.startswith(UNDECIDED) for found in verdicts.values() for verdict in found)
    lines.append(
        f"\nOf the {everything[UNTESTED]} that are not testable here, {open_} are undecided: our runs leave them open."
    )
    for name, section in SECTIONS.items():
        lines += [f"\n### {name}\n", "| where | claim | verdict | why | holds if |", "|---|---|---|---|---|"]
        for claim, verdict in zip(section, verdicts[name]):
            lines.append(_row(claim.where, claim.text, f"**{verdict.word}**", verdict.why, claim.criterion))
    return "\n".join(lines) + "\n"


def _row(*fields: str) -> str:
    return "| " + " | ".join(fields) + " |"
