"""What the paper says about the aggregation discrepancy: the squared distance of alpha from uniform weights."""

from __future__ import annotations

import itertools
import statistics

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    DATA,
    DIRECTION,
    FAILS,
    HOLDS,
    UNDECIDED,
    Cell,
    Claim,
    Missing,
    Summaries,
    Verdict,
    block,
    caveats,
    cells,
    curve,
    find,
    from_runs,
    spread_error,
    table,
)
from feduca.reproduce.tables import known

WHERE = "Appendix, discrepancy"
START = "; ours start from random weights, not from uniform ones"


def _cell(summaries: Summaries, data: str) -> Cell:
    viewed = find(summaries, "discrepancy", data=data, split="0.5,1.0")
    return viewed or table(summaries, data, "0.5,1.0", "feduca")


def _curve(summaries: Summaries, data: str) -> list[float | None]:
    return curve(_cell(summaries, data), "discrepancy")


def _mean(values: list[float | None]) -> float:
    found = known(values)
    if not found:
        raise Missing("discrepancy by round")
    return statistics.fmean(found)


def _expected(n: int, delta: float) -> float:
    """The bound of the lemma in expectation."""
    return (paper.N_S - 1) / (n * (paper.N_S * delta + 1))


def _of(data: str) -> list[Claim]:
    n = paper.CLIENTS[data]
    pointwise = (paper.N_S - 1) / n

    def below(summaries: Summaries) -> Verdict:
        worst = max(known(_curve(summaries, data)))
        word = HOLDS if worst <= pointwise / 2 else DIRECTION if worst <= pointwise else FAILS
        return Verdict(
            word, f"largest round {worst:.3f} of {pointwise:.2f} (mean over seeds){caveats(_cell(summaries, data))}"
        )

    def on_average(summaries: Summaries) -> Verdict:
        mean, bound = _mean(_curve(summaries, data)), _expected(n, paper.DELTA)
        return Verdict(HOLDS if mean <= bound else FAILS, f"mean over rounds {mean:.3f}, bound {bound:.3f}")

    def rises(summaries: Summaries) -> Verdict:
        rounds = _curve(summaries, data)
        first, then = block(rounds, 1, 10), block(rounds, 21, 40)
        up, error = then.mean - first.mean, spread_error(first, then)
        beyond = up - 0.1 * first.mean
        word = HOLDS if beyond > 0 and up > error else FAILS if beyond < -error or up < -error else UNDECIDED
        return Verdict(word, f"rounds 1-10 {first.mean:.4f}, 21-40 {then.mean:.4f}{START if word == FAILS else ''}")

    def near_uniform(summaries: Summaries) -> Verdict:
        rounds = _curve(summaries, data)
        first, late = block(rounds, 1, 5).mean, block(rounds, 61, 100).mean
        word = HOLDS if first <= late / 2 else FAILS
        return Verdict(word, f"rounds 1-5 {first:.4f}, 61-100 {late:.4f}{START if word == FAILS else ''}")

    def saturates(summaries: Summaries) -> Verdict:
        rounds = _curve(summaries, data)
        middle, late = block(rounds, 31, 60).mean, block(rounds, 71, 100).mean
        word = HOLDS if abs(late - middle) <= 0.15 * middle else FAILS
        return Verdict(word, f"rounds 31-60 {middle:.4f}, 71-100 {late:.4f}")

    name = DATA[data]
    return [
        from_runs(
            WHERE,
            f"the discrepancy stays well below (n_s - 1)/N on {name}",
            "every round below half of it; in direction: below it",
            below,
        ),
        from_runs(
            WHERE,
            f"its mean stays below (n_s - 1)/(N (n_s delta + 1)) on {name}",
            "mean over rounds and seeds below the bound",
            on_average,
        ),
        from_runs(
            WHERE,
            f"it grows in the first thirty rounds on {name}",
            "rounds 21-40 above 1-10 by a tenth and more than the error over rounds; fails if a tenth is clearly missed",
            rises,
        ),
        from_runs(
            WHERE,
            f"the first weights are close to uniform on {name}",
            "rounds 1-5 at most half of 61-100",
            near_uniform,
        ),
        from_runs(
            WHERE, f"it saturates after about round 30 on {name}", "rounds 71-100 within 15 % of 31-60", saturates
        ),
    ]


def _ratio(summaries: Summaries) -> float:
    return _mean(_curve(summaries, "cifar100")) / _mean(_curve(summaries, "cifar10"))


def _smaller(summaries: Summaries) -> Verdict:
    ratio = _ratio(summaries)
    return Verdict(HOLDS if ratio < 0.9 else FAILS, f"CIFAR-100's mean over CIFAR-10's: {ratio:.2f}")


def _half(summaries: Summaries) -> Verdict:
    ratio = _ratio(summaries)
    word = HOLDS if 0.4 <= ratio <= 0.6 else DIRECTION if ratio < 0.9 else FAILS
    return Verdict(word, f"CIFAR-100's mean over CIFAR-10's: {ratio:.2f}")


def _by_delta(summaries: Summaries) -> dict[float, float]:
    found = {float(c["labels"]["delta"]): _mean(curve(c, "discrepancy")) for c in cells(summaries, "delta")}
    if len(found) < 4:
        raise Missing("runs of delta from .01 to 1000")
    return dict(sorted(found.items()))


def _listed(means: dict[float, float]) -> str:
    return ", ".join(f"{delta:g}: {value:.2g}" for delta, value in means.items())


def _falls(summaries: Summaries) -> Verdict:
    means = _by_delta(summaries)
    values = list(means.values())
    falls = all(after < before for before, after in itertools.pairwise(values))
    return Verdict(HOLDS if falls else FAILS, f"mean discrepancy by delta: {_listed(means)}")


def _bounded(summaries: Summaries) -> Verdict:
    means = _by_delta(summaries)
    worst = max(value / _expected(10, delta) for delta, value in means.items())
    return Verdict(HOLDS if worst <= 1 else FAILS, f"largest share of the bound over all delta: {100 * worst:.0f} %")


CLAIMS = [
    *_of("cifar10"),
    *_of("cifar100"),
    from_runs(
        WHERE, "CIFAR-100 (N = 20) has a smaller discrepancy than CIFAR-10 (N = 10)", "by more than a tenth", _smaller
    ),
    from_runs(
        WHERE,
        "twice as many clients halve the discrepancy (CIFAR-100 against CIFAR-10)",
        "a ratio between .4 and .6; in direction: below .9",
        _half,
    ),
    from_runs(
        "Sections 1 and 3.5",
        "delta controls the discrepancy: the larger it is, the smaller the discrepancy",
        "the mean over rounds falls with every step in delta",
        _falls,
    ),
    from_runs(
        "Lemma on expected discrepancy",
        "the bound in expectation holds at every delta (CIFAR-10)",
        "mean over rounds below the bound at every delta run",
        _bounded,
    ),
]
