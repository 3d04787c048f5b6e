"""What the paper says about who participates over the rounds, in every round, and whether the weights are what keeps clients."""

from __future__ import annotations

from collections.abc import Mapping

from feduca.studies.summary_file import settings_text
from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import FAILS, HOLDS, UNDECIDED, Difference, Figure
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.claims.look import pct
from paper.tables import Cell, known


def plateau(summaries: Summaries) -> Seen:
    cell = look.table(summaries, "cifar10", "1.0,1.0", "incfl")
    middle, last = (block.mean for block in look.blocks(cell, "participation_by_round", (41, 70), (71, 100)))
    return Seen(100 * abs(last - middle), behind=f": rounds 41-70 {pct(middle)}, 71-100 {pct(last)}")


def never_back(summaries: Summaries, method: str) -> Verdict:
    cell = look.table(summaries, "cifar10", "0.5,1.0", method)
    early, late = (block.mean for block in look.blocks(cell, "participation_by_round", (2, 10), (71, 100)))
    # A summary's curve is the mean over seeds: their spread is not known.
    risen = compare.positive(Difference(late - early, compare.ONE_SEED)) == HOLDS
    back = risen or late > paper.COLLAPSED + compare.ONE_SEED
    word = FAILS if back else HOLDS if late < paper.COLLAPSED else UNDECIDED
    return Verdict(word, f"rounds 2-10 {pct(early)}, 71-100 {pct(late)}{caveats(cell)}")


def sustained(summaries: Summaries) -> dict[str, float]:
    falls = {}
    for name, (feduca,) in look.columns(summaries, "feduca"):
        last, early = look.blocks(feduca, "participation_by_round", (71, 100), (11, 40))
        falls[name] = 100 * (last.mean - early.mean)
    return falls


def _least(cell: Cell) -> int | None:
    """The fewest participants of any round of any seed; None where the summary has only the mean over several seeds."""
    if cell.get("joined_least") is not None:
        return cell["joined_least"]
    rounds = known(cell.get("participation_by_round"))
    return round(min(rounds) * cell["clients"]) if len(cell["seeds"]) == 1 and rounds and cell.get("clients") else None


def _fewest(cells: Mapping[str, Cell]) -> Verdict:
    """Over all cells that say how many participants their emptiest round had."""
    told = {name: least for name, cell in cells.items() if (least := _least(cell)) is not None}
    if not told:
        raise Missing("runs that say how few participants a round had (joined_least)")
    empty = [f"{name}{_how_often(cells[name])}" for name, least in told.items() if least == 0]
    if not empty:
        return Verdict(HOLDS, f"at least {min(told.values())} in every round of {len(told)} cells")
    return Verdict(FAILS, f"rounds with nobody in {len(empty)} of {len(told)} cells: {', '.join(empty)}")


def _how_often(cell: Cell) -> str:
    rounds = known(cell.get("participation_by_round"))
    alone = len(cell["seeds"]) == 1 and rounds
    return f" ({sum(value == 0 for value in rounds)} of {len(rounds)})" if alone else ""


def never_empty(summaries: Summaries) -> Verdict:
    ours = [cell for cell in look.cells(summaries, "table1") if cell["method"] == "feduca"]
    cells = {look.where(cell): cell for cell in [*ours, *look.cells(summaries, "strategies")]}
    return _fewest(cells | {f"delta = {look.where(cell)}": cell for cell in look.cells(summaries, "delta")})


def never_empty_inflated(summaries: Summaries) -> Verdict:
    cells = {look.where(cell): cell for cell in look.cells(summaries, "misreporting")}
    return _fewest({f"+{name} %": cell for name, cell in cells.items() if name != "0"})


def single_vector(summaries: Summaries) -> Verdict:
    """Uniform weights and local-baseline thresholds: the cell of `feduca compare cross` in which only these meet."""
    wanted = {"method": "FedAvg (uniform)", "offer": "global", "rule": "Eq. 2, local baseline"}
    rows = (summaries.get("cross") or {}).get("rows", ())
    row = next((row for row in rows if row.get("axes") == wanted), None)
    if row is None:
        raise Missing("row of cross: uniform weights, Eq. 2, local baseline")
    lost = compare.difference(compare.exact(1.0), Figure(row["participation"], None, len(row["seeds"])))
    (seeds,) = settings_text({"seeds": row["seeds"]})
    said = f"uniform weights keep {pct(row['participation'])} of the silos; `feduca compare cross --set '{seeds}'`"
    return Verdict(HOLDS if lost.clear else FAILS, said)


def weights_keep(summaries: Summaries) -> Verdict:
    words, listed = [], []
    for name, (feduca, *controls) in look.columns(summaries, "feduca", "uniform", "random"):
        row = [cell for cell in (*controls, look.near(summaries, feduca)) if cell is not None]
        words += [compare.positive(compare.difference(look.shares(feduca), look.shares(other))) for other in row]
        listed.append(f"{name} {' / '.join(f'{100 * look.share(cell):.0f}' for cell in (feduca, *row))} %")
    titles = "FedUCA / constant uniform / random weights (/ random ones about as near to uniform as FedUCA's)"
    return Verdict(compare.every(words), f"{titles}: {', '.join(listed)}")
