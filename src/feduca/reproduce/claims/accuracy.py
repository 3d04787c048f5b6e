"""What the paper says about accuracy: levels, leads, orders, spreads over seeds, and where they come from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    BASELINES,
    COLUMNS,
    DATA,
    DIRECTION,
    FAILS,
    HOLDS,
    NAMES,
    TEXT,
    UNDECIDED,
    Cell,
    Claim,
    Difference,
    Figure,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    accuracy_level,
    block,
    caveats,
    cells,
    change,
    columns,
    correlation,
    curve,
    difference,
    every,
    find,
    from_runs,
    gain,
    near,
    need,
    pct,
    place,
    points,
    positive,
    printed,
    rivals,
    share,
    shares,
    study,
    table,
)

LEAD = "clear, and the paper's size; in direction: clear"


def _where(data: str) -> str:
    return "Table 2" if data != "20news" else "Appendix, table on text"


def _ahead(ours: Cell, others: Iterable[Cell], beside: str = "") -> Verdict:
    """Clearly more accurate than the best of the others."""
    rival = max(others, key=lambda cell: accuracy(cell).mean)
    mine, best = accuracy(ours), accuracy(rival)
    lead = difference(mine, best)
    against = f"{pct(mine.mean)} against {pct(best.mean)} ({NAMES[rival['method']]})"
    return Verdict(positive(lead), f"{change(lead)}: {against}{beside}{caveats(ours, rival)}")


def _leads(summaries: Summaries, ahead: str, behind: str) -> dict[str, Difference]:
    """By column of the paper's Table 2: how much more accurate one method is than another."""
    return {
        name: difference(accuracy(ours), accuracy(theirs)) for name, (ours, theirs) in columns(summaries, ahead, behind)
    }


def _on_average(summaries: Summaries, ahead: str, behind: str, split: str = "") -> Difference:
    """The same, mean over the columns (of one split), seed by seed where all ran the same seeds."""
    rows = [row for name, row in columns(summaries, ahead, behind) if split in name]
    if not rows:
        raise Missing(f"column of table1 for split {split}")
    return difference(*(_mean([accuracy(cell) for cell in side]) for side in zip(*rows)))


def _mean(figures: Sequence[Figure]) -> Figure:
    """The mean of figures; without their seeds where these differ."""
    n, together = len(figures), statistics.fmean(figure.mean for figure in figures)
    first = figures[0].by_seed
    if any(figure.by_seed.keys() != first.keys() for figure in figures) or len(first) < 2:
        spreads = [figure.std for figure in figures]
        std = None if None in spreads else math.sqrt(sum(std**2 for std in spreads if std is not None)) / n
        return Figure(together, std, min(figure.n for figure in figures))
    by_seed = {seed: statistics.fmean(figure.by_seed[seed] for figure in figures) for seed in first}
    return Figure(together, statistics.stdev(by_seed.values()), len(by_seed), by_seed)


def _listed(found: Mapping[str, Difference]) -> str:
    return ", ".join(f"{name} {100 * one.value:+.1f} ± {100 * one.error:.1f}" for name, one in found.items())


def _everywhere(leads: Mapping[str, Difference]) -> str:
    return every(positive(lead) for lead in leads.values())


def _best(data: str, split: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        feduca = table(summaries, data, split, "feduca")
        control = find(summaries, study(data), data=data, split=split, method="uniform")
        beside = (
            ""
            if control is None
            else f"; constant uniform weights under FedUCA's rule reach {pct(accuracy(control).mean)}"
        )
        return _ahead(feduca, (table(summaries, data, split, method) for method in rivals(data)), beside)

    text = f"FedUCA is the most accurate of the {len(rivals(data)) + 1} methods on {place(data, split)}"
    return from_runs(_where(data), text, "clearly ahead of the best other", judge)


def _lead(data: str, split: str, ahead: str, behind: str, where: str = "") -> Claim:
    theirs = printed(data, split, ahead), printed(data, split, behind)
    size = 100 * (theirs[0].mean - theirs[1].mean)

    def judge(summaries: Summaries) -> Verdict:
        return gain(table(summaries, data, split, ahead), table(summaries, data, split, behind), theirs)

    text = f"{NAMES[ahead]} leads {NAMES[behind]} by {size:.1f} points on {place(data, split)}"
    return from_runs(where or _where(data), text, LEAD, judge)


def _easier(data: str, method: str) -> Claim:
    theirs = printed(data, "1.0,1.0", method), printed(data, "0.5,1.0", method)
    size = 100 * (theirs[0].mean - theirs[1].mean)

    def judge(summaries: Summaries) -> Verdict:
        return gain(table(summaries, data, "1.0,1.0", method), table(summaries, data, "0.5,1.0", method), theirs)

    text = f"{NAMES[method]} is {size:.1f} points better on {DATA[data]} when silos differ less: (1.0,1.0) against (0.5,1.0)"
    return from_runs("Table 2", text, LEAD, judge)


def _level(data: str, split: str, method: str) -> Claim:
    theirs = printed(data, split, method)

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        ours = accuracy(cell)
        spread = "" if ours.std is None else f" (± {100 * ours.std:.1f})"
        off = difference(ours, theirs)
        error = f"{100 * off.value:+.1f} ± {100 * off.error:.1f} points"
        return Verdict(accuracy_level(cell, off), f"ours {pct(ours.mean)}{spread}, {error}{caveats(cell)}")

    text = f"{NAMES[method]} reaches {100 * theirs.mean:.2f} % on {place(data, split)}"
    return from_runs(_where(data), text, "the paper's figure", judge)


def _order(data: str, split: str) -> Claim:
    """All pairs of methods that the paper's own spreads separate."""
    figures = {method: printed(data, split, method) for method in NAMES if (data, split, method) in paper.ACCURACY}
    ordered = sorted(figures, key=lambda method: -figures[method].mean)
    pairs = [
        (high, low)
        for i, high in enumerate(ordered)
        for low in ordered[i + 1 :]
        if positive(difference(figures[high], figures[low])) == HOLDS
    ]

    def judge(summaries: Summaries) -> Verdict:
        ours = {method: accuracy(table(summaries, data, split, method)) for method in figures}
        words = {(a, b): positive(difference(ours[a], ours[b])) for a, b in pairs}
        same = sum(word == HOLDS for word in words.values())
        turned = [f"{NAMES[b]} over {NAMES[a]}" for (a, b), word in words.items() if word == FAILS]
        word = every(words.values())
        word = DIRECTION if word == UNDECIDED and same > len(pairs) / 2 else word
        listed = f"; clearly the other way: {', '.join(turned)}" if turned else ""
        return Verdict(word, f"{same} of {len(pairs)} pairs clearly in the paper's order{listed}")

    text = f"the order of methods on {place(data, split)}: {', '.join(NAMES[m] for m in ordered)}"
    criterion = "every pair that the paper separates clearly is so here; in direction: most are, none clearly reversed"
    return from_runs(_where(data), text, criterion, judge)


def _spread(method: str) -> Claim:
    def pooled(values: list[float]) -> float:
        return math.sqrt(sum(value**2 for value in values) / len(values))

    def judge(summaries: Summaries) -> Verdict:
        found = [find(summaries, "table1", data=d, split=s, method=method) for d, s in COLUMNS]
        both = [
            (cell["accuracy_std"], printed(*column, method).std or 0.0, len(cell["seeds"]) - 1)
            for column, cell in zip(COLUMNS, found)
            if cell is not None and cell.get("accuracy_std") is not None
        ]
        if len(both) < 2:
            raise Missing(f"runs of {NAMES[method]} with several seeds in two columns of table1")
        ours, theirs = (pooled([row[i] for row in both]) for i in (0, 1))
        chance = _ratio_by_chance(sum(n for *_, n in both), 2 * len(both))
        words = (
            f"over {len(both)} columns: ours {100 * ours:.1f} points, the paper's {100 * theirs:.1f}"
            f" (equal spreads would differ by a factor of up to {chance:.1f})"
        )
        return Verdict(HOLDS if ours <= 2 * theirs else FAILS if ours > chance * theirs else UNDECIDED, words)

    largest = 100 * max(printed(*column, method).std or 0.0 for column in COLUMNS)
    text = f"{NAMES[method]} varies little over three seeds (its largest standard deviation: {largest:.2f} points)"
    criterion = "root mean square of the spreads at most twice the paper's; fails beyond chance (F test, 95 %)"
    return from_runs("Table 2", text, criterion, judge)


def _ratio_by_chance(ours: int, theirs: int) -> float:
    """How many times another standard deviation one may be by chance: the root of an F quantile, 95 % two-sided."""
    from scipy.special import fdtri

    return math.sqrt(float(fdtri(ours, theirs, 0.975)))


def _all_leads(summaries: Summaries) -> Verdict:
    found = _leads(summaries, "feduca", "fedavg-ws")
    if not all(any(split in name for name in found) for split in paper.SPLITS):
        raise Missing("columns of table1 for both splits")
    means = {split: _on_average(summaries, "feduca", "fedavg-ws", split) for split in paper.SPLITS}
    word = FAILS if FAILS in map(positive, found.values()) else _everywhere(means)
    return Verdict(word, f"mean lead in points: {_listed(means)}; by column: {_listed(found)}")


def _attrition(summaries: Summaries) -> Verdict:
    lost = _leads(summaries, "forced", "fedavg")
    mean = _on_average(summaries, "forced", "fedavg")
    word = FAILS if FAILS in map(positive, lost.values()) else positive(mean)
    why = "points that FedAvg loses against everybody forced in"
    return Verdict(word, f"{why}: mean {_listed({'over columns': mean})}; {_listed(lost)}")


def _worsens(summaries: Summaries) -> Verdict:
    """Over rounds, because a summary's curve is the mean over seeds."""
    changes = {}
    for method in ("fedavg", "fedprox", "aaggff"):
        rounds = curve(table(summaries, "cifar10", "0.5,1.0", method), "accuracy_by_round")
        changes[NAMES[method]] = difference(block(rounds, 91, 100), block(rounds, 2, 6))
    lost = [Difference(-0.01 - one.value, one.error) for one in changes.values()]  # what is lost beyond a point
    word = every(positive(one) for one in lost)
    why = f"change from rounds 2-6 to the last ten, in points: {_listed(changes)}"
    return Verdict(word, why + ("; the model stops where it was left" if word == FAILS else ""))


def _follows(summaries: Summaries) -> Verdict:
    found = {}
    for name, row in columns(summaries, *NAMES):
        found[name] = correlation([share(cell) for cell in row], [accuracy(cell).mean for cell in row])
    least = min(found.values())
    listed = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    word = HOLDS if least >= 0.8 else DIRECTION if least >= 0.5 else UNDECIDED if least >= 0 else FAILS
    against = _same_share(summaries)
    return Verdict(FAILS if against else word, f"rank correlation of the six methods: {listed}{against}")


def _same_share(summaries: Summaries) -> str:
    """Counterexamples: random weights under FedUCA's rule that keep as many clients and clearly learn more or less."""
    found = []
    try:
        for name, (feduca, random) in columns(summaries, "feduca", "random"):
            for control in filter(None, (random, near(summaries, feduca))):
                kept = difference(shares(control), shares(feduca))
                learnt = difference(accuracy(control), accuracy(feduca))
                if not kept.clear and learnt.clear:
                    both = f"{pct(share(control))} against {pct(share(feduca))}"
                    found.append(f"{name} {both}, {points(learnt.value)} ({control['method']})")
    except Missing:
        return ""
    return (
        f"; but random weights keep as many clients as FedUCA and learn otherwise: {'; '.join(found)}" if found else ""
    )


def _beside_uniform(summaries: Summaries) -> Verdict:
    """FedUCA beside constant uniform weights under FedUCA's own rule: only the weights differ."""
    found = _leads(summaries, "feduca", "uniform")
    words = "FedUCA minus constant uniform weights under the same rule (Eq. 2), in points"
    return Verdict(_everywhere(found), f"{words}: {_listed(found)}")


def _same_memory(summaries: Summaries) -> Verdict:
    feduca, *others = (need(summaries, "schedules", method=method) for method in ("feduca", *BASELINES))
    return _ahead(feduca, others)


def _memory(summaries: Summaries) -> Verdict:
    """Two runs of one study that differ in the memory alone, seed by seed."""
    kept = need(summaries, "schedules", method="feduca")
    alike = [
        c for c in cells(summaries, "schedules") if all(c.get(k) == kept.get(k) for k in ("mechanism", "schedule"))
    ]
    without = next((cell for cell in alike if cell.get("memory") == "none"), None)
    if without is None:
        raise Missing("run of schedules: FedUCA without memory (memory.kind = none)")
    more, better = difference(shares(kept), shares(without)), difference(accuracy(kept), accuracy(without))
    word = every((positive(more), positive(better)))
    found = _listed({"participation": more, "accuracy": better})
    return Verdict(word, f"with memory minus without, in points: {found}{caveats(kept, without)}")


def _steady(summaries: Summaries) -> Verdict:
    moves = {}
    for name, (feduca,) in columns(summaries, "feduca"):
        rounds = curve(feduca, "accuracy_by_round")
        moves[name] = difference(block(rounds, 91, 100), block(rounds, 71, 90))
    word = FAILS if any(move.clear for move in moves.values()) else HOLDS
    return Verdict(word, f"last ten rounds minus the twenty before, in points: {_listed(moves)}")


def _strongest(summaries: Summaries) -> Verdict:
    ours = {method: accuracy(table(summaries, *TEXT, method)) for method in rivals("20news")}
    best = max((m for m in ours if m != "aaggff"), key=lambda method: ours[method].mean)
    lead = difference(ours["aaggff"], ours[best])
    word = HOLDS if lead.value > 0 else FAILS if lead.clear else UNDECIDED
    return Verdict(word, f"ours: {', '.join(f'{NAMES[m]} {pct(figure.mean)}' for m, figure in ours.items())}")


LEADS = [
    *(_best(*column) for column in [*COLUMNS, TEXT]),
    *(_lead(*column, "feduca", "fedavg-ws", "Section 4, warm start") for column in COLUMNS),
    from_runs(
        "Section 4, warm start",
        "FedUCA leads FedAvg-WS on both splits: the gap is no transient of the start",
        "a clear mean lead over the data sets run, on each split; fails if a column is clearly the other way",
        _all_leads,
    ),
    *(_lead(*column, "fedavg-ws", "fedavg") for column in COLUMNS),
    _lead(*TEXT, "feduca", "aaggff"),
    from_runs(
        "Appendix, text",
        "AAggFF-S (there: AggFL) is the strongest baseline on 20 Newsgroups",
        "it has the highest mean; fails if another is clearly ahead",
        _strongest,
    ),
    *(_lead("cifar10", split, "incfl", "fedavg") for split in paper.SPLITS),
    _lead("cifar100", "1.0,1.0", "incfl", "fedavg"),
    *(_lead("fmnist", split, "fedavg", "incfl") for split in paper.SPLITS),
    _lead("fmnist", "1.0,1.0", "aaggff", "fedavg"),
    *(_order(*column) for column in [*COLUMNS, TEXT]),
    *(_easier(data, "feduca") for data in ("cifar10", "cifar100")),
    *(_easier(data, "incfl") for data in ("cifar10", "cifar100")),
    *(_spread(method) for method in NAMES),
]

CAUSES = [
    from_runs(
        "Abstract; Section 4",
        "clients that leave degrade the global model",
        "FedAvg under Eq. 1 is clearly below everybody forced in, mean over the columns run; fails if one clearly is"
        " the other way",
        _attrition,
    ),
    from_runs(
        "Section 4, results",
        "the collapse feeds itself: with fewer updates the next global model is worse still (CIFAR-10)",
        "FedAvg, FedProx and AAggFF-S clearly lose more than a point from rounds 2-6 to the last ten (errors over rounds)",
        _worsens,
    ),
    from_runs(
        "Abstract; Section 4",
        "a better model is the consequence of higher participation",
        "accuracy follows participation over the six methods: rank correlation at least .8 in every column (in direction: .5);"
        " fails if it is negative, or if as many clients go with a clearly other accuracy",
        _follows,
    ),
    from_runs(
        "Section 4, baselines",
        "the choice of aggregation weights is what makes FedUCA's model better",
        "FedUCA is clearly ahead of constant uniform weights when both are judged by its rule, in every column run",
        _beside_uniform,
    ),
    from_runs(
        "Section 4, baselines",
        "FedUCA leads with every method given the same memory of stale updates (CIFAR-10)",
        "clearly ahead of the best baseline, all with memory `update`",
        _same_memory,
    ),
    from_runs(
        "Section 3.4",
        "keeping stale updates instead of renormalising over those present is critical for participation and the model",
        "both clearly higher with memory than without, same study and seeds; fails if one is clearly lower",
        _memory,
    ),
    from_runs(
        "Appendix, implementation",
        "the last ten rounds show a steady state (FedUCA)",
        "their mean within a point, or the error over rounds, of that of the twenty before, in every column run",
        _steady,
    ),
]

LEVELS = [
    _level(data, split, method)
    for data, split in [*COLUMNS, TEXT]
    for method in NAMES
    if (data, split, method) in paper.ACCURACY
]
