"""What the paper says about clients that misreport: everybody at once, and whether it could pay one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    DIRECTION,
    FAILS,
    HOLDS,
    Claim,
    Figure,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    both,
    from_runs,
    need,
    noise,
    pct,
    points,
    seeds,
    share,
    share_noise,
    sized,
    tolerance,
)

WHERE = "Appendix, misreporting"
TASK = "on the quickstart task, `feduca audit`"


def _level(inflation: str) -> Claim:
    theirs, part = paper.MISREPORTING[inflation]
    spread = paper.MISREPORTING_STD[inflation]

    def judge(summaries: Summaries) -> Verdict:
        cell = need(summaries, "misreporting", inflation=inflation)
        word, off = both(cell, Figure(theirs, spread, 3), part)
        return Verdict(word, f"ours {pct(share(cell))} and {pct(accuracy(cell).mean)}{off}{seeds(cell)}")

    text = f"everybody inflating by {inflation} % leaves {pct(part)} participation and {pct(theirs)} accuracy"
    return from_runs(WHERE, text, "both the paper's figures", judge)


def _fewer(summaries: Summaries) -> Verdict:
    truthful, inflated = (need(summaries, "misreporting", inflation=level) for level in ("0", "5"))
    change = share(inflated) - share(truthful)
    theirs = paper.MISREPORTING["5"][1] - paper.MISREPORTING["0"][1]
    return Verdict(
        sized(change, theirs, share_noise(truthful, inflated), 0.05), f"ours {points(change)}{seeds(truthful)}"
    )


def _worse(summaries: Summaries) -> Verdict:
    truthful, inflated = (need(summaries, "misreporting", inflation=level) for level in ("0", "5"))
    ours = accuracy(inflated), accuracy(truthful)
    change = ours[0].mean - ours[1].mean
    theirs = paper.MISREPORTING["5"][0] - paper.MISREPORTING["0"][0]
    return Verdict(sized(change, theirs, noise(*ours), tolerance(*ours)), f"ours {points(change)}{seeds(truthful)}")


def _collapse(summaries: Summaries) -> Verdict:
    truthful, cell = (need(summaries, "misreporting", inflation=level) for level in ("0", "10"))
    gone, guessing = share(cell) < 0.05, accuracy(cell).mean <= paper.CHANCE + 0.02
    down = share(truthful) - share(cell) > 0.25 and accuracy(truthful).mean - accuracy(cell).mean > 0.1
    word = HOLDS if gone and guessing else DIRECTION if down else FAILS
    return Verdict(word, f"ours {pct(share(cell))} participation, {pct(accuracy(cell).mean)} accuracy{seeds(cell)}")


def _audit(summaries: Summaries) -> Mapping[str, Any]:
    found = summaries.get("audit")
    if not found:
        raise Missing("audit")
    return found


def _alone(summaries: Summaries) -> Verdict:
    rows = [row for row in _audit(summaries)["alone"] if row["kind"] == "inflate"]
    if not rows:
        raise Missing("audit of a single silo that inflates")
    own = [(row["own"]["mean"], 2 * row["own"]["stderr"]) for row in rows]
    loses = all(mean + error < 0 for mean, error in own)
    gains = any(mean - error > 0 for mean, error in own)
    listed = ", ".join(
        f"{100 * row['share']:.0f} % deciding by its {row['decide_by']} threshold {100 * row['own']['mean']:+.1f}"
        for row in rows
    )
    word = FAILS if gains else HOLDS if loses else DIRECTION
    return Verdict(word, f"change of its own accuracy in points, inflating by {listed}; {TASK}")


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
        "a clear fall within five points of it; in direction: a clear fall",
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
        "participation under 5 % and accuracy within 2 points of chance; in direction: 25 and 10 points below truthful",
        _collapse,
    ),
    from_runs(
        WHERE,
        "inflating its threshold defeats the client that does it",
        "a single silo clearly loses, however it decides; in direction: it never clearly gains",
        _alone,
    ),
    from_runs(
        WHERE,
        "telling the truth is what rational clients end up with",
        "in every seed audited, the truth is everybody's best response to the others",
        _best_response,
    ),
]
