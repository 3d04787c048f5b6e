"""What the paper says about time and memory."""

from __future__ import annotations

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import DIRECTION, FAILS, HOLDS
from paper.claims.judging import Case, Seen, Summaries
from paper.claims.look import NAMES

OTHERS = [method for method in paper.COST if method != "fedavg"]


def _over(summaries: Summaries, method: str, key: str) -> float:
    """What a method takes beyond FedAvg, in percent."""
    mine, plain = (look.entry(look.at("cost", method=name)(summaries), key) for name in (method, "fedavg"))
    return 100 * (mine / plain - 1)


def _time(method: str) -> Case:
    theirs = 100 * (paper.COST[method][0] / paper.COST["fedavg"][0] - 1)

    def see(summaries: Summaries) -> Seen:
        cell = look.at("cost", method=method)(summaries)
        beside = f" % on {cell['device']}; one seed"
        return Seen({"": _over(summaries, method, "seconds")}, about="ours ", beside=beside)

    def word(ours: float) -> str:
        return HOLDS if abs(ours - theirs) <= 5 else DIRECTION if min(ours, theirs) > 5 else FAILS

    return Case(see, word, {"method": NAMES[method], "theirs": theirs}, "{:+.1f}".format)


def _memory(method: str) -> Case:
    theirs, plain = paper.COST[method][1], paper.COST["fedavg"][1]

    def see(summaries: Summaries) -> Seen:
        return Seen({"": _over(summaries, method, "peak_mb")}, about="ours ", beside=" %")

    return Case(
        see, compare.at_most(2), {"method": NAMES[method], "theirs": theirs - plain, "plain": plain}, "{:+.1f}".format
    )


def slowest(summaries: Summaries) -> Seen:
    """FedUCA over the slowest of the others."""
    taken = {method: look.entry(look.at("cost", method=method)(summaries), "seconds") for method in paper.COST}
    others = max(seconds for method, seconds in taken.items() if method != "feduca")
    listed = ", ".join(f"{NAMES[method]} {value:.1f}" for method, value in taken.items())
    return Seen({"": taken["feduca"] / others}, about="times the slowest other: ", beside=f"; seconds: {listed}")


def solver(summaries: Summaries) -> Seen:
    cell = look.at("cost", method="feduca")(summaries)
    part = look.entry(cell, "seconds_allocate") / look.entry(cell, "seconds")
    beside = f" of {cell['seconds']:.1f} s, with everything else the server does between rounds"
    return Seen({"": part}, about="ours ", beside=beside)


CASES = {
    "time": [_time(method) for method in OTHERS],
    "memory": [_memory(method) for method in OTHERS],
}
