"""What the paper says about the mechanism: delta and Jensen's gap, the number of strategies, the fitted curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import DIRECTION, FAILS, HOLDS, UNDECIDED, Difference
from paper.claims.judging import Case, Missing, Seen, Summaries, Verdict, said_of
from paper.claims.look import DATA, pct
from paper.tables import Cell

PEAK = ("0.5", "1")  # where the paper has both peaks
SUMMARIES = {"mean": "mean over rounds", "top50": "mean of the 50 largest", "top25": "mean of the 25 largest"}


def _change(low: str, high: str) -> Difference:
    """What the paper's participation changes by between two deltas."""
    return compare.difference(
        compare.exact(paper.DELTA_PARTICIPATION[high]), compare.exact(paper.DELTA_PARTICIPATION[low])
    )


def _deltas(summaries: Summaries) -> dict[str, Cell]:
    found = {cell["labels"]["delta"]: cell for cell in look.cells(summaries, "delta")}
    if not {*PEAK, "0.01", "1000"} <= set(found):
        raise Missing("runs of delta from .01 to 1000")
    return found


def delta_peak(summaries: Summaries) -> Verdict:
    """The higher of .5 and 1 against both ends, with the paper's heights, and against everything else."""
    found = _deltas(summaries)
    inside = max((found[delta] for delta in PEAK), key=look.share)
    above = {end: compare.difference(look.shares(inside), look.shares(found[end])) for end in ("0.01", "1000")}
    word = compare.every(compare.sized(one, _change(end, "1"), compare.CLOSE_SHARE) for end, one in above.items())
    others = [
        compare.difference(look.shares(cell), look.shares(inside)) for delta, cell in found.items() if delta not in PEAK
    ]
    word = FAILS if any(compare.positive(one) == HOLDS for one in others) else HOLDS if word == DIRECTION else word
    by_delta = ", ".join(f"{delta}: {pct(look.share(cell))}" for delta, cell in found.items())
    return Verdict(word, f"participation by delta: {by_delta}{said_of(*found.values())}")


def _gaps(summaries: Summaries, which: str = "mean") -> dict[str, float]:
    """Summed Jensen gaps by delta."""
    found = {c["labels"]["delta"]: c["jensen"][which] for c in _of_gaps(summaries) if c.get("jensen")}
    if not {*PEAK, "0.01", "10", "100"} <= set(found):
        raise Missing("Jensen gaps of delta from .01 to 100")
    return found


def _of_gaps(summaries: Summaries) -> list[Cell]:
    return look.cells(summaries, "jensen") or look.cells(summaries, "delta")


def _gap_peak(which: str) -> Case:
    def see(summaries: Summaries) -> Verdict:
        gaps = _gaps(summaries, which)
        above = [gaps[d] > 1.1 * max(value for delta, value in gaps.items() if delta not in PEAK) for d in PEAK]
        listed = ", ".join(f"{delta}: {100 * value:.2f}" for delta, value in gaps.items())
        word = HOLDS if all(above) else DIRECTION if any(above) else FAILS
        return Verdict(word, f"in percent, by delta: {listed}{said_of(*_of_gaps(summaries))}")

    return Case(see, fill={"which": SUMMARIES[which]})


def _gap_level(delta: str) -> Case:
    theirs = paper.JENSEN[delta]

    def see(summaries: Summaries) -> Seen:
        ours = [100 * _gaps(summaries, which)[delta] for which in SUMMARIES]
        about = f"ours {' / '.join(f'{value:.2f}' for value in ours)}; over the paper's: "
        return Seen(dict(zip(SUMMARIES, np.divide(ours, theirs))), _of_gaps(summaries), about)

    fill = {"delta": delta, "theirs": " / ".join(f"{value:.2f}" for value in theirs)}
    return Case(see, compare.within(2 / 3, 3 / 2), fill)


def gap_vanishes(summaries: Summaries, delta: str) -> Seen:
    gaps = _gaps(summaries)
    left = gaps[delta] / (max(gaps.values()) or 1.0)
    return Seen({"": left}, _of_gaps(summaries), beside=" of the largest is left")


def concentrated(summaries: Summaries) -> Seen:
    mean, top = _gaps(summaries), _gaps(summaries, "top25")
    ratios = {f"{delta}:": top[delta] / mean[delta] for delta in mean if mean[delta] > 0}
    beside = " (1 would be even, 4 all in a quarter of the rounds)"
    return Seen(ratios, about="top-25 over mean, by delta: ", beside=beside)


def binding(summaries: Summaries) -> Seen:
    """How many silos lack something in the 25 rounds with the largest gaps, and how many in the others."""
    found = {c["labels"]["delta"]: c["jensen_short"] for c in look.cells(summaries, "delta") if c.get("jensen_short")}
    if not {*PEAK} <= set(found):
        raise Missing("runs of delta that say in which rounds demands were not met (jensen_short)")
    more = {f"{d}:": Difference(found[d]["top25"] - found[d]["rest"], 0.05) for d in found if d in PEAK}
    return Seen(more, about="more silos with slack, in points by delta: ")


def peaks_together(summaries: Summaries) -> Verdict:
    gaps, found = _gaps(summaries), _deltas(summaries)
    kept = {delta: look.share(cell) for delta, cell in found.items() if delta in gaps}
    along = compare.correlation([gaps[delta] for delta in kept], list(kept.values()))
    peaks = max(gaps, key=lambda d: gaps[d]), max(kept, key=lambda d: kept[d])
    moved = compare.difference(look.shares(found[peaks[1]]), look.shares(found[min(kept, key=lambda d: kept[d])]))
    size = compare.sized(
        moved, _change("0.01", "1"), compare.CLOSE_SHARE
    )  # the paper's: from its lowest to its highest
    same = HOLDS if along >= 0.5 and set(peaks) <= set(PEAK) else FAILS
    flat = f"; participation moves by {100 * moved.value:.1f} ± {100 * moved.error:.1f} points (the paper's by 24)"
    words = f"rank correlation over delta {along:.2f}; gap largest at {peaks[0]}, participation at {peaks[1]}"
    return Verdict(size if size in (FAILS, UNDECIDED) else same, f"{words}{'' if moved.clear else flat}")


def _strategy(data: str, n_s: str) -> Callable[[Summaries], Cell]:
    return look.at("strategies", data=data, n_s=n_s, schedule="lagged")


def _kept(data: str) -> Difference:
    """How many more clients the paper keeps with five strategies."""
    return compare.difference(
        compare.exact(paper.STRATEGIES[data, "5"][1]), compare.exact(paper.STRATEGIES[data, "1"][1])
    )


def diminishing(summaries: Summaries, data: str) -> Verdict:
    row = [_strategy(data, n)(summaries) for n in ("1", "5", "10")]
    first, second = (compare.difference(look.shares(b), look.shares(a)) for a, b in itertools.pairwise(row))
    less = Difference(first.value - second.value, max(first.error, second.error))
    gained = compare.sized(first, _kept(data), compare.CLOSE_SHARE)
    word = compare.every((HOLDS if gained == DIRECTION else gained, compare.positive(less)))
    listed = ", ".join(pct(look.share(cell)) for cell in row)
    return Verdict(word, f"participation for 1, 5, 10: {listed}{said_of(*row)}")


def _fit(data: str) -> Case:
    def see(summaries: Summaries) -> Seen:
        cell = look.find(summaries, "concavity", data=data)
        cell = cell or look.find(summaries, "table1", data=data, split="0.5,1.0", method="feduca")
        if cell is None:
            raise Missing(f"run of concavity: {data}")
        return Seen({"": look.entry(cell, "r2")}, [cell], about="ours R^2 = ")

    return Case(see, compare.at_least(paper.R2[data] - 0.05, 0.5), {"data": DATA[data], "theirs": paper.R2[data]})


def promise(summaries: Summaries) -> Seen:
    apart = {name: 100 * look.entry(cell, "promise_error") for name, (cell,) in look.columns(summaries, "feduca")}
    return Seen(apart, about="realised and promised utility apart by, in points: ")


# ---------------------------------------------------------------------------------------------------------------------
# Measured curves: those that a summary shows, chosen by rule (feduca/studies/curves.py)

BUMP = 0.02  # two points of accuracy: less than that against the trend is taken for noise of the validation data


def one_peak(values: Sequence[float]) -> bool:
    """Whether a curve rises to its largest value and falls from there, but for bumps."""
    top = int(np.argmax(values))
    sides = np.asarray(values[: top + 1]), np.asarray(values[top:])[::-1]
    return all(np.max(np.maximum.accumulate(side) - side) <= BUMP for side in sides)


def best_inside(values: Sequence[float]) -> bool:
    """Whether some weight strictly between 0 and 1 is better than both ends."""
    return max(values[1:-1]) > max(values[0], values[-1])


def looks_convex(grid: Sequence[float], values: Sequence[float]) -> bool:
    """Whether a curve stays within a twentieth of its range of the largest convex function below it."""
    below = np.array(values, float)
    for i, j in itertools.combinations(range(len(grid)), 2):
        inner = slice(i, j + 1)  # no convex function below the curve is above one of its chords
        below[inner] = np.minimum(below[inner], np.interp(grid[inner], [grid[i], grid[j]], [values[i], values[j]]))
    return bool(np.max(values - below) <= 0.05 * (max(values) - min(values)))


def _curves(fits: Callable[[Sequence[float], Mapping[str, Any]], bool]) -> Case:
    """A claim about the shape of curves: true of nine in ten of those shown (in direction: of most)."""

    def see(summaries: Summaries) -> Seen:
        shown = {c["data"]: c["curves"] for c in look.cells(summaries, "concavity") if c.get("curves")}
        if not shown:
            raise Missing("run of concavity that kept measured curves")
        good = {DATA[str(d)]: np.mean([fits(kept["grid"], one) for one in kept["shown"]]) for d, kept in shown.items()}
        return Seen(good, about="of the best, median and worst fits of three rounds: ")

    return Case(see, compare.at_least(0.9, 0.51), shown=pct)


CASES = {
    "gap-peak": [_gap_peak(which) for which in SUMMARIES],
    "gap": [_gap_level(delta) for delta in paper.JENSEN],
    "fit": [_fit(data) for data in paper.R2],
    "one-peak": [_curves(lambda grid, one: one_peak(one["utility"]))],
    "best-inside": [_curves(lambda grid, one: best_inside(one["utility"]))],
    "convex-loss": [_curves(lambda grid, one: looks_convex(grid, one["loss"]))],
}
