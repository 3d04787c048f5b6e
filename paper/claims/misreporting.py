"""What the paper says about clients that misreport: everybody at once, and whether it could pay one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, Difference
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.claims.look import pct
from paper.tables import Cell

DECIDES = {"reported": "the threshold it reports", "true": "its true one"}


def _inflated(summaries: Summaries, percent: str) -> Cell:
    return look.need(summaries, "misreporting", inflation=percent)


def collapse(summaries: Summaries) -> Verdict:
    truthful, cell = (_inflated(summaries, percent) for percent in ("0", "10"))
    bounds = {look.shares: 0.05, look.accuracy: paper.CHANCE + 0.02}
    word = compare.every(
        compare.no_more(compare.difference(of(cell), compare.exact(bound))) for of, bound in bounds.items()
    )
    fewer, worse = (100 * compare.difference(of(cell), of(truthful)).value for of in bounds)
    ours = f"ours {pct(look.share(cell))} participation, {pct(look.accuracy(cell).mean)} accuracy"
    return Verdict(word, f"{ours}; against truthful {fewer:+.1f} and {worse:+.1f} points{caveats(cell)}")


def infeasible(summaries: Summaries) -> Seen:
    """In how many rounds the fallback was called, which an assumed error of five points compares with half of them."""
    cells = [_inflated(summaries, percent) for percent in ("10", "0")]
    called, truthful = (look.entry(cell, "fallbacks") / look.entry(cell, "rounds") for cell in cells)
    said = f" of half of the rounds: the fallback was called in {pct(called)} of them, truthful {pct(truthful)}"
    if cells[0].get("short_share") is not None:
        said += f"; {pct(cells[0]['short_share'])} of the demands were not met in full"
    return Seen({"off by": Difference(called - 0.5, 0.05)}, behind=said + caveats(cells[0]))


def _audit(summaries: Summaries) -> Mapping[str, Any]:
    found = summaries.get("audit")
    if not found:
        raise Missing("audit")
    return found


def alone(summaries: Summaries, decide_by: str) -> dict[str, Difference]:
    """What a deviator's own accuracy changes by, over all cases audited (silos and seeds)."""
    rows = [r for r in _audit(summaries)["alone"] if (r["kind"], r["decide_by"]) == ("inflate", decide_by)]
    if not rows:
        raise Missing(f"audit of a single silo that inflates and decides by its {decide_by} threshold")

    def change(row: Mapping[str, Any]) -> Difference:
        return Difference(row["own"]["mean"], max(compare.LEAST, compare.t95(row["cases"] - 1) * row["own"]["stderr"]))

    return {f"{100 * row['share']:.0f} %": change(row) for row in rows}


def truth(summaries: Summaries) -> Verdict:
    audit = _audit(summaries)
    found = audit["best_response"]
    if not found:
        raise Missing("audit of best responses")
    honest = sum(case["truthful"] == audit["silos"] for case in found)
    said = f"everybody's best response is the truth in {honest} of {len(found)} seeds"
    return Verdict(HOLDS if honest == len(found) else FAILS, f"{said}; on the quickstart task, `feduca audit`")


WORDS = {"alone": lambda decide_by: {"by": DECIDES[decide_by]}}
