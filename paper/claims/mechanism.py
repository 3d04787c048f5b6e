"""What the paper says about the mechanism: delta and Jensen's gap, the number of strategies, the fitted curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import DIRECTION, FAILS, HOLDS, UNDECIDED, Difference
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.claims.look import DATA, pct
from paper.tables import Cell

PEAK = ("0.5", "1")  # where the paper has both peaks
SUMS = {"mean": "mean over rounds", "top50": "mean of the 50 largest", "top25": "mean of the 25 largest"}


def _sized(ours: Difference, low: float, high: float) -> str:
    """The word for a change in participation, beside that from `low` to `high` in the paper."""
    return compare.sized(ours, compare.difference(compare.exact(high), compare.exact(low)), compare.CLOSE_SHARE)


def _deltas(summaries: Summaries) -> dict[str, Cell]:
    found = {cell["labels"]["delta"]: cell for cell in look.cells(summaries, "delta")}
    if not {*PEAK, "0.01", "1000"} <= set(found):
        raise Missing("runs of delta from .01 to 1000")
    return found


def delta_peak(summaries: Summaries) -> Verdict:
    """The higher of .5 and 1 against both ends, with the paper's heights, and against everything else."""
    found, theirs = _deltas(summaries), paper.DELTA_PARTICIPATION
    inside = max((found[delta] for delta in PEAK), key=look.share)
    above = {end: compare.difference(look.shares(inside), look.shares(found[end])) for end in ("0.01", "1000")}
    word = compare.every(_sized(one, theirs[end], theirs["1"]) for end, one in above.items())
    others = [cell for delta, cell in found.items() if delta not in PEAK]
    higher = (compare.positive(compare.difference(look.shares(cell), look.shares(inside))) for cell in others)
    word = FAILS if HOLDS in list(higher) else HOLDS if word == DIRECTION else word
    by_delta = ", ".join(f"{delta}: {pct(look.share(cell))}" for delta, cell in found.items())
    return Verdict(word, f"participation by delta: {by_delta}{caveats(*found.values())}")


def _gaps(summaries: Summaries, which: str = "mean") -> dict[str, float]:
    """Summed Jensen gaps by delta."""
    found = {c["labels"]["delta"]: c["jensen"][which] for c in _of_gaps(summaries) if c.get("jensen")}
    if not {*PEAK, "0.01", "10", "100"} <= set(found):
        raise Missing("Jensen gaps of delta from .01 to 100")
    return found


def _of_gaps(summaries: Summaries) -> list[Cell]:
    return look.cells(summaries, "jensen") or look.cells(summaries, "delta")


def gap_peak(summaries: Summaries, which: str) -> Verdict:
    gaps = _gaps(summaries, which)
    above = [gaps[d] > 1.1 * max(value for delta, value in gaps.items() if delta not in PEAK) for d in PEAK]
    listed = ", ".join(f"{delta}: {100 * value:.2f}" for delta, value in gaps.items())
    word = HOLDS if all(above) else DIRECTION if any(above) else FAILS
    return Verdict(word, f"in percent, by delta: {listed}{caveats(*_of_gaps(summaries))}")


def gap(summaries: Summaries, delta: str) -> Seen:
    ours = [100 * _gaps(summaries, which)[delta] for which in SUMS]
    before = f"ours {' / '.join(f'{value:.2f}' for value in ours)}; over the paper's: "
    return Seen(dict(zip(SUMS, np.divide(ours, paper.JENSEN[delta]))), before, caveats(*_of_gaps(summaries)))


def gap_vanishes(summaries: Summaries, delta: str) -> Seen:
    gaps = _gaps(summaries)
    return Seen(gaps[delta] / (max(gaps.values()) or 1.0), behind=caveats(*_of_gaps(summaries)))


def concentrated(summaries: Summaries) -> dict[str, float]:
    mean, top = _gaps(summaries), _gaps(summaries, "top25")
    return {f"{delta}:": top[delta] / mean[delta] for delta in mean if mean[delta] > 0}


def binding(summaries: Summaries) -> dict[str, Difference]:
    """How many silos lack something in the 25 rounds with the largest gaps, and how many in the others."""
    found = {c["labels"]["delta"]: c["jensen_short"] for c in look.cells(summaries, "delta") if c.get("jensen_short")}
    if not {*PEAK} <= set(found):
        raise Missing("runs of delta that say in which rounds demands were not met (jensen_short)")
    return {f"{d}:": Difference(found[d]["top25"] - found[d]["rest"], 0.05) for d in found if d in PEAK}


def peaks_together(summaries: Summaries) -> Verdict:
    gaps, found = _gaps(summaries), _deltas(summaries)
    kept = {delta: look.share(cell) for delta, cell in found.items() if delta in gaps}
    along = compare.correlation([gaps[delta] for delta in kept], list(kept.values()))
    peaks = max(gaps, key=lambda d: gaps[d]), max(kept, key=lambda d: kept[d])
    moved = compare.difference(look.shares(found[peaks[1]]), look.shares(found[min(kept, key=lambda d: kept[d])]))
    size = _sized(moved, paper.DELTA_PARTICIPATION["0.01"], paper.DELTA_PARTICIPATION["1"])  # its lowest and highest
    same = HOLDS if along >= 0.5 and set(peaks) <= set(PEAK) else FAILS
    flat = f"; participation moves by {100 * moved.value:.1f} ± {100 * moved.error:.1f} points (the paper's by 24)"
    said = f"rank correlation over delta {along:.2f}; gap largest at {peaks[0]}, participation at {peaks[1]}"
    return Verdict(size if size in (FAILS, UNDECIDED) else same, f"{said}{'' if moved.clear else flat}")


def diminishing(summaries: Summaries, data: str) -> Verdict:
    row = [look.need(summaries, "strategies", data=data, n_s=n, schedule="lagged") for n in ("1", "5", "10")]
    first, second = (compare.difference(look.shares(b), look.shares(a)) for a, b in itertools.pairwise(row))
    less = Difference(first.value - second.value, max(first.error, second.error))
    gained = _sized(first, paper.STRATEGIES[data, "1"][1], paper.STRATEGIES[data, "5"][1])
    word = compare.every((HOLDS if gained == DIRECTION else gained, compare.positive(less)))
    listed = ", ".join(pct(look.share(cell)) for cell in row)
    return Verdict(word, f"participation for 1, 5, 10: {listed}{caveats(*row)}")


def fit(summaries: Summaries, data: str) -> Seen:
    cell = look.find(summaries, "concavity", data=data)
    cell = cell or look.find(summaries, "table1", data=data, split="0.5,1.0", method="feduca")
    if cell is None:
        raise Missing(f"run of concavity: {data}")
    must = compare.within(least=paper.R2[data] - 0.05, nearly_least=0.5)
    return Seen(look.entry(cell, "r2"), behind=caveats(cell), must=must)


def promise(summaries: Summaries) -> dict[str, float]:
    return {name: 100 * look.entry(cell, "promise_error") for name, (cell,) in look.columns(summaries, "feduca")}


WORDS = {
    "gap-peak": lambda which: {"which": SUMS[which]},
    "gap": lambda delta: {"theirs": " / ".join(f"{value:.2f}" for value in paper.JENSEN[delta])},
    "fit": lambda data: {"theirs": paper.R2[data]},
}

# ---------------------------------------------------------------------------------------------------------------------
# Measured curves: those that a summary shows, chosen by rule (feduca/studies/curves.py)

BUMP = 0.02  # two points of accuracy: less than that against the trend is taken for noise of the validation data


def rises_and_falls(values: Sequence[float]) -> bool:
    """Whether a curve rises to its largest value and falls from there, but for bumps."""
    top = int(np.argmax(values))
    sides = np.asarray(values[: top + 1]), np.asarray(values[top:])[::-1]
    return all(np.max(np.maximum.accumulate(side) - side) <= BUMP for side in sides)


def peaks_inside(values: Sequence[float]) -> bool:
    """Whether some weight strictly between 0 and 1 is better than both ends."""
    return max(values[1:-1]) > max(values[0], values[-1])


def looks_convex(grid: Sequence[float], values: Sequence[float]) -> bool:
    """Whether a curve stays within a twentieth of its range of the largest convex function below it."""
    below = np.array(values, float)
    for i, j in itertools.combinations(range(len(grid)), 2):
        inner = slice(i, j + 1)  # no convex function below the curve is above one of its chords
        below[inner] = np.minimum(below[inner], np.interp(grid[inner], [grid[i], grid[j]], [values[i], values[j]]))
    return bool(np.max(values - below) <= 0.05 * (max(values) - min(values)))


def _shaped(summaries: Summaries, fits: Callable[[Sequence[float], Mapping[str, Any]], bool]) -> dict[str, float]:
    """How many of the curves shown have a shape."""
    shown = {c["data"]: c["curves"] for c in look.cells(summaries, "concavity") if c.get("curves")}
    if not shown:
        raise Missing("run of concavity that kept measured curves")
    return {DATA[d]: float(np.mean([fits(kept["grid"], one) for one in kept["shown"]])) for d, kept in shown.items()}


def one_peak(summaries: Summaries) -> dict[str, float]:
    return _shaped(summaries, lambda grid, curve: rises_and_falls(curve["utility"]))


def best_inside(summaries: Summaries) -> dict[str, float]:
    return _shaped(summaries, lambda grid, curve: peaks_inside(curve["utility"]))


def convex_loss(summaries: Summaries) -> dict[str, float]:
    return _shaped(summaries, lambda grid, curve: looks_convex(grid, curve["loss"]))
