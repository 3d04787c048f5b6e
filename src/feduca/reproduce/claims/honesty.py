"""What the paper says about clients that misreport: everybody at once, and whether it could pay one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    CLOSE_SHARE,
    FAILS,
    HOLDS,
    LEAST,
    Claim,
    Difference,
    Figure,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    at_most,
    both,
    caveats,
    change,
    difference,
    entry,
    every,
    exact,
    from_runs,
    need,
    pct,
    positive,
    proved,
    share,
    shares,
    sized,
    t95,
)

WHERE = "Appendix, misreporting"
TASK = "on the quickstart task, `feduca audit`"


def _level(inflation: str) -> Claim:
    theirs, part = paper.MISREPORTING[inflation]
    spread = paper.MISREPORTING_STD[inflation]

    def judge(summaries: Summaries) -> Verdict:
        cell = need(summaries, "misreporting", inflation=inflation)
        word, off = both(cell, Figure(theirs, spread, 3), part)
        return Verdict(word, f"ours {pct(share(cell))} and {pct(accuracy(cell).mean)}{off}{caveats(cell)}")

    text = f"everybody inflating by {inflation} % leaves {pct(part)} participation and {pct(theirs)} accuracy"
    return from_runs(WHERE, text, "both the paper's figures", judge)


def _printed(inflation: str) -> Figure:
    return Figure(paper.MISREPORTING[inflation][0], paper.MISREPORTING_STD[inflation], 3)


def _fewer(summaries: Summaries) -> Verdict:
    truthful, inflated = (need(summaries, "misreporting", inflation=level) for level in ("0", "5"))
    fewer = difference(shares(inflated), shares(truthful))
    theirs = difference(*(exact(paper.MISREPORTING[level][1]) for level in ("5", "0")))
    return Verdict(sized(fewer, theirs, CLOSE_SHARE), f"{change(fewer)}{caveats(truthful)}")


def _worse(summaries: Summaries) -> Verdict:
    truthful, inflated = (need(summaries, "misreporting", inflation=level) for level in ("0", "5"))
    worse = difference(accuracy(inflated), accuracy(truthful))
    return Verdict(sized(worse, difference(_printed("5"), _printed("0"))), f"{change(worse)}{caveats(truthful)}")


def _collapse(summaries: Summaries) -> Verdict:
    truthful, cell = (need(summaries, "misreporting", inflation=level) for level in ("0", "10"))
    word = every((at_most(shares(cell), 0.05), at_most(accuracy(cell), paper.CHANCE + 0.02)))
    fewer, worse = difference(shares(cell), shares(truthful)), difference(accuracy(cell), accuracy(truthful))
    ours = f"ours {pct(share(cell))} participation, {pct(accuracy(cell).mean)} accuracy"
    beside = f"against truthful {100 * fewer.value:+.1f} and {100 * worse.value:+.1f} points"
    return Verdict(word, f"{ours}; {beside}{caveats(cell)}")


def _infeasible(summaries: Summaries) -> Verdict:
    truthful, cell = (need(summaries, "misreporting", inflation=level) for level in ("0", "10"))
    rounds = entry(cell, "rounds")
    called = entry(cell, "fallbacks") / rounds
    words = f"nobody could be satisfied and the fallback was called in {pct(called)} of the rounds"
    beside = f"truthful {pct(entry(truthful, 'fallbacks') / entry(truthful, 'rounds'))}"
    if cell.get("short_share") is not None:
        words += f"; {pct(cell['short_share'])} of the demands were not met in full"
    return Verdict(positive(Difference(called - 0.5, 0.05)), f"{words}; {beside}{caveats(cell)}")


def _audit(summaries: Summaries) -> Mapping[str, Any]:
    found = summaries.get("audit")
    if not found:
        raise Missing("audit")
    return found


def _alone(decide_by: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        rows = [r for r in _audit(summaries)["alone"] if (r["kind"], r["decide_by"]) == ("inflate", decide_by)]
        if not rows:
            raise Missing(f"audit of a single silo that inflates and decides by its {decide_by} threshold")
        own = {row["share"]: _change(row) for row in rows}
        lost = [Difference(-one.value, one.error) for one in own.values()]
        listed = ", ".join(f"{100 * s:.0f} % {100 * o.value:+.1f} ± {100 * o.error:.1f}" for s, o in own.items())
        return Verdict(
            every(positive(one) for one in lost), f"change of its own accuracy in points, inflating by {listed}; {TASK}"
        )

    by = {"reported": "the threshold it reports", "true": "its true one"}[decide_by]
    text = f"inflating its threshold defeats the client that does it and decides by {by}"
    return from_runs(WHERE, text, "a single silo among truthful ones clearly loses, at 5 and at 10 %", judge)


def _change(row: Mapping[str, Any]) -> Difference:
    """What a deviator's own accuracy changes by, over all cases audited (silos and seeds)."""
    error = t95(row["cases"] - 1) * row["own"]["stderr"]
    return Difference(row["own"]["mean"], max(LEAST, error))


def _best_response(summaries: Summaries) -> Verdict:
    audit = _audit(summaries)
    found = audit["best_response"]
    if not found:
        raise Missing("audit of best responses")
    honest = sum(case["truthful"] == audit["silos"] for case in found)
    word = HOLDS if honest == len(found) else FAILS
    return Verdict(word, f"everybody's best response is the truth in {honest} of {len(found)} seeds; {TASK}")


CLAIMS = [
    *(_level(level) for level in paper.MISREPORTING),
    from_runs(
        WHERE,
        "everybody inflating by 5 % costs 13 points of participation",
        "a clear fall of the paper's size; in direction: a clear fall",
        _fewer,
    ),
    from_runs(
        WHERE,
        "everybody inflating by 5 % costs about 3 points of accuracy",
        "a clear fall of the paper's size; in direction: a clear fall",
        _worse,
    ),
    from_runs(
        WHERE,
        "everybody inflating by 10 % ends the federation: hardly anybody participates, the model guesses at random",
        "participation at most 5 %, accuracy at most 2 points above chance; fails if one of them is clearly more",
        _collapse,
    ),
    proved(
        WHERE,
        "inflated thresholds shrink the set of weights that satisfy everybody",
        HOLDS,
        "whatever meets the higher demand meets the lower one",
    ),
    from_runs(
        WHERE,
        "at +10 % the program becomes broadly infeasible",
        "the fallback, which is called when nobody can be satisfied, is called in clearly more than half of the rounds",
        _infeasible,
    ),
    _alone("reported"),
    _alone("true"),
    from_runs(
        WHERE,
        "telling the truth is what rational clients end up with",
        "in every seed audited, the truth is everybody's best response to the others",
        _best_response,
    ),
]
