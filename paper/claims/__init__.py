"""Every claim the paper makes, in words or numbers, and what our runs say about it.

The claims are a table, claims.toml: where each is printed, what it says, and what earns `holds`. A verdict is computed from
the committed summaries, never written by hand, except where mathematics decides: `holds`, `holds in direction` (a clear
difference of the same sign, not the size), `does not hold`, or `not testable here` with what is missing, or with what our
errors leave undecided. A claim that fails is tried under the other readings of the paper that were run (readings.py).
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from paper.claims import accuracy, compare, cost, discrepancy, mechanism, misreporting, participation, splits, views
from paper.claims.compare import ALL_WORDS, NONE, UNDECIDED, UNDER, UNTESTED, WORDS
from paper.claims.judging import PROOF, READINGS, RULES, SILENT, Claim, Judge, Summaries, Verdict
from paper.claims.look import pct
from paper.claims.readings import tried, with_readings

__all__ = ["ALSO", "CLAIMS", "ROWS", "SECTIONS", "Claim", "Summaries", "Verdict", "register"]

ALSO = ("audit", "cross", "readings")  # summaries that judges read besides those of the studies

ROWS: dict[str, list[list[Any]]] = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
PARTS = (accuracy, participation, mechanism, discrepancy, misreporting, splits, cost)


def _claims(by: str, where: str, text: str, criterion: str, row: views.Row | None = None) -> list[Claim]:
    """The claims of a row: one for each combination of labels that the paper has a figure for, or one that no run decides."""
    if row is None:
        verdict = Verdict(by, criterion)
        return [Claim(where, text, SILENT if by == UNTESTED else PROOF, lambda summaries: verdict)]
    name, shown = by.replace("-", "_"), row.get("shown", "{:.2f}")
    part = {} if "see" in row else next(vars(part) for part in PARTS if name in vars(part))
    of_paper = part.get("WORDS", {}).get(by, lambda **labels: {})
    judge = partial(
        Judge,
        must=compare.named(row.get("must")),
        says=row.get("says", "{}"),
        shown=pct if shown == "percent" else shown.format,
        fails=row.get("fails", ""),
    )
    found = []
    for labels in views.each(row.get("each", {})):
        try:
            words = views.words(row, labels) | of_paper(**labels)
        except KeyError:  # a method that the paper leaves out on these data
            continue
        see = partial(views.VIEWS[row["see"]], row, labels) if "see" in row else partial(part[name], **labels)
        found.append(Claim(where.format(**words), text.format(**words), criterion.format(**words), judge(see)))
    return found


SECTIONS: dict[str, list[Claim]] = {
    name: [claim for row in rows for claim in _claims(*row)] for name, rows in ROWS.items()
}
CLAIMS: list[Claim] = [claim for section in SECTIONS.values() for claim in section]


def register(summaries: Summaries) -> dict[str, str]:
    """The register as pages by name: how verdicts are spread, then a page per group of claims, each with its verdict and why."""
    others = tried(summaries)
    verdicts = {
        name: [with_readings(claim, summaries, others) for claim in section] for name, section in SECTIONS.items()
    }
    there = {verdict.word for found in verdicts.values() for verdict in found}
    words = [word for word in ALL_WORDS if word in WORDS or word in there]
    lines = ["# The paper's claims, each with a verdict\n", "Each verdict is computed from the committed summaries.\n"]
    lines += ["| | " + " | ".join(words) + " |", "|---|" + "---:|" * len(words)]
    for name, found in verdicts.items():
        spread = (str(Counter(v.word for v in found)[word]) for word in words)
        lines.append(_row(f"[{name}]({_slug(name)}.md)", *spread))
    everything = Counter(verdict.word for found in verdicts.values() for verdict in found)
    lines.append(_row("all", *(str(everything[word]) for word in words)))
    open_ = sum(verdict.why.startswith(UNDECIDED) for found in verdicts.values() for verdict in found)
    lines.append(
        f"\nOf the {everything[UNTESTED]} that are not testable here, {open_} are undecided: our runs leave them open."
    )
    lines.append(f"\n## How a claim is judged\n\n{RULES}")
    lines += [f"\n{READINGS}"] if there & {UNDER, NONE} else []
    pages = {"claims": "\n".join(lines) + "\n"}
    for name, section in SECTIONS.items():
        lines = [
            f"# Claims: {name[0].lower()}{name[1:]}\n",
            "[How a claim is judged](claims.md#how-a-claim-is-judged).\n",
        ]
        lines += ["| where | claim | verdict | why | holds if |", "|---|---|---|---|---|"]
        for claim, verdict in zip(section, verdicts[name]):
            lines.append(_row(claim.where, claim.text, f"**{verdict.word}**", verdict.why, claim.criterion))
        pages[_slug(name)] = "\n".join(lines) + "\n"
    return pages


def _slug(name: str) -> str:
    return "claims-" + re.sub("[^a-z]+", "-", name.lower())


def _row(*fields: str) -> str:
    return "| " + " | ".join(fields) + " |"
