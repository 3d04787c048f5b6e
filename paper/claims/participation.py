"""What the paper says about who participates: levels per method, collapse, and whether the weights are what keeps clients."""

from __future__ import annotations

from collections.abc import Iterable

from feduca.studies.summary_file import settings_text
from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, UNDECIDED, Difference, Figure
from paper.claims.judging import Missing, Seen, Summaries, Verdict, said_of
from paper.claims.look import pct
from paper.tables import Cell, known

COLLAPSED = ("fedavg", "fedprox", "aaggff")


def plateau(summaries: Summaries) -> Seen:
    rounds = look.curve(look.table("cifar10", "1.0,1.0", "incfl")(summaries), "participation_by_round")
    middle, last = look.block(rounds, 41, 70).mean, look.block(rounds, 71, 100).mean
    said = f" points apart: rounds 41-70 {pct(middle)}, 71-100 {pct(last)}"
    return Seen({"": 100 * abs(last - middle)}, beside=said)


def never_back(summaries: Summaries, method: str) -> Verdict:
    cell = look.table("cifar10", "0.5,1.0", method)(summaries)
    rounds = look.curve(cell, "participation_by_round")
    early, late = look.block(rounds, 2, 10).mean, look.block(rounds, 71, 100).mean
    # A summary's curve is the mean over seeds: their spread is not known.
    back = (
        compare.positive(Difference(late - early, compare.ONE_SEED)) == HOLDS
        or late > paper.COLLAPSED + compare.ONE_SEED
    )
    word = FAILS if back else HOLDS if late < paper.COLLAPSED else UNDECIDED
    return Verdict(word, f"rounds 2-10 {pct(early)}, 71-100 {pct(late)}{said_of(cell)}")


def sustained(summaries: Summaries) -> Seen:
    falls = {}
    for name, (feduca,) in look.columns(summaries, "feduca"):
        rounds = look.curve(feduca, "participation_by_round")
        falls[name] = 100 * (look.block(rounds, 71, 100).mean - look.block(rounds, 11, 40).mean)
    return Seen(falls, about="rounds 71-100 minus 11-40, in points: ")


def _least(cell: Cell) -> int | None:
    """The fewest participants of any round of any seed; None where the summary has only the mean over several seeds."""
    if cell.get("joined_least") is not None:
        return cell["joined_least"]
    rounds = known(cell.get("participation_by_round"))
    return round(min(rounds) * cell["clients"]) if len(cell["seeds"]) == 1 and rounds and cell.get("clients") else None


def _fewest(found: Iterable[tuple[str, Cell]]) -> Verdict:
    """Over all cells that say how many participants their emptiest round had."""
    told = {name: (least, cell) for name, cell in found if (least := _least(cell)) is not None}
    if not told:
        raise Missing("runs that say how few participants a round had (joined_least)")
    empty = ", ".join(f"{name}{_how_often(cell)}" for name, (least, cell) in told.items() if least == 0)
    if not empty:
        return Verdict(
            HOLDS, f"at least {min(least for least, _ in told.values())} in every round of {len(told)} cells"
        )
    count = sum(least == 0 for least, _ in told.values())
    return Verdict(FAILS, f"rounds with nobody in {count} of {len(told)} cells: {empty}")


def _how_often(cell: Cell) -> str:
    rounds = known(cell.get("participation_by_round"))
    alone = len(cell["seeds"]) == 1 and rounds
    return f" ({sum(value == 0 for value in rounds)} of {len(rounds)})" if alone else ""


def never_empty(summaries: Summaries) -> Verdict:
    found = [c for c in look.cells(summaries, "table1") if c["method"] == "feduca"] + look.cells(
        summaries, "strategies"
    )
    named = [(look.where(cell), cell) for cell in found]
    return _fewest(named + [(f"delta = {look.where(cell)}", cell) for cell in look.cells(summaries, "delta")])


def never_empty_inflated(summaries: Summaries) -> Verdict:
    found = [(look.where(cell), cell) for cell in look.cells(summaries, "misreporting")]
    return _fewest((f"+{name} %", cell) for name, cell in found if name != "0")


def single_vector(summaries: Summaries) -> Verdict:
    """Uniform weights and local-baseline thresholds: the cell of `feduca compare cross` in which only these meet."""
    wanted = {"method": "FedAvg (uniform)", "offer": "global", "rule": "Eq. 2, local baseline"}
    rows = (summaries.get("cross") or {}).get("rows", ())
    row = next((row for row in rows if row.get("axes") == wanted), None)
    if row is None:
        raise Missing("row of cross: uniform weights, Eq. 2, local baseline")
    lost = compare.difference(compare.exact(1.0), Figure(row["participation"], None, len(row["seeds"])))
    (seeds,) = settings_text({"seeds": row["seeds"]})
    words = f"uniform weights keep {pct(row['participation'])} of the silos; `feduca compare cross --set '{seeds}'`"
    return Verdict(HOLDS if lost.clear else FAILS, words)


def weights_keep(summaries: Summaries) -> Verdict:
    words, listed = [], []
    for name, (feduca, uniform, random) in look.columns(summaries, "feduca", "uniform", "random"):
        row = [cell for cell in (feduca, uniform, random, look.near(summaries, feduca)) if cell is not None]
        words += [compare.positive(compare.difference(look.shares(feduca), look.shares(other))) for other in row[1:]]
        listed.append(f"{name} {' / '.join(f'{100 * look.share(cell):.0f}' for cell in row)} %")
    titles = "FedUCA / constant uniform / random weights (/ random ones about as near to uniform as FedUCA's)"
    return Verdict(compare.every(words), f"{titles}: {', '.join(listed)}")


def own_test(summaries: Summaries) -> Seen:
    def holds(cell: Cell) -> Figure:
        return Figure(look.entry(cell, "eq1_share"), None, len(cell["seeds"]))

    found = {n: compare.difference(holds(a), holds(b)) for n, (a, b) in look.columns(summaries, "feduca", "uniform")}
    return Seen(found, about="points by which Eq. 1 would hold more often than with constant uniform weights: ")
