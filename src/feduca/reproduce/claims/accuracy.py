"""What the paper says about accuracy: levels, leads, orders, spreads over seeds, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

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
    Cell,
    Claim,
    Missing,
    Summaries,
    Verdict,
    accuracy,
    block,
    cells,
    columns,
    correlation,
    curve,
    find,
    from_runs,
    gain,
    need,
    noise,
    pct,
    place,
    points,
    printed,
    rivals,
    seeds,
    share,
    share_noise,
    study,
    table,
    tolerance,
)

LEAD = "clear, and the paper's size; in direction: clear"


def _where(data: str) -> str:
    return "Table 1" if data != "20news" else "Appendix, table on text"


def _ahead(ours: Cell, others: Iterable[Cell], beside: str = "") -> Verdict:
    """Clearly more accurate than the best of the others."""
    rival = max(others, key=lambda cell: accuracy(cell).mean)
    mine, best = accuracy(ours), accuracy(rival)
    word = HOLDS if mine.mean - best.mean > noise(mine, best) else FAILS
    return Verdict(
        word, f"{pct(mine.mean)} against {pct(best.mean)} ({NAMES[rival['method']]}){beside}{seeds(ours, rival)}"
    )


def _leads(summaries: Summaries, ahead: str, behind: str) -> dict[str, tuple[float, float]]:
    """By column of Table 1: how much more accurate one method is than another, and what would be clear."""
    found = {}
    for name, pair in columns(summaries, ahead, behind):
        ours, theirs = (accuracy(cell) for cell in pair)
        found[name] = (ours.mean - theirs.mean, noise(ours, theirs))
    return found


def _everywhere(leads: Mapping[str, tuple[float, float]]) -> str:
    return HOLDS if all(lead > clear for lead, clear in leads.values()) else FAILS


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
    return from_runs("Table 1", text, LEAD, judge)


def _level(data: str, split: str, method: str) -> Claim:
    theirs = printed(data, split, method)

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        ours = accuracy(cell)
        spread = "" if ours.std is None else f" (± {100 * ours.std:.1f})"
        word = HOLDS if abs(ours.mean - theirs.mean) <= tolerance(ours, theirs) else FAILS
        return Verdict(word, f"ours {pct(ours.mean)}{spread}, {points(ours.mean - theirs.mean)}{seeds(cell)}")

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
        if figures[high].mean - figures[low].mean > noise(figures[high], figures[low])
    ]

    def judge(summaries: Summaries) -> Verdict:
        ours = {method: accuracy(table(summaries, data, split, method)) for method in figures}
        apart = {(a, b): (ours[a].mean - ours[b].mean, noise(ours[a], ours[b])) for a, b in pairs}
        same = sum(difference > clear for difference, clear in apart.values())
        turned = [f"{NAMES[b]} over {NAMES[a]}" for (a, b), (difference, clear) in apart.items() if difference < -clear]
        word = HOLDS if same == len(pairs) else DIRECTION if not turned and same > len(pairs) / 2 else FAILS
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
            (cell["accuracy_std"], printed(*column, method).std or 0.0)
            for column, cell in zip(COLUMNS, found)
            if cell is not None and cell.get("accuracy_std") is not None
        ]
        if len(both) < 2:
            raise Missing(f"runs of {NAMES[method]} with several seeds in two columns of table1")
        ours, theirs = (pooled(list(side)) for side in zip(*both))
        words = f"over {len(both)} columns: ours {100 * ours:.1f} points, the paper's {100 * theirs:.1f}"
        return Verdict(HOLDS if ours <= 2 * theirs else FAILS, words)

    largest = 100 * max(printed(*column, method).std or 0.0 for column in COLUMNS)
    text = f"{NAMES[method]} varies little over three seeds (its largest standard deviation: {largest:.2f} points)"
    return from_runs("Table 1", text, "root mean square of the spreads at most twice the paper's", judge)


def _all_leads(summaries: Summaries) -> Verdict:
    found = _leads(summaries, "feduca", "fedavg-ws")
    if not all(any(split in name for name in found) for split in paper.SPLITS):
        raise Missing("columns of table1 for both splits")
    listed = ", ".join(f"{name} {100 * lead:+.1f}" for name, (lead, _) in found.items())
    return Verdict(_everywhere(found), f"leads in points: {listed}")


def _attrition(summaries: Summaries) -> Verdict:
    lost = _leads(summaries, "forced", "fedavg")
    listed = ", ".join(f"{name} {100 * loss:.1f}" for name, (loss, _) in lost.items())
    return Verdict(_everywhere(lost), f"points that FedAvg loses against everybody forced in: {listed}")


def _worsens(summaries: Summaries) -> Verdict:
    changes = {}
    for method in ("fedavg", "fedprox", "aaggff"):
        rounds = curve(table(summaries, "cifar10", "0.5,1.0", method), "accuracy_by_round")
        changes[method] = block(rounds, 91, 100).mean - block(rounds, 2, 6).mean
    listed = ", ".join(f"{NAMES[method]} {100 * change:+.1f}" for method, change in changes.items())
    word = HOLDS if all(change < -0.01 for change in changes.values()) else FAILS
    why = f"change from rounds 2-6 to the last ten, in points: {listed}"
    return Verdict(word, why + ("" if word == HOLDS else "; the model stops where it was left"))


def _follows(summaries: Summaries) -> Verdict:
    found = {}
    for name, row in columns(summaries, *NAMES):
        found[name] = correlation([share(cell) for cell in row], [accuracy(cell).mean for cell in row])
    least = min(found.values())
    listed = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    word = HOLDS if least >= 0.8 else DIRECTION if least >= 0.5 else FAILS
    return Verdict(word, f"rank correlation of the six methods: {listed}{_random(summaries)}")


def _random(summaries: Summaries) -> str:
    """What random weights under FedUCA's rule say about participation as the cause."""
    feduca, control = (
        find(summaries, "table1", data="cifar10", split="0.5,1.0", method=method) for method in ("feduca", "random")
    )
    if feduca is None or control is None:
        return ""
    difference = points(accuracy(control).mean - accuracy(feduca).mean)
    return (
        f"; random weights keep {pct(share(control))} on CIFAR-10 (FedUCA {pct(share(feduca))}) and learn {difference}"
    )


def _isolated(summaries: Summaries) -> Verdict:
    """FedUCA beside constant uniform weights under FedUCA's own rule: only the weights differ."""
    found = _leads(summaries, "feduca", "uniform")
    listed = ", ".join(f"{name} {100 * lead:+.1f}" for name, (lead, _) in found.items())
    words = "FedUCA minus constant uniform weights under the same rule (Eq. 2), in points"
    return Verdict(_everywhere(found), f"{words}: {listed}")


def _same_memory(summaries: Summaries) -> Verdict:
    feduca, *others = (need(summaries, "schedules", method=method) for method in ("feduca", *BASELINES))
    return _ahead(feduca, others)


def _memory(summaries: Summaries) -> Verdict:
    def is_feduca(cell: Cell, memory: str) -> bool:
        return cell.get("mechanism", cell.get("method")) == "feduca" and cell.get("memory") == memory

    without = [c for study in ("schedules", "table1") for c in cells(summaries, study) if is_feduca(c, "none")]
    if not without:
        raise Missing("run of FedUCA without memory (memory.kind = none)")
    cell = without[0]
    kept = table(summaries, cell["data"], cell["split"], "feduca")
    fewer, less = share(kept) - share(cell), accuracy(kept).mean - accuracy(cell).mean
    clear, many = noise(accuracy(kept), accuracy(cell)), share_noise(kept, cell)
    word = HOLDS if fewer > many and less > clear else DIRECTION if fewer > many or less > clear else FAILS
    return Verdict(word, f"with memory: participation {points(fewer)}, accuracy {points(less)}{seeds(kept, cell)}")


def _steady(summaries: Summaries) -> Verdict:
    moves = {}
    for name, (feduca,) in columns(summaries, "feduca"):
        rounds = curve(feduca, "accuracy_by_round")
        last, before = block(rounds, 91, 100), block(rounds, 71, 90)
        moves[name] = (last.mean - before.mean, noise(last, before))
    listed = ", ".join(f"{name} {100 * move:+.1f}" for name, (move, _) in moves.items())
    word = HOLDS if all(abs(move) <= clear for move, clear in moves.values()) else FAILS
    return Verdict(word, f"last ten rounds minus the twenty before, in points: {listed}")


def _strongest(summaries: Summaries) -> Verdict:
    ours = {method: accuracy(table(summaries, *TEXT, method)) for method in rivals("20news")}
    best = max(ours, key=lambda method: ours[method].mean)
    ahead = ours[best].mean - ours["aaggff"].mean
    word = HOLDS if best == "aaggff" else DIRECTION if ahead <= noise(ours[best], ours["aaggff"]) else FAILS
    return Verdict(word, f"ours: {', '.join(f'{NAMES[m]} {pct(figure.mean)}' for m, figure in ours.items())}")


LEADS = [
    *(_best(*column) for column in [*COLUMNS, TEXT]),
    *(_lead(*column, "feduca", "fedavg-ws", "Section 4, warm start") for column in COLUMNS),
    from_runs(
        "Section 4, warm start",
        "FedUCA's lead over FedAvg-WS does not depend on how much silos differ: the gap is no transient of the start",
        "a clear lead in every column run, both splits among them",
        _all_leads,
    ),
    *(_lead(*column, "fedavg-ws", "fedavg") for column in COLUMNS),
    _lead(*TEXT, "feduca", "aaggff"),
    from_runs(
        "Appendix, text",
        "AAggFF-S (there: AggFL) is the strongest baseline on 20 Newsgroups",
        "it has the highest mean; in direction: nobody is clearly ahead of it",
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
        "FedAvg under Eq. 1 is clearly below everybody forced in, in every column run",
        _attrition,
    ),
    from_runs(
        "Section 4, results",
        "the collapse feeds itself: with fewer updates the next global model is worse still (CIFAR-10)",
        "FedAvg, FedProx and AAggFF-S lose more than a point from rounds 2-6 to the last ten",
        _worsens,
    ),
    from_runs(
        "Abstract; Section 4",
        "a better model is the consequence of higher participation",
        "over the six methods accuracy follows participation: rank correlation at least .8 in every column; in direction: .5",
        _follows,
    ),
    from_runs(
        "Section 4, baselines",
        "the comparison isolates what the choice of aggregation weights does",
        "FedUCA is clearly ahead of constant uniform weights when both are judged by its rule, in every column run",
        _isolated,
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
        "both clearly higher with memory; in direction: one of them",
        _memory,
    ),
    from_runs(
        "Appendix, implementation",
        "the last ten rounds show a steady state (FedUCA)",
        "their mean within a point, or two standard errors over rounds, of the twenty before, in every column run",
        _steady,
    ),
]

LEVELS = [
    _level(data, split, method)
    for data, split in [*COLUMNS, TEXT]
    for method in NAMES
    if (data, split, method) in paper.ACCURACY
]
