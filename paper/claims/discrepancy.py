"""What the paper says about the aggregation discrepancy: the squared distance of alpha from uniform weights."""

from __future__ import annotations

import itertools
import statistics

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, UNDECIDED
from paper.claims.judging import Case, Missing, Seen, Summaries, Verdict
from paper.claims.look import DATA
from paper.tables import Cell, known

START = "; ours start from random weights, not from uniform ones"
ON = {data: {"data": DATA[data]} for data in ("cifar10", "cifar100")}


def _cell(summaries: Summaries, data: str) -> Cell:
    viewed = look.find(summaries, "discrepancy", data=data, split="0.5,1.0")
    return viewed or look.table(data, "0.5,1.0", "feduca")(summaries)


def _curve(summaries: Summaries, data: str) -> list[float | None]:
    return look.curve(_cell(summaries, data), "discrepancy")


def _mean(values: list[float | None]) -> float:
    found = known(values)
    if not found:
        raise Missing("discrepancy by round")
    return statistics.fmean(found)


def _expected(n: int, delta: float) -> float:
    """The bound of the lemma in expectation."""
    return (paper.N_S - 1) / (n * (paper.N_S * delta + 1))


def _largest(data: str) -> Case:
    bound = (paper.N_S - 1) / paper.CLIENTS[data]

    def see(summaries: Summaries) -> Seen:
        worst = max(known(_curve(summaries, data)))
        beside = f" of {bound:.2f} (mean over seeds)"
        return Seen({"": worst}, [_cell(summaries, data)], about="largest round ", beside=beside)

    return Case(see, compare.at_most(bound / 2, bound), ON[data], "{:.3f}".format)


def _average(data: str) -> Case:
    bound = _expected(paper.CLIENTS[data], paper.DELTA)

    def see(summaries: Summaries) -> Seen:
        mean = _mean(_curve(summaries, data))
        return Seen({"": mean}, about="mean over rounds ", beside=f", bound {bound:.3f}")

    return Case(see, compare.at_most(bound), ON[data], "{:.3f}".format)


def grows(summaries: Summaries, data: str) -> Verdict:
    rounds = _curve(summaries, data)
    first, then = look.block(rounds, 1, 10), look.block(rounds, 21, 40)
    up, error = then.mean - first.mean, compare.spread_error(first, then)
    beyond = up - 0.1 * first.mean
    word = HOLDS if beyond > 0 and up > error else FAILS if beyond < -error or up < -error else UNDECIDED
    return Verdict(word, f"rounds 1-10 {first.mean:.4f}, 21-40 {then.mean:.4f}{START if word == FAILS else ''}")


def starts_uniform(summaries: Summaries, data: str) -> Seen:
    first, then, said = _blocks(summaries, data, (1, 5), (61, 100))
    return Seen({"": first / then}, about="ratio ", beside=said)


def saturates(summaries: Summaries, data: str) -> Seen:
    first, then, said = _blocks(summaries, data, (31, 60), (71, 100))
    return Seen({"": abs(then - first) / first}, about="moved by a share of ", beside=said)


def _blocks(summaries: Summaries, data: str, *blocks: tuple[int, int]) -> tuple[float, float, str]:
    """The means of two blocks of rounds, and both in words."""
    rounds = _curve(summaries, data)
    first, then = (look.block(rounds, *block).mean for block in blocks)
    said = ", ".join(f"{low}-{high} {mean:.4f}" for (low, high), mean in zip(blocks, (first, then)))
    return first, then, f": rounds {said}"


def smaller_with_more(summaries: Summaries) -> Seen:
    ratio = _mean(_curve(summaries, "cifar100")) / _mean(_curve(summaries, "cifar10"))
    return Seen({"": ratio}, about="CIFAR-100's mean over CIFAR-10's: ")


def _by_delta(summaries: Summaries) -> dict[float, float]:
    found = {float(c["labels"]["delta"]): _mean(look.curve(c, "discrepancy")) for c in look.cells(summaries, "delta")}
    if len(found) < 4:
        raise Missing("runs of delta from .01 to 1000")
    return dict(sorted(found.items()))


def falls_with_delta(summaries: Summaries) -> Verdict:
    means = _by_delta(summaries)
    falls = all(after < before for before, after in itertools.pairwise(means.values()))
    listed = ", ".join(f"{delta:g}: {value:.2g}" for delta, value in means.items())
    return Verdict(HOLDS if falls else FAILS, f"mean discrepancy by delta: {listed}")


def bound_at_delta(summaries: Summaries) -> Seen:
    worst = max(value / _expected(10, delta) for delta, value in _by_delta(summaries).items())
    return Seen({"": worst}, about="largest share of the bound over all delta: ")


half_with_twice = smaller_with_more  # the same figure, and another bound

CASES = {
    "half-the-bound": [_largest(data) for data in ON],
    "mean-below": [_average(data) for data in ON],
}
