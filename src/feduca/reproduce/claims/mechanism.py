"""What the paper says about the mechanism: delta and Jensen's gap, the number of strategies, the fitted curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    CLOSE_SHARE,
    DATA,
    DIRECTION,
    FAILS,
    HOLDS,
    UNDECIDED,
    Cell,
    Claim,
    Difference,
    Figure,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    both,
    caveats,
    cells,
    change,
    columns,
    correlation,
    difference,
    entry,
    every,
    exact,
    find,
    from_runs,
    need,
    pct,
    positive,
    share,
    share_level,
    shares,
    sized,
)

PEAK = ("0.5", "1")  # where the paper has both peaks
SUMMARIES = {"mean": "mean over rounds", "top50": "mean of the 50 largest", "top25": "mean of the 25 largest"}


def _deltas(summaries: Summaries) -> dict[str, Cell]:
    found = {cell["labels"]["delta"]: cell for cell in cells(summaries, "delta")}
    if not {*PEAK, "0.01", "1000"} <= set(found):
        raise Missing("runs of delta from .01 to 1000")
    return found


def _shares(found: dict[str, Cell]) -> str:
    return ", ".join(f"{delta}: {pct(share(cell))}" for delta, cell in found.items()) + caveats(*found.values())


def _delta_level(delta: str) -> Claim:
    theirs = paper.DELTA_PARTICIPATION[delta]

    def judge(summaries: Summaries) -> Verdict:
        cell = need(summaries, "delta", delta=delta)
        kept = [share(other) for other in cells(summaries, "delta")]
        span = f"at any delta {pct(min(kept))} to {pct(max(kept))}"
        return Verdict(share_level(cell, theirs), f"ours {pct(share(cell))} ({span}){caveats(cell)}")

    text = f"participation is about {100 * theirs:.0f} % at delta = {delta} (CIFAR-10)"
    return from_runs("Section 4.1", text, "the paper's figure", judge)


def _delta_change(low: str, high: str) -> Claim:
    theirs = _printed_change(low, high)

    def judge(summaries: Summaries) -> Verdict:
        found = _deltas(summaries)
        moved = difference(shares(found[high]), shares(found[low]))
        return Verdict(sized(moved, theirs, CLOSE_SHARE), f"{change(moved)}; by delta: {_shares(found)}")

    verb = "rises" if theirs.value > 0 else "falls"
    text = f"participation {verb} by {100 * abs(theirs.value):.0f} points from delta = {low} to {high}"
    return from_runs("Section 4.1", text, "clear, and within five points of the paper's; in direction: clear", judge)


def _printed_change(low: str, high: str) -> Difference:
    return difference(exact(paper.DELTA_PARTICIPATION[high]), exact(paper.DELTA_PARTICIPATION[low]))


def _delta_peak(summaries: Summaries) -> Verdict:
    """The higher of .5 and 1 against both ends, with the paper's heights, and against everything else."""
    found = _deltas(summaries)
    inside = max((found[delta] for delta in PEAK), key=share)
    above = {end: difference(shares(inside), shares(found[end])) for end in ("0.01", "1000")}
    words = [sized(one, _printed_change(end, "1"), CLOSE_SHARE) for end, one in above.items()]
    others = [difference(shares(cell), shares(inside)) for delta, cell in found.items() if delta not in PEAK]
    word = FAILS if any(positive(one) == HOLDS for one in others) else every(words)
    listed = ", ".join(f"{one.value * 100:+.1f} points above delta = {end}" for end, one in above.items())
    return Verdict(
        HOLDS if word == DIRECTION else word,
        f"delta = {inside['labels']['delta']}: {listed}; by delta: {_shares(found)}",
    )


def _gaps(summaries: Summaries, which: str) -> dict[str, float]:
    study = "jensen" if cells(summaries, "jensen") else "delta"
    found = {c["labels"]["delta"]: c["jensen"][which] for c in cells(summaries, study) if c.get("jensen")}
    if not {*PEAK, "0.01", "10", "100"} <= set(found):
        raise Missing("Jensen gaps of delta from .01 to 100")
    return found


def _listed(gaps: dict[str, float]) -> str:
    return ", ".join(f"{delta}: {100 * gap:.2f}" for delta, gap in gaps.items())


def _gap_seeds(summaries: Summaries) -> str:
    return caveats(*(cells(summaries, "jensen") or cells(summaries, "delta")))


def _gap_peak(which: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        gaps = _gaps(summaries, which)
        inside, outside = [gaps[d] for d in PEAK], [gap for delta, gap in gaps.items() if delta not in PEAK]
        word = HOLDS if min(inside) > 1.1 * max(outside) else DIRECTION if max(inside) > 1.1 * max(outside) else FAILS
        return Verdict(word, f"in percent, by delta: {_listed(gaps)}{_gap_seeds(summaries)}")

    text = f"the summed Jensen gap ({SUMMARIES[which]}) peaks for delta between .5 and 1"
    criterion = "at both .5 and 1 a tenth larger than at every other delta; in direction: at one of them"
    return from_runs("Appendix, table of Jensen's gap", text, criterion, judge)


def _gap_level(delta: str) -> Claim:
    theirs = paper.JENSEN[delta]

    def judge(summaries: Summaries) -> Verdict:
        ours = [100 * _gaps(summaries, which)[delta] for which in SUMMARIES]
        close = all(2 / 3 <= mine / printed <= 3 / 2 for mine, printed in zip(ours, theirs))
        return Verdict(HOLDS if close else FAILS, f"ours {' / '.join(f'{v:.2f}' for v in ours)}{_gap_seeds(summaries)}")

    listed = " / ".join(f"{value:.2f}" for value in theirs)
    text = f"the summed gap at delta = {delta} is {listed} (mean / top-50 / top-25; read as percent)"
    return from_runs("Appendix, table of Jensen's gap", text, "all three within a factor of 1.5", judge)


def _gap_vanishes(delta: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        gaps = _gaps(summaries, "mean")
        left = gaps[delta] / (max(gaps.values()) or 1.0)
        word = HOLDS if left <= 0.15 else DIRECTION if left <= 0.5 else FAILS
        return Verdict(word, f"{pct(left)} of the largest is left{_gap_seeds(summaries)}")

    criterion = "at most 15 % of the largest mean (the paper's: 7 and 11 %); in direction: at most half"
    return from_runs("Proposition 2; appendix", f"the Jensen gap all but vanishes at delta = {delta}", criterion, judge)


def _concentrated(summaries: Summaries) -> Verdict:
    mean, top = _gaps(summaries, "mean"), _gaps(summaries, "top25")
    ratios = {delta: top[delta] / mean[delta] for delta in mean if mean[delta] > 0}
    listed = ", ".join(f"{delta}: {ratio:.1f}" for delta, ratio in ratios.items())
    word = HOLDS if all(ratio >= 1.5 for ratio in ratios.values()) else FAILS
    return Verdict(word, f"top-25 over mean, by delta: {listed} (1 would be even, 4 all in a quarter of the rounds)")


def _aligned(summaries: Summaries) -> Verdict:
    gaps, found = _gaps(summaries, "mean"), _deltas(summaries)
    common = [delta for delta in found if delta in gaps]
    kept = {delta: share(found[delta]) for delta in common}
    together = correlation([gaps[delta] for delta in common], list(kept.values()))
    peaks = max(gaps, key=lambda d: gaps[d]), max(kept, key=lambda d: kept[d])
    lowest = min(kept, key=lambda d: kept[d])
    moved = difference(shares(found[peaks[1]]), shares(found[lowest]))
    same = together >= 0.5 and set(peaks) <= set(PEAK)
    size = sized(moved, _printed_change("0.01", "1"), CLOSE_SHARE)  # the paper's: from its lowest to its highest
    word = FAILS if size == FAILS else UNDECIDED if size == UNDECIDED else HOLDS if same else FAILS
    flat = "" if moved.clear else f"; participation hardly moves at all ({change(moved)}; the paper's by 24)"
    return Verdict(
        word,
        f"rank correlation over delta {together:.2f}; gap largest at {peaks[0]}, participation at {peaks[1]}{flat}",
    )


def _strategy(summaries: Summaries, data: str, n_s: str) -> Cell:
    return need(summaries, "strategies", data=data, n_s=n_s, schedule="lagged")


def _strategy_level(data: str, n_s: str) -> Claim:
    theirs, part = paper.STRATEGIES[data, n_s]

    def judge(summaries: Summaries) -> Verdict:
        cell = _strategy(summaries, data, n_s)
        word, off = both(cell, Figure(theirs, 0.0, 3), part)
        return Verdict(word, f"ours {pct(accuracy(cell).mean)} and {pct(share(cell))}{off}{caveats(cell)}")

    text = f"n_s = {n_s} reaches {pct(theirs)} accuracy and {pct(part)} participation on {DATA[data]}"
    return from_runs("Section 4.2, table", text, "both the paper's figures", judge)


def _more_strategies(data: str) -> list[Claim]:
    one, five = paper.STRATEGIES[data, "1"], paper.STRATEGIES[data, "5"]
    spread = paper.ACCURACY[data, "0.5,1.0", "feduca"][1]  # of n_s = 5, which is the default; n_s = 1 has none printed
    more, better = difference(exact(five[1]), exact(one[1])), difference(Figure(five[0], spread, 3), exact(one[0]))

    def fresh(summaries: Summaries) -> str:
        pair = [find(summaries, "strategies", data=data, n_s=n, schedule="fresh") for n in ("1", "5")]
        known = [cell for cell in pair if cell is not None]
        return "" if len(known) < 2 else f"; with the fresh schedule {pct(share(known[0]))} and {pct(share(known[1]))}"

    def kept(summaries: Summaries) -> Verdict:
        few, many = _strategy(summaries, data, "1"), _strategy(summaries, data, "5")
        moved = difference(shares(many), shares(few))
        words = f"{change(moved)}: {pct(share(few))} to {pct(share(many))}"
        return Verdict(sized(moved, more, CLOSE_SHARE), f"{words}{fresh(summaries)}{caveats(few, many)}")

    def learnt(summaries: Summaries) -> Verdict:
        few, many = _strategy(summaries, data, "1"), _strategy(summaries, data, "5")
        moved = difference(accuracy(many), accuracy(few))
        return Verdict(sized(moved, better), f"{change(moved)}{caveats(few, many)}")

    def diminishing(summaries: Summaries) -> Verdict:
        row = [_strategy(summaries, data, n) for n in ("1", "5", "10")]
        first, second = (difference(shares(b), shares(a)) for a, b in itertools.pairwise(row))
        less = Difference(first.value - second.value, max(first.error, second.error))
        gained = sized(first, more, CLOSE_SHARE)
        word = every((HOLDS if gained == DIRECTION else gained, positive(less)))
        return Verdict(
            word, f"participation for 1, 5, 10: {', '.join(pct(share(cell)) for cell in row)}{caveats(*row)}"
        )

    size = "clear, and the paper's size; in direction: clear"
    return [
        from_runs(
            "Section 4.2",
            f"five strategies keep {100 * (five[1] - one[1]):.0f} points more clients than one on {DATA[data]}",
            size,
            kept,
        ),
        from_runs(
            "Section 4.2",
            f"five strategies are {100 * (five[0] - one[0]):.1f} points more accurate than one on {DATA[data]}",
            size,
            learnt,
        ),
        from_runs(
            "Section 3.5",
            f"more strategies bring less and less (participation, {DATA[data]})",
            "a clear gain from 1 to 5, and a clearly smaller one from 5 to 10; fails if the paper's gain is clearly missed",
            diminishing,
        ),
    ]


def _fit(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = find(summaries, "concavity", data=data) or find(
            summaries, "table1", data=data, split="0.5,1.0", method="feduca"
        )
        if cell is None:
            raise Missing(f"run of concavity: {data}")
        r2 = entry(cell, "r2")
        word = HOLDS if r2 >= paper.R2[data] - 0.05 else DIRECTION if r2 > 0.5 else FAILS
        return Verdict(word, f"ours R^2 = {r2:.2f}{caveats(cell)}")

    text = f"a concave quadratic fits the measured utilities well on {DATA[data]}: R^2 = {paper.R2[data]}"
    return from_runs("Appendix, concavity", text, "at least the paper's less .05; in direction: above .5", judge)


def _promise(summaries: Summaries) -> Verdict:
    off = {name: entry(cell, "promise_error") for name, (cell,) in columns(summaries, "feduca")}
    listed = ", ".join(f"{name} {100 * value:.1f}" for name, value in off.items())
    worst = max(off.values())
    word = HOLDS if worst <= 0.02 else DIRECTION if worst <= 0.05 else FAILS
    return Verdict(word, f"realised and promised utility apart by, in points: {listed}")


def _binding(summaries: Summaries) -> Verdict:
    """How many silos lack something in the 25 rounds with the largest gaps, and how many in the others."""
    found = {c["labels"]["delta"]: c["jensen_short"] for c in cells(summaries, "delta") if c.get("jensen_short")}
    if not {*PEAK} <= set(found):
        raise Missing("runs of delta that say in which rounds demands were not met (jensen_short)")
    more = {delta: Difference(one["top25"] - one["rest"], 0.05) for delta, one in found.items() if delta in PEAK}
    listed = ", ".join(f"{d}: {pct(found[d]['top25'])} against {pct(found[d]['rest'])}" for d in more)
    return Verdict(every(positive(one) for one in more.values()), f"silos with slack, by delta: {listed}")


# ---------------------------------------------------------------------------------------------------------------------
# Measured curves: those that a summary shows, chosen by rule (reproduce/curves.py)

BUMP = 0.02  # two points of accuracy: less than that against the trend is taken for noise of the validation data


def one_peak(values: Sequence[float]) -> bool:
    """Whether a curve rises to its largest value and falls from there, but for bumps."""
    top = max(range(len(values)), key=lambda i: values[i])
    rise, fall = values[: top + 1], values[top:][::-1]
    return all(_largest_drop(side) <= BUMP for side in (rise, fall))


def _largest_drop(values: Sequence[float]) -> float:
    return max(highest - value for highest, value in zip(itertools.accumulate(values, max), values))


def best_inside(values: Sequence[float]) -> bool:
    """Whether some weight strictly between 0 and 1 is better than both ends."""
    return max(values[1:-1]) > max(values[0], values[-1])


def looks_convex(grid: Sequence[float], values: Sequence[float]) -> bool:
    """Whether a curve stays within a twentieth of its range of the largest convex function below it."""
    span = max(values) - min(values)
    hull: list[tuple[float, float]] = []
    for point in zip(grid, values):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return all(value - _on(hull, place) <= 0.05 * span for place, value in zip(grid, values))


def _turns_down(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle lies on or above the line from the first to the last."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])


def _on(hull: Sequence[tuple[float, float]], place: float) -> float:
    """The value of a function that is straight between the corners of the hull."""
    for (x0, y0), (x1, y1) in itertools.pairwise(hull):
        if x0 <= place <= x1:
            return y0 + (y1 - y0) * (place - x0) / (x1 - x0)
    return hull[-1][1]


def _of_curves(where: str, text: str, test: str, fits: Callable[[Sequence[float], Mapping[str, Any]], bool]) -> Claim:
    """A claim about the shape of curves: true of nine in ten of those shown (in direction: of most)."""

    def judge(summaries: Summaries) -> Verdict:
        shown = {c["data"]: c["curves"] for c in cells(summaries, "concavity") if c.get("curves")}
        if not shown:
            raise Missing("run of concavity that kept measured curves")
        good = {d: [fits(kept["grid"], one) for one in kept["shown"]] for d, kept in shown.items()}
        part = min(sum(found) / len(found) for found in good.values())
        word = HOLDS if part >= 0.9 else DIRECTION if part > 0.5 else FAILS
        listed = ", ".join(f"{DATA.get(d, d)} {sum(found)} of {len(found)}" for d, found in good.items())
        return Verdict(word, f"of the best, median and worst fits of three rounds: {listed}")

    return from_runs(where, text, f"{test}, in nine of ten curves shown on each data set; in direction: in most", judge)


CLAIMS = [
    *(_delta_level(delta) for delta in paper.DELTA_PARTICIPATION),
    _delta_change("0.01", "1"),
    _delta_change("1", "1000"),
    from_runs(
        "Sections 3.5 and 4.1",
        "participation is not monotone in delta: highest between .5 and 1, lower at both ends",
        "the higher of .5 and 1 clearly above delta = .01 and delta = 1000, nothing clearly above it; fails if the paper's"
        " heights are clearly missed",
        _delta_peak,
    ),
    *(_gap_peak(which) for which in SUMMARIES),
    *(_gap_level(delta) for delta in paper.JENSEN),
    *(_gap_vanishes(delta) for delta in ("0.01", "100")),
    from_runs(
        "Appendix, Jensen's gap",
        "the surplus is concentrated in some rounds rather than spread evenly",
        "the 25 largest rounds have at least 1.5 times the mean, at every delta",
        _concentrated,
    ),
    from_runs(
        "Appendix, Jensen's gap",
        "those are the rounds in which many clients' constraints bind",
        "more silos have slack in the 25 rounds with the largest gaps than in the others, by more than five points, at .5 and 1",
        _binding,
    ),
    from_runs(
        "Section 4.1; appendix",
        "participation peaks where Jensen's gap does: the gap is what raises it",
        "both largest at .5 or 1, rank correlation over delta at least .5, participation clearly moving; fails if it clearly"
        " moves less than the paper's 24 points",
        _aligned,
    ),
    *(_strategy_level(*key) for key in paper.STRATEGIES),
    *_more_strategies("cifar10"),
    *_more_strategies("cifar100"),
    *(_fit(data) for data in paper.R2),
    from_runs(
        "Section 3.2",
        "the fitted curve tracks closely what a client then gets",
        "realised and promised utility apart by at most two points, mean over silos and rounds, in every column; in direction:"
        " five",
        _promise,
    ),
    _of_curves(
        "Section 3.2; appendix",
        "measured utility curves are smooth and have one peak",
        "rising to the peak and falling from it, but for bumps of two points",
        lambda grid, one: one_peak(one["utility"]),
    ),
    _of_curves(
        "Section 3.2",
        "clients do best at a weight strictly between 0 and 1",
        "measured utility at some inner weight above that at both ends",
        lambda grid, one: best_inside(one["utility"]),
    ),
    _of_curves(
        "Appendix, concavity",
        "loss curves along the path look convex",
        "within a twentieth of its range of the largest convex curve below it",
        lambda grid, one: looks_convex(grid, one["loss"]),
    ),
]
