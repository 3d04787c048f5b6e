"""What the paper says about the aggregation discrepancy: the squared distance of alpha from uniform weights."""

from __future__ import annotations

import itertools
import statistics

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, UNDECIDED
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.tables import Cell, known


def _cell(summaries: Summaries, data: str) -> Cell:
    viewed = look.find(summaries, "discrepancy", data=data, split="0.5,1.0")
    return viewed or look.table(summaries, data, "0.5,1.0", "feduca")


def _mean(cell: Cell) -> float:
    found = known(look.curve(cell, "discrepancy"))
    if not found:
        raise Missing("discrepancy by round")
    return statistics.fmean(found)


def _expected(n: int, delta: float) -> float:
    """The bound of the lemma in expectation."""
    return (paper.N_S - 1) / (n * (paper.N_S * delta + 1))


def half_the_bound(summaries: Summaries, data: str) -> Seen:
    bound, cell = (paper.N_S - 1) / paper.CLIENTS[data], _cell(summaries, data)
    worst = max(known(look.curve(cell, "discrepancy")))
    must = compare.within(most=bound / 2, nearly_most=bound)
    return Seen(worst, behind=f" of {bound:.2f} (mean over seeds){caveats(cell)}", must=must)


def mean_below(summaries: Summaries, data: str) -> Seen:
    bound = _expected(paper.CLIENTS[data], paper.DELTA)
    return Seen(_mean(_cell(summaries, data)), behind=f", bound {bound:.3f}", must=compare.within(most=bound))


def grows(summaries: Summaries, data: str) -> Verdict:
    first, then = look.blocks(_cell(summaries, data), "discrepancy", (1, 10), (21, 40))
    up, error = then.mean - first.mean, compare.spread_error(first, then)
    beyond = up - 0.1 * first.mean
    word = HOLDS if beyond > 0 and up > error else FAILS if beyond < -error or up < -error else UNDECIDED
    return Verdict(word, f"rounds 1-10 {first.mean:.4f}, 21-40 {then.mean:.4f}")


def _blocks(summaries: Summaries, data: str, *spans: tuple[int, int]) -> tuple[float, float, str]:
    """The means of two blocks of rounds, and both in words."""
    first, then = (block.mean for block in look.blocks(_cell(summaries, data), "discrepancy", *spans))
    said = ", ".join(f"{low}-{high} {mean:.4f}" for (low, high), mean in zip(spans, (first, then)))
    return first, then, f": rounds {said}"


def starts_uniform(summaries: Summaries, data: str) -> Seen:
    first, then, said = _blocks(summaries, data, (1, 5), (61, 100))
    return Seen(first / then, behind=said)


def saturates(summaries: Summaries, data: str) -> Seen:
    first, then, said = _blocks(summaries, data, (31, 60), (71, 100))
    return Seen(abs(then - first) / first, behind=said)


def smaller_with_more(summaries: Summaries) -> float:
    return _mean(_cell(summaries, "cifar100")) / _mean(_cell(summaries, "cifar10"))


half_with_twice = smaller_with_more  # the same figure, and another bound


def _by_delta(summaries: Summaries) -> dict[float, float]:
    found = {float(cell["labels"]["delta"]): _mean(cell) for cell in look.cells(summaries, "delta")}
    if len(found) < 4:
        raise Missing("runs of delta from .01 to 1000")
    return dict(sorted(found.items()))


def falls_with_delta(summaries: Summaries) -> Verdict:
    means = _by_delta(summaries)
    falls = all(after < before for before, after in itertools.pairwise(means.values()))
    listed = ", ".join(f"{delta:g}: {value:.2g}" for delta, value in means.items())
    return Verdict(HOLDS if falls else FAILS, f"mean discrepancy by delta: {listed}")


def bound_at_delta(summaries: Summaries) -> float:
    return max(value / _expected(10, delta) for delta, value in _by_delta(summaries).items())
