"""What the paper says about the aggregation discrepancy: the squared distance of alpha from uniform weights."""

from __future__ import annotations

import itertools
import statistics

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, UNDECIDED
from paper.claims.judging import Case, Missing, Seen, Summaries, Verdict
from paper.claims.look import DATA, pct
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


def _grows(data: str) -> Case:
    def see(summaries: Summaries) -> Verdict:
        rounds = _curve(summaries, data)
        first, then = look.block(rounds, 1, 10), look.block(rounds, 21, 40)
        up, error = then.mean - first.mean, compare.spread_error(first, then)
        beyond = up - 0.1 * first.mean
        word = HOLDS if beyond > 0 and up > error else FAILS if beyond < -error or up < -error else UNDECIDED
        return Verdict(word, f"rounds 1-10 {first.mean:.4f}, 21-40 {then.mean:.4f}{START if word == FAILS else ''}")

    return Case(see, fill=ON[data])


def _over(data: str, early: tuple[int, int], late: tuple[int, int], about: str) -> Case:
    """Two blocks of rounds, the first over the second (`at most half`), or how far the second is from the first."""

    def see(summaries: Summaries) -> Seen:
        rounds = _curve(summaries, data)
        first, then = look.block(rounds, *early).mean, look.block(rounds, *late).mean
        ratio = abs(then - first) / first if about else first / then
        said = f": rounds {early[0]}-{early[1]} {first:.4f}, {late[0]}-{late[1]} {then:.4f}"
        return Seen({"": ratio}, about=about or "ratio ", beside=said)

    if about:
        return Case(see, compare.at_most(0.15), ON[data])
    return Case(see, compare.at_most(0.5), ON[data], if_it_fails=START)


def _ratio(summaries: Summaries) -> Seen:
    ratio = _mean(_curve(summaries, "cifar100")) / _mean(_curve(summaries, "cifar10"))
    return Seen({"": ratio}, about="CIFAR-100's mean over CIFAR-10's: ")


def _by_delta(summaries: Summaries) -> dict[float, float]:
    found = {float(c["labels"]["delta"]): _mean(look.curve(c, "discrepancy")) for c in look.cells(summaries, "delta")}
    if len(found) < 4:
        raise Missing("runs of delta from .01 to 1000")
    return dict(sorted(found.items()))


def _falls(summaries: Summaries) -> Verdict:
    means = _by_delta(summaries)
    falls = all(after < before for before, after in itertools.pairwise(means.values()))
    listed = ", ".join(f"{delta:g}: {value:.2g}" for delta, value in means.items())
    return Verdict(HOLDS if falls else FAILS, f"mean discrepancy by delta: {listed}")


def _bounded(summaries: Summaries) -> Seen:
    worst = max(value / _expected(10, delta) for delta, value in _by_delta(summaries).items())
    return Seen({"": worst}, about="largest share of the bound over all delta: ")


CASES = {
    "half-the-bound": [_largest(data) for data in ON],
    "mean-below": [_average(data) for data in ON],
    "grows": [_grows(data) for data in ON],
    "starts-uniform": [_over(data, (1, 5), (61, 100), "") for data in ON],
    "saturates": [_over(data, (31, 60), (71, 100), "moved by a share of ") for data in ON],
    "smaller-with-more": [Case(_ratio, compare.at_most(0.9))],
    "half-with-twice": [Case(_ratio, compare.within(0.4, 0.6, (0.0, 0.9)))],
    "falls-with-delta": [Case(_falls)],
    "bound-at-delta": [Case(_bounded, compare.at_most(1), shown=pct)],
}
