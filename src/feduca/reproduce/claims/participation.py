"""What the paper says about who participates: levels per method, collapse, and whether the weights are what keeps clients."""

from __future__ import annotations

from collections.abc import Iterable

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    BASELINES,
    CLOSE_SHARE,
    COLUMNS,
    DATA,
    FAILS,
    HOLDS,
    NAMES,
    ONE_SEED,
    TEXT,
    UNDECIDED,
    Cell,
    Claim,
    Difference,
    Figure,
    Missing,
    Summaries,
    Verdict,
    below,
    block,
    caveats,
    cells,
    change,
    columns,
    curve,
    difference,
    entry,
    every,
    exact,
    find,
    from_runs,
    level,
    near,
    need,
    pct,
    place,
    positive,
    proved,
    rivals,
    share,
    share_level,
    shares,
    study,
    table,
    unknown,
    where,
)
from feduca.reproduce.summaries import settings_text
from feduca.reproduce.tables import known

COLLAPSED = ("fedavg", "fedprox", "aaggff")
RULES = {"Eq. 1": "accuracy", "Eq. 2": "utility"}  # as a summary names them


def _beside(summaries: Summaries, data: str, split: str) -> str:
    control = find(summaries, study(data), data=data, split=split, method="random")
    return "" if control is None else f"; random weights under the same rule keep {pct(share(control))}"


def _spread(cell: Cell) -> str:
    """Participation with its standard deviation over seeds, where that is known."""
    ours = shares(cell)
    return pct(ours.mean) + ("" if ours.std is None else f" (± {100 * ours.std:.1f})")


def _low(data: str, split: str, method: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        ours = difference(shares(cell), exact(paper.COLLAPSED))
        words = f"ours {pct(share(cell))} ± {100 * ours.error:.1f}{unknown(cell)}"
        return Verdict(below(shares(cell), paper.COLLAPSED), words)

    text = f"{NAMES[method]} keeps fewer than 12 % of the clients on {DATA[data]} ({split})"
    return from_runs("Section 4, results", text, "clearly under 12 %", judge)


def _level(data: str, split: str, method: str, section: str) -> Claim:
    theirs = paper.PARTICIPATION[data, split, method]

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        beside = _beside(summaries, data, split) if method == "feduca" else ""
        return Verdict(share_level(cell, theirs), f"ours {_spread(cell)}{beside}{unknown(cell)}")

    text = f"{NAMES[method]} keeps {pct(theirs)} of the clients on {place(data, split)}"
    return from_runs(section, text, "the paper's figure", judge)


def _range(data: str, split: str) -> Claim:
    low, high = paper.FEDUCA_PARTICIPATION

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, "feduca")
        nearest = exact(min(max(share(cell), low), high))
        word = level(difference(shares(cell), nearest), CLOSE_SHARE)
        return Verdict(word, f"ours {_spread(cell)}{_beside(summaries, data, split)}{unknown(cell)}")

    text = f"FedUCA keeps 51 to 54 % of the clients on {DATA[data]} ({split})"
    return from_runs("Section 4, results", text, "within five points of that range", judge)


def _keeps_most(ours: Cell, others: Iterable[Cell]) -> Verdict:
    """Clearly more than the best of the others."""
    rival = max(others, key=share)
    lead = difference(shares(ours), shares(rival))
    against = f"{_spread(ours)} against {_spread(rival)} ({NAMES[rival['method']]})"
    return Verdict(positive(lead), f"{change(lead)}: {against}{unknown(ours, rival)}")


def _more(data: str, split: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        feduca = table(summaries, data, split, "feduca")
        return _keeps_most(feduca, (table(summaries, data, split, method) for method in rivals(data)))

    text = f"FedUCA keeps more clients than any baseline on {place(data, split)}"
    section = "Section 4, results" if data != "20news" else "Appendix, text"
    return from_runs(section, text, "clearly above the best", judge)


def _mitigates(split: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        incfl = table(summaries, "cifar10", split, "incfl")
        return _keeps_most(incfl, (table(summaries, "cifar10", split, method) for method in COLLAPSED))

    text = f"IncFL keeps more clients than FedAvg, FedProx and AAggFF-S on CIFAR-10 ({split})"
    return from_runs("Section 4, results", text, "clearly above the best of the three", judge)


def _plateau(summaries: Summaries) -> Verdict:
    rounds = curve(table(summaries, "cifar10", "1.0,1.0", "incfl"), "participation_by_round")
    middle, last = block(rounds, 41, 70).mean, block(rounds, 71, 100).mean
    return Verdict(HOLDS if abs(last - middle) <= 0.05 else FAILS, f"rounds 41-70 {pct(middle)}, 71-100 {pct(last)}")


def _collapse(method: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, "cifar10", "0.5,1.0", method)
        rounds = curve(cell, "participation_by_round")
        early, late = block(rounds, 2, 10).mean, block(rounds, 71, 100).mean
        risen = Difference(
            late - early, ONE_SEED
        )  # a summary's curve is the mean over seeds: their spread is not known
        back = positive(risen) == HOLDS or late > paper.COLLAPSED + ONE_SEED
        word = FAILS if back else HOLDS if late < paper.COLLAPSED else UNDECIDED
        return Verdict(word, f"rounds 2-10 {pct(early)}, 71-100 {pct(late)}{caveats(cell)}")

    text = f"once clients reject the first averages, {NAMES[method]} does not get them back (CIFAR-10)"
    criterion = "under 12 % in the last thirty rounds; fails if clearly above that, or above rounds 2-10"
    return from_runs("Section 4, results", text, criterion, judge)


def _sustained(summaries: Summaries) -> Verdict:
    falls = {}
    for name, (feduca,) in columns(summaries, "feduca"):
        rounds = curve(feduca, "participation_by_round")
        falls[name] = block(rounds, 71, 100).mean - block(rounds, 11, 40).mean
    listed = ", ".join(f"{name} {100 * fall:+.1f}" for name, fall in falls.items())
    word = HOLDS if all(fall >= -0.05 for fall in falls.values()) else FAILS
    return Verdict(word, f"rounds 71-100 minus 11-40, in points: {listed}")


def _least(cell: Cell) -> int | None:
    """The fewest participants of any round of any seed; None where the summary has only the mean over several seeds."""
    if cell.get("joined_least") is not None:
        return cell["joined_least"]
    rounds = known(cell.get("participation_by_round"))
    return round(min(rounds) * cell["clients"]) if len(cell["seeds"]) == 1 and rounds and cell.get("clients") else None


def _never_empty(found: Iterable[tuple[str, Cell]]) -> Verdict:
    """Over all cells that say how many participants their emptiest round had."""
    told = {name: (least, cell) for name, cell in found if (least := _least(cell)) is not None}
    if not told:
        raise Missing("runs that say how few participants a round had (joined_least)")
    empty = {name: cell for name, (least, cell) in told.items() if least == 0}
    if not empty:
        return Verdict(
            HOLDS, f"at least {min(least for least, _ in told.values())} in every round of {len(told)} cells"
        )
    listed = ", ".join(f"{name}{_how_often(cell)}" for name, cell in empty.items())
    return Verdict(FAILS, f"rounds with nobody in {len(empty)} of {len(told)} cells: {listed}")


def _how_often(cell: Cell) -> str:
    rounds = known(cell.get("participation_by_round"))
    alone = len(cell["seeds"]) == 1 and rounds
    return f" ({sum(value == 0 for value in rounds)} of {len(rounds)})" if alone else ""


def _truthful(summaries: Summaries) -> Verdict:
    found = [c for c in cells(summaries, "table1") if c["method"] == "feduca"] + cells(summaries, "strategies")
    named = [(where(cell), cell) for cell in found]
    return _never_empty(named + [(f"delta = {where(cell)}", cell) for cell in cells(summaries, "delta")])


def _inflated(summaries: Summaries) -> Verdict:
    found = [(where(cell), cell) for cell in cells(summaries, "misreporting")]
    return _never_empty((f"+{name} %", cell) for name, cell in found if name != "0")


def _single_vector(summaries: Summaries) -> Verdict:
    """Uniform weights and local-baseline thresholds: the cell of `feduca compare cross` in which only these meet."""
    wanted = {"method": "FedAvg (uniform)", "offer": "global", "rule": "Eq. 2, local baseline"}
    rows = (summaries.get("cross") or {}).get("rows", ())
    row = next((row for row in rows if row.get("axes") == wanted), None)
    if row is None:
        raise Missing("row of cross: uniform weights, Eq. 2, local baseline")
    kept = Figure(row["participation"], None, len(row["seeds"]))
    lost = difference(exact(1.0), kept)
    (seeds,) = settings_text({"seeds": row["seeds"]})
    words = f"uniform weights keep {pct(kept.mean)} of the silos; `feduca compare cross --set '{seeds}'`"
    return Verdict(HOLDS if lost.clear else FAILS, words)


def _weights_keep(summaries: Summaries) -> Verdict:
    words, listed = [], []
    for name, (feduca, uniform, random) in columns(summaries, "feduca", "uniform", "random"):
        row = [cell for cell in (feduca, uniform, random, near(summaries, feduca)) if cell is not None]
        words += [positive(difference(shares(feduca), shares(other))) for other in row[1:]]
        listed.append(f"{name} {' / '.join(f'{100 * share(cell):.0f}' for cell in row)} %")
    titles = "FedUCA / constant uniform / random weights (/ random ones about as near to uniform as FedUCA's)"
    return Verdict(every(words), f"{titles}: {', '.join(listed)}")


def _rational(summaries: Summaries) -> Verdict:
    words, listed = [], []
    for name, pair in columns(summaries, "feduca", "uniform"):
        ours, theirs = (Figure(entry(cell, "eq1_share"), None, len(cell["seeds"])) for cell in pair)
        words.append(positive(difference(ours, theirs)))
        listed.append(f"{name} {100 * ours.mean:.0f} against {100 * theirs.mean:.0f} %")
    return Verdict(every(words), f"Eq. 1 would hold, FedUCA against constant uniform weights: {', '.join(listed)}")


def _same_rule(data: str, rule: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        feduca, *others = (
            need(summaries, "rules", data=data, rule=RULES[rule], method=method) for method in ("feduca", *BASELINES)
        )
        return _keeps_most(feduca, others)

    text = f"with identical participation dynamics ({rule} for everybody) FedUCA keeps the most clients on {DATA[data]}"
    return from_runs("Section 4, baselines", text, "clearly above the best baseline", judge)


CLAIMS = [
    *(_low(data, split, m) for data in ("cifar10", "cifar100") for split in paper.SPLITS for m in COLLAPSED),
    _level("cifar10", "1.0,1.0", "incfl", "Section 4, results"),
    from_runs(
        "Section 4, results",
        "IncFL's participation plateaus on CIFAR-10 (1.0,1.0)",
        "rounds 71-100 within five points of 41-70",
        _plateau,
    ),
    *(_mitigates(split) for split in paper.SPLITS),
    *(_collapse(method) for method in COLLAPSED),
    *(_range(*column) for column in COLUMNS),
    *(_more(*column) for column in [*COLUMNS, TEXT]),
    *(_level(*TEXT, method, "Appendix, table on text") for method in NAMES if (*TEXT, method) in paper.PARTICIPATION),
    from_runs(
        "Section 4, results",
        "FedUCA sustains its participation",
        "rounds 71-100 at most five points below rounds 11-40, in every column run",
        _sustained,
    ),
    from_runs(
        "Section 3.3, fallback",
        "no round of FedUCA is without participants (truthful silos)",
        "at least one in every round of every seed, in every cell of table1, delta and strategies that says so",
        _truthful,
    ),
    from_runs(
        "Section 3.3, fallback",
        "the fallback prevents rounds without participants when silos ask for more",
        "the same in every cell of misreporting with inflated thresholds",
        _inflated,
    ),
    proved(
        "Sections 1 and 3.3",
        "a single fixed weight vector often cannot meet all clients' thresholds, as the algorithm sets them",
        FAILS,
        "unchanged weights meet every threshold gamma_k = u_k(alpha_k) (docs/theory.md; `uniform` keeps everybody)",
    ),
    from_runs(
        "Sections 1 and 3.3",
        "a single fixed weight vector often cannot meet all clients' thresholds, if these are their local baselines",
        "uniform weights under Eq. 2 with local baselines as thresholds keep clearly fewer than all",
        _single_vector,
    ),
    from_runs(
        "Sections 1 and 4",
        "optimising the weights is what keeps clients in",
        "FedUCA keeps clearly more than constant uniform and than random weights under the same rule, in every column run",
        _weights_keep,
    ),
    from_runs(
        "Sections 1 and 4",
        "FedUCA's weights satisfy the clients' own test, that the shared model beats theirs (Eq. 1)",
        "Eq. 1 would hold clearly more often than with constant uniform weights, in every column run",
        _rational,
    ),
    *(_same_rule(data, rule) for data in ("fmnist", "cifar10") for rule in RULES),
]
