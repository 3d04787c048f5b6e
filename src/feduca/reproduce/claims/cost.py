"""What the paper says about time, memory and messages."""

from __future__ import annotations

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    DIRECTION,
    FAILS,
    HOLDS,
    NAMES,
    Claim,
    Summaries,
    Verdict,
    entry,
    from_runs,
    need,
    proved,
    silent,
)

WHERE = "Appendix, implementation"


def _ratio(summaries: Summaries, method: str, key: str) -> float:
    mine, plain = (entry(need(summaries, "cost", method=name), key) for name in (method, "fedavg"))
    return mine / plain - 1


def _time(method: str) -> Claim:
    theirs = paper.COST[method][0] / paper.COST["fedavg"][0] - 1

    def judge(summaries: Summaries) -> Verdict:
        over = _ratio(summaries, method, "seconds")
        both = min(over, theirs) > 0.05
        word = HOLDS if abs(over - theirs) <= 0.05 else DIRECTION if both else FAILS
        device = need(summaries, "cost", method=method)["device"]
        return Verdict(word, f"ours {100 * over:+.1f} % on {device}; one seed")

    text = f"{NAMES[method]} takes {100 * theirs:.1f} % more time than FedAvg (CIFAR-10, 100 rounds)"
    return from_runs(WHERE, text, "within 5 percentage points; in direction: both more than 5 %", judge)


def _memory(method: str) -> Claim:
    theirs = paper.COST[method][1] - paper.COST["fedavg"][1]

    def judge(summaries: Summaries) -> Verdict:
        over = _ratio(summaries, method, "peak_mb")
        return Verdict(HOLDS if over <= 0.02 else FAILS, f"ours {100 * over:+.1f} %")

    text = f"{NAMES[method]} needs hardly more memory than FedAvg ({theirs} MB of {paper.COST['fedavg'][1]})"
    return from_runs(WHERE, text, "a peak at most 2 % higher", judge)


def _slowest(summaries: Summaries) -> Verdict:
    taken = {method: entry(need(summaries, "cost", method=method), "seconds") for method in paper.COST}
    word = HOLDS if max(taken, key=lambda method: taken[method]) == "feduca" else FAILS
    return Verdict(word, "seconds: " + ", ".join(f"{NAMES[method]} {value:.1f}" for method, value in taken.items()))


def _solver(summaries: Summaries) -> Verdict:
    cell = need(summaries, "cost", method="feduca")
    share = entry(cell, "seconds_allocate") / entry(cell, "seconds")
    words = f"ours {100 * share:.1f} % of {cell['seconds']:.1f} s, with everything else the server does between rounds"
    return Verdict(HOLDS if share <= 0.02 else FAILS, words)


OTHERS = [method for method in paper.COST if method != "fedavg"]

CLAIMS = [
    *(_time(method) for method in OTHERS),
    from_runs(WHERE, "FedUCA is the slowest of the five methods", "it takes the most seconds", _slowest),
    *(_memory(method) for method in OTHERS),
    silent(
        WHERE,
        "a run of FedUCA takes 5575 s, one of FedAvg 4583 s, at peaks of 5654 and 5633 MB",
        "another GPU and another implementation; docs/speed.md has ours",
    ),
    from_runs(WHERE, "6 of 5575 seconds are spent in the solver", "at most 2 % of the run", _solver),
    proved(
        WHERE,
        "a client's curve costs next to nothing to send",
        HOLDS,
        "three numbers for the curve and one for the threshold, beside a model (docs/methods/feduca.md)",
    ),
]
