"""What the paper says about time and memory."""

from __future__ import annotations

from paper import printed as paper
from paper.claims import look
from paper.claims.compare import DIRECTION, FAILS, HOLDS
from paper.claims.judging import Seen, Summaries
from paper.claims.look import NAMES

PLAIN_TIME, PLAIN_MEMORY = paper.COST["fedavg"]


def _over(summaries: Summaries, method: str, key: str) -> float:
    """What a method takes beyond FedAvg, in percent."""
    mine, plain = (look.entry(look.need(summaries, "cost", method=name), key) for name in (method, "fedavg"))
    return 100 * (mine / plain - 1)


def _longer(method: str) -> float:
    """The time that a method takes beyond FedAvg in the paper, in percent."""
    return 100 * (paper.COST[method][0] / PLAIN_TIME - 1)


def time(summaries: Summaries, method: str) -> Seen:
    theirs = _longer(method)

    def alike(ours: float) -> str:
        return HOLDS if abs(ours - theirs) <= 5 else DIRECTION if min(ours, theirs) > 5 else FAILS

    device = look.need(summaries, "cost", method=method)["device"]
    return Seen(_over(summaries, method, "seconds"), behind=f" on {device}; one seed", must=alike)


def memory(summaries: Summaries, method: str) -> float:
    return _over(summaries, method, "peak_mb")


def slowest(summaries: Summaries) -> Seen:
    """FedUCA over the slowest of the others."""
    taken = {method: look.entry(look.need(summaries, "cost", method=method), "seconds") for method in paper.COST}
    others = max(seconds for method, seconds in taken.items() if method != "feduca")
    listed = ", ".join(f"{NAMES[method]} {value:.1f}" for method, value in taken.items())
    return Seen(taken["feduca"] / others, behind=f"; seconds: {listed}")


def solver(summaries: Summaries) -> Seen:
    cell = look.need(summaries, "cost", method="feduca")
    part = look.entry(cell, "seconds_allocate") / look.entry(cell, "seconds")
    return Seen(part, behind=f" of {cell['seconds']:.1f} s, with everything else the server does between rounds")


WORDS = {
    "time": lambda method: {"theirs": _longer(method)},
    "memory": lambda method: {"theirs": paper.COST[method][1] - PLAIN_MEMORY, "plain": PLAIN_MEMORY},
}
