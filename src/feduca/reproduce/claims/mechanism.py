"""What the paper says about the mechanism: delta and Jensen's gap, the number of strategies, the fitted curves."""

from __future__ import annotations

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    DATA,
    DIRECTION,
    FAILS,
    HOLDS,
    Cell,
    Claim,
    Figure,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    both,
    cells,
    change,
    columns,
    correlation,
    entry,
    find,
    from_runs,
    need,
    noise,
    pct,
    points,
    seeds,
    share,
    share_noise,
    silent,
    sized,
    table,
    tolerance,
)

PEAK = ("0.5", "1")  # where the paper has both peaks
SUMMARIES = {"mean": "mean over rounds", "top50": "mean of the 50 largest", "top25": "mean of the 25 largest"}


def _deltas(summaries: Summaries) -> dict[str, Cell]:
    found = {cell["labels"]["delta"]: cell for cell in cells(summaries, "delta")}
    if not {*PEAK, "0.01", "1000"} <= set(found):
        raise Missing("runs of delta from .01 to 1000")
    return found


def _shares(found: dict[str, Cell]) -> str:
    return ", ".join(f"{delta}: {pct(share(cell))}" for delta, cell in found.items()) + seeds(*found.values())


def _delta_level(delta: str) -> Claim:
    theirs = paper.DELTA_PARTICIPATION[delta]

    def judge(summaries: Summaries) -> Verdict:
        cell = need(summaries, "delta", delta=delta)
        every = [share(other) for other in cells(summaries, "delta")]
        word = HOLDS if abs(share(cell) - theirs) <= 0.05 else FAILS
        return Verdict(
            word, f"ours {pct(share(cell))} (at any delta {pct(min(every))} to {pct(max(every))}){seeds(cell)}"
        )

    text = f"participation is about {100 * theirs:.0f} % at delta = {delta} (CIFAR-10)"
    return from_runs("Section 4.1", text, "the paper's figure", judge)


def _delta_change(low: str, high: str) -> Claim:
    theirs = paper.DELTA_PARTICIPATION[high] - paper.DELTA_PARTICIPATION[low]

    def judge(summaries: Summaries) -> Verdict:
        found = _deltas(summaries)
        moved, clear = share(found[high]) - share(found[low]), share_noise(found[high], found[low])
        return Verdict(sized(moved, theirs, clear, 0.05), f"{change(moved, clear)}; by delta: {_shares(found)}")

    verb = "rises" if theirs > 0 else "falls"
    text = f"participation {verb} by {100 * abs(theirs):.0f} points from delta = {low} to {high}"
    return from_runs("Section 4.1", text, "clear, and within five points of the paper's; in direction: clear", judge)


def _delta_peak(summaries: Summaries) -> Verdict:
    found = _deltas(summaries)
    top = max(found.values(), key=share)
    clear = share_noise(*found.values())
    above = min(share(top) - share(found[end]) for end in ("0.01", "1000"))
    word = HOLDS if top["labels"]["delta"] in PEAK and above > clear else FAILS
    return Verdict(
        word, f"largest at {top['labels']['delta']}, {points(above)} above the higher end; by delta: {_shares(found)}"
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
    return seeds(*(cells(summaries, "jensen") or cells(summaries, "delta")))


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
    shares = {delta: share(found[delta]) for delta in common}
    together = correlation([gaps[delta] for delta in common], list(shares.values()))
    spread = max(shares.values()) - min(shares.values())
    clear = share_noise(*found.values())
    peaks = max(gaps, key=lambda d: gaps[d]), max(shares, key=lambda d: shares[d])
    word = HOLDS if together >= 0.5 and set(peaks) <= set(PEAK) and spread > clear else FAILS
    flat = "; participation hardly moves at all" if spread <= clear else ""
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
        return Verdict(word, f"ours {pct(accuracy(cell).mean)} and {pct(share(cell))}{off}{seeds(cell)}")

    text = f"n_s = {n_s} reaches {pct(theirs)} accuracy and {pct(part)} participation on {DATA[data]}"
    return from_runs("Section 4.2, table", text, "both the paper's figures", judge)


def _more_strategies(data: str) -> list[Claim]:
    one, five = paper.STRATEGIES[data, "1"], paper.STRATEGIES[data, "5"]

    def fresh(summaries: Summaries) -> str:
        pair = [find(summaries, "strategies", data=data, n_s=n, schedule="fresh") for n in ("1", "5")]
        known = [cell for cell in pair if cell is not None]
        return "" if len(known) < 2 else f"; with the fresh schedule {pct(share(known[0]))} and {pct(share(known[1]))}"

    def kept(summaries: Summaries) -> Verdict:
        few, many = _strategy(summaries, data, "1"), _strategy(summaries, data, "5")
        word = sized(share(many) - share(few), five[1] - one[1], share_noise(few, many), 0.05)
        return Verdict(word, f"ours {pct(share(few))} to {pct(share(many))}{fresh(summaries)}{seeds(few, many)}")

    def learnt(summaries: Summaries) -> Verdict:
        few, many = _strategy(summaries, data, "1"), _strategy(summaries, data, "5")
        ours = accuracy(few), accuracy(many)
        moved, clear = ours[1].mean - ours[0].mean, noise(*ours)
        word = sized(moved, five[0] - one[0], clear, tolerance(*ours))
        return Verdict(word, f"{change(moved, clear)}{seeds(few, many)}")

    def diminishing(summaries: Summaries) -> Verdict:
        row = [share(_strategy(summaries, data, n)) for n in ("1", "5", "10")]
        first, second = row[1] - row[0], row[2] - row[1]
        clear = share_noise(_strategy(summaries, data, "5"))
        word = HOLDS if first > clear and second < first - clear else FAILS
        return Verdict(word, f"participation for 1, 5, 10: {', '.join(pct(value) for value in row)}")

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
            "a clear gain from 1 to 5, and a clearly smaller one from 5 to 10",
            diminishing,
        ),
    ]


def _fit(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = find(summaries, "concavity", data=data) or table(summaries, data, "0.5,1.0", "feduca")
        r2 = entry(cell, "r2")
        word = HOLDS if r2 >= paper.R2[data] - 0.05 else DIRECTION if r2 > 0.5 else FAILS
        return Verdict(word, f"ours R^2 = {r2:.2f}{seeds(cell)}")

    text = f"a concave quadratic fits the measured utilities well on {DATA[data]}: R^2 = {paper.R2[data]}"
    return from_runs("Appendix, concavity", text, "at least the paper's less .05; in direction: above .5", judge)


def _promise(summaries: Summaries) -> Verdict:
    kept = {name: entry(cell, "promise_kept") for name, (cell,) in columns(summaries, "feduca")}
    listed = ", ".join(f"{name} {100 * value:+.1f}" for name, value in kept.items())
    word = HOLDS if all(abs(value) <= 0.02 for value in kept.values()) else FAILS
    return Verdict(word, f"realised minus promised utility, in points: {listed}")


NO_CURVES = "no judge reads the curves; the section on concavity draws some, a run's report all"

CLAIMS = [
    *(_delta_level(delta) for delta in paper.DELTA_PARTICIPATION),
    _delta_change("0.01", "1"),
    _delta_change("1", "1000"),
    from_runs(
        "Sections 3.5 and 4.1",
        "participation is not monotone in delta: highest between .5 and 1, lower at both ends",
        "largest at .5 or 1, clearly above delta = .01 and delta = 1000",
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
    silent(
        "Appendix, Jensen's gap",
        "those are the rounds in which many clients' constraints bind",
        "the summaries hold no number of binding constraints by round",
    ),
    from_runs(
        "Section 4.1; appendix",
        "participation peaks where Jensen's gap does: the gap is what raises it",
        "both largest at .5 or 1, rank correlation over delta at least .5, participation clearly moving",
        _aligned,
    ),
    *(_strategy_level(*key) for key in paper.STRATEGIES),
    *_more_strategies("cifar10"),
    *_more_strategies("cifar100"),
    *(_fit(data) for data in paper.R2),
    from_runs(
        "Section 3.2",
        "what the fitted curve promises is what a client then gets",
        "realised minus promised utility within two points on average, in every column run",
        _promise,
    ),
    silent("Section 3.2; appendix", "measured utility curves are smooth and have one peak", NO_CURVES),
    silent("Section 3.2", "clients do best at a weight strictly between 0 and 1", NO_CURVES),
    silent("Appendix, concavity", "loss curves along the path look convex", NO_CURVES),
]
