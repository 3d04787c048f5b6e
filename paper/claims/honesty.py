"""What the paper says about clients that misreport: everybody at once, and whether it could pay one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, Difference
from paper.claims.judging import Case, Missing, Seen, Summaries, Verdict, said_of
from paper.claims.look import pct

TASK = "; on the quickstart task, `feduca audit`"
TRUTHFUL, TEN = (look.at("misreporting", inflation=level) for level in ("0", "10"))


def collapse(summaries: Summaries) -> Verdict:
    truthful, cell = TRUTHFUL(summaries), TEN(summaries)
    bounds = {look.shares: 0.05, look.accuracy: paper.CHANCE + 0.02}
    word = compare.every(
        compare.no_more(compare.difference(of(cell), compare.exact(bound))) for of, bound in bounds.items()
    )
    fewer, worse = (100 * compare.difference(of(cell), of(truthful)).value for of in bounds)
    ours = f"ours {pct(look.share(cell))} participation, {pct(look.accuracy(cell).mean)} accuracy"
    return Verdict(word, f"{ours}; against truthful {fewer:+.1f} and {worse:+.1f} points{said_of(cell)}")


def infeasible(summaries: Summaries) -> Seen:
    cell = TEN(summaries)
    called, truthful = (look.entry(c, "fallbacks") / look.entry(c, "rounds") for c in (cell, TRUTHFUL(summaries)))
    words = f"of half of the rounds: the fallback was called in {pct(called)} of them, truthful {pct(truthful)}"
    if cell.get("short_share") is not None:
        words += f"; {pct(cell['short_share'])} of the demands were not met in full"
    return Seen({"off by": Difference(called - 0.5, 0.05)}, [cell], beside=f" {words}")


def _audit(summaries: Summaries) -> Mapping[str, Any]:
    found = summaries.get("audit")
    if not found:
        raise Missing("audit")
    return found


def _alone(decide_by: str, by: str) -> Case:
    def see(summaries: Summaries) -> Seen:
        rows = [r for r in _audit(summaries)["alone"] if (r["kind"], r["decide_by"]) == ("inflate", decide_by)]
        if not rows:
            raise Missing(f"audit of a single silo that inflates and decides by its {decide_by} threshold")
        own = {f"{100 * row['share']:.0f} %": _change(row) for row in rows}
        return Seen(own, about="change of its own accuracy in points, inflating by ", beside=TASK)

    return Case(see, lambda change: compare.positive(-change), {"by": by})


def _change(row: Mapping[str, Any]) -> Difference:
    """What a deviator's own accuracy changes by, over all cases audited (silos and seeds)."""
    return Difference(row["own"]["mean"], max(compare.LEAST, compare.t95(row["cases"] - 1) * row["own"]["stderr"]))


def truth(summaries: Summaries) -> Verdict:
    audit = _audit(summaries)
    found = audit["best_response"]
    if not found:
        raise Missing("audit of best responses")
    honest = sum(case["truthful"] == audit["silos"] for case in found)
    word = HOLDS if honest == len(found) else FAILS
    return Verdict(word, f"everybody's best response is the truth in {honest} of {len(found)} seeds{TASK}")


CASES = {
    "alone": [_alone("reported", "the threshold it reports"), _alone("true", "its true one")],
}
