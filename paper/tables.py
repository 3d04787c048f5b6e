"""The tables of docs/paper: every study has its own columns, ours beside the paper's where the paper has a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from feduca.core.records import mean
from feduca.core.wording import NOTHING, number, percent, points
from paper import printed as paper

Cell = Mapping[str, Any]
Cells = Sequence[Cell]
Column = tuple[str, Callable[[Cell], str]]  # a title and what stands under it
LATE = 30  # rounds at either end whose discrepancies are compared


def table(name: str, cells: Cells) -> str:
    """The table of a study; columns in which nothing stands are left out."""
    if name == "participation":
        return _participation(cells)
    if name == "rules":
        return _rules(cells)
    axes = axes_of(cells)
    columns = COLUMNS.get(name, _OURS_AND_THEIRS)
    if name == "cost":
        columns = _cost(cells)
    if len({len(cell["seeds"]) for cell in cells}) == 1:  # said once, under the table
        columns = tuple(column for column in columns if column is not _SEEDS)
    return markdown(
        [*axes, *(title for title, _ in columns)],
        [[*(label(cell, a) for a in axes), *(show(cell) for _, show in columns)] for cell in cells],
        len(axes),
    )


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table whose first `words` columns hold words and the others numbers, without columns of nothing."""
    kept = [i for i in range(len(titles)) if i < words or any(row[i] != NOTHING for row in rows)]
    lines = [[titles[i] for i in kept], *([row[i] for i in kept] for row in rows)]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    text.insert(1, "|" + "".join("---|" if i < words else "---:|" for i in kept))
    return "\n".join(text)


def axes_of(cells: Cells) -> list[str]:
    """What the cells of a study differ in; which part of it they belong to is said elsewhere."""
    return [axis for axis in dict.fromkeys(a for cell in cells for a in cell["labels"]) if axis != "study"]


def label(cell: Cell, axis: str) -> str:
    """Where a cell stands on an axis; data on which the model starts otherwise than the paper's say so."""
    found = cell["labels"].get(axis, "")
    start = paper.other_start(cell)
    return f"{found}, {start}" if axis == "data" and start else found


def known(values: Iterable[float | None] | None) -> list[float]:
    """What is defined of a curve, or of a row of figures."""
    return [value for value in values or () if value is not None]


def minus(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def theirs(cell: Cell) -> tuple[float | None, float | None, float | None]:
    """What the paper prints at a cell's place: accuracy, its spread, participation."""
    labels = cell["labels"]
    if "inflation" in labels:
        accuracy, share = paper.MISREPORTING.get(labels["inflation"], (None, None))
        return accuracy, None, share
    if "case" in labels:  # variations of cells that the paper has on other data
        return None, None, None
    if "delta" in labels:
        return None, None, paper.DELTA_PARTICIPATION.get(labels["delta"])
    if "n_s" in labels:  # the paper's table is about the schedule as printed
        known = paper.STRATEGIES.get((cell["data"], labels["n_s"])) if labels.get("schedule") == "lagged" else None
        return (known[0], None, known[1]) if known else (None, None, None)
    _, spread = paper.ACCURACY.get((cell["data"], cell["split"], cell["method"]), (None, None))
    return cell["paper_accuracy"], spread if cell["paper_accuracy"] is not None else None, cell["paper_participation"]


_ACCURACY: tuple[Column, ...] = (
    ("accuracy %", lambda c: percent(c["accuracy_mean"], c["accuracy_std"])),
    ("paper", lambda c: percent(*theirs(c)[:2])),
    ("difference", lambda c: points(minus(c["accuracy_mean"], theirs(c)[0]))),
)


def kept(cell: Cell) -> str:
    """Participation, with its spread over seeds where the summary holds every seed's."""
    by_seed = cell.get("participations") or ()
    return percent(cell["participation_mean"], statistics.stdev(by_seed) if len(by_seed) > 1 else None)


_PARTICIPATION: tuple[Column, ...] = (
    ("participation %", kept),
    ("paper", lambda c: percent(theirs(c)[2])),
    ("difference", lambda c: points(minus(c["participation_mean"], theirs(c)[2]))),
)
_HOLDS: Column = ("Eq. 1 holds %", lambda c: percent(c["eq1_share"]))
_SEEDS: Column = ("seeds", lambda c: str(len(c["seeds"])))
_OURS_AND_THEIRS: tuple[Column, ...] = (*_ACCURACY, *_PARTICIPATION, _HOLDS, _SEEDS)


def gap(cell: Cell, key: str) -> float | None:
    """Our sum of Jensen gaps in percent: `mean`, `top50` or `top25`."""
    return 100 * cell["jensen"][key] if cell["jensen"] else None


def their_gap(cell: Cell, key: str) -> float | None:
    printed = paper.JENSEN.get(cell["labels"]["delta"])
    return None if printed is None else printed[("mean", "top50", "top25").index(key)]


def _gap_columns(title: str, key: str) -> tuple[Column, ...]:
    return (title, lambda c: number(gap(c, key))), ("paper", lambda c: number(their_gap(c, key)))


def pointwise_bound(cell: Cell) -> float | None:
    """The paper's bound on the discrepancy, (n_s - 1)/N."""
    return (cell["n_s"] - 1) / cell["clients"] if cell.get("n_s") and cell.get("clients") else None


def _of_curve(choose: Callable[[list[float]], float | None]) -> Callable[[Cell], str]:
    def show(cell: Cell) -> str:
        curve = known(cell["discrepancy"])
        return number(choose(curve), 4) if curve else NOTHING

    return show


def _fits(key: str, show: Callable[[float | None], str]) -> Callable[[Cell], str]:
    return lambda cell: show((cell.get("fits") or {}).get(key))


COLUMNS: dict[str, tuple[Column, ...]] = {
    "table1": (*_ACCURACY, _PARTICIPATION[0], _HOLDS, _SEEDS),
    "delta": (*_PARTICIPATION, *_ACCURACY[:1], *_gap_columns("summed Jensen gap, %", "mean"), _SEEDS),
    "jensen": (
        *_gap_columns("mean", "mean"),
        *_gap_columns("top 50", "top50"),
        *_gap_columns("top 25", "top25"),
        _SEEDS,
    ),
    "concavity": (
        ("mean R^2", lambda c: number(c["r2"])),
        ("paper", lambda c: number(paper.R2.get(c["data"]))),
        ("difference", lambda c: number(minus(c["r2"], paper.R2.get(c["data"])), sign=True)),
        ("fits", _fits("fits", lambda v: NOTHING if v is None else f"{v:.0f}")),
        ("lower quartile", _fits("quarter", number)),
        ("median", _fits("median", number)),
        ("upper quartile", _fits("three_quarters", number)),
        ("above .8, %", _fits("above", percent)),
        ("not concave, %", _fits("straight", percent)),
        ("flat, %", _fits("flat", percent)),
        ("capped, %", _fits("capped", percent)),
        ("median, minus loss", _fits("loss_median", number)),
        _SEEDS,
    ),
    "discrepancy": (
        ("largest", _of_curve(max)),
        ("mean", _of_curve(mean)),
        (f"mean of the first {LATE}", _of_curve(lambda curve: mean(curve[:LATE]))),
        (f"mean of the last {LATE}", _of_curve(lambda curve: mean(curve[-LATE:]))),
        ("bound (n_s - 1)/N", lambda c: number(pointwise_bound(c), 4)),
        ("bound in expectation", lambda c: number(mean(c["discrepancy_bound_expected"] or []), 4)),
        _SEEDS,
    ),
    "schedules": (("memory", lambda c: c["memory"]), *_ACCURACY, *_PARTICIPATION, _HOLDS, _SEEDS),
}


def _cost(cells: Cells) -> tuple[Column, ...]:
    """Seconds and memory, and what a method costs over FedAvg: absolute figures of two machines cannot be compared."""
    base = next((cell["seconds"] for cell in cells if cell["labels"].get("method") == "fedavg"), None)
    printed = paper.COST["fedavg"][0]

    def cost(cell: Cell, i: int) -> float | None:
        return paper.COST.get(cell["labels"].get("method", ""), (None, None))[i]

    def over(seconds: float | None, other: float | None) -> str:
        return NOTHING if seconds is None or not other else f"{100 * (seconds / other - 1):+.1f}"

    return (
        ("seconds", lambda c: number(c["seconds"], 1)),
        ("over FedAvg, %", lambda c: over(c["seconds"], base)),
        ("paper", lambda c: over(cost(c, 0), printed)),
        ("peak MB", lambda c: number(c["peak_mb"], 0)),
        ("paper's seconds", lambda c: number(cost(c, 0), 0)),
        ("paper's MB", lambda c: number(cost(c, 1), 0)),
    )


def _participation(cells: Cells) -> str:
    """Methods down, data and split across; the paper's figure in parentheses."""
    places = list(dict.fromkeys((label(cell, "data"), cell["labels"]["split"]) for cell in cells))
    methods = list(dict.fromkeys(cell["labels"]["method"] for cell in cells))
    found = {(label(c, "data"), c["labels"]["split"], c["labels"]["method"]): c for c in cells}

    def show(cell: Cell | None) -> str:
        if cell is None:
            return NOTHING
        printed = theirs(cell)[2]
        return kept(cell) + ("" if printed is None else f" ({100 * printed:.0f})")

    rows = [[method, *(show(found.get((*place, method))) for place in places)] for method in methods]
    return markdown(["method", *(f"{data} ({split})" for data, split in places)], rows, 1)


def _rules(cells: Cells) -> str:
    """A row per data and method, the two rules side by side."""
    rules = list(dict.fromkeys(cell["labels"]["rule"] for cell in cells))
    rows = list(dict.fromkeys((cell["labels"]["data"], cell["labels"]["method"]) for cell in cells))
    found = {(c["labels"]["data"], c["labels"]["method"], c["labels"]["rule"]): c for c in cells}
    columns: tuple[Column, ...] = (*_ACCURACY[:1], *_PARTICIPATION[:1], _HOLDS)
    titles = [f"{rule}: {title}" for title, _ in columns for rule in rules]
    lines = [
        [
            *row,
            *(show(found[*row, rule]) if (*row, rule) in found else NOTHING for _, show in columns for rule in rules),
        ]
        for row in rows
    ]
    return markdown(["data", "method", *titles], lines, 2)
