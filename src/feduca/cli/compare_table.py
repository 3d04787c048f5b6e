"""`feduca compare` of a recipe with axes, `cross` above all: methods x offers x rules x thresholds, everything else equal.

Every combination has the same seed, so the same data, the same initial model and the same mini-batches. Here is how the
outcome is shown: one table, and one heat map with a panel per quantity. `[[compare]]` rows (the ceiling) stand above
the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feduca.cli.progress import standing_columns
from feduca.core.wording import aligned, number
from feduca.recipes.schema import Recipe
from feduca.studies.cells import Cell

Rows = list[dict[str, Any]]
COLUMNS = {  # what is shown: key of a row, heading, factor
    "participation": ("participation %", 100),
    "accuracy": ("accuracy %", 100),
    "worst_client": ("worst client %", 100),
    "promise_kept": ("promise kept, points", 100),
}


def placed(cells: Sequence[Cell], rows: Rows) -> Rows:
    """Finished rows with their place on every axis."""
    return [row | {"axes": dict(cell.labels)} for cell, row in zip(cells, rows, strict=True)]


def table(recipe: Recipe, rows: Rows) -> str:
    """The whole cross as plain text, one line per combination."""
    axes = [axis.name for axis in recipe.axes]
    more = standing_columns(rows, next((row["metric"] for row in rows if "metric" in row), "accuracy"))

    def line(row: dict[str, Any]) -> list[str]:
        place = [row["axes"].get(axis, "") for axis in axes]
        figures = (number(row[key], 1, scale=factor) for key, (_, factor) in COLUMNS.items())
        return [*place, *figures, *(say(row) for say in more.values())]

    heads = [heading.replace(" ", "\n", 1) for heading, _ in COLUMNS.values()]
    return aligned([*axes, *heads, *more], map(line, rows), len(axes))


def heat_map(recipe: Recipe, rows: Rows, path: str | Path) -> str:
    """Draw the cross: one panel per quantity, methods down, everything else across. Returns one line on what happened."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return (
            "no heat map: matplotlib is not installed; pip install 'feduca[plots]' and repeat (finished runs are kept)"
        )
    down, *across = recipe.axes
    lines = [value.label for value in down.values]
    columns = list(itertools.product(*([value.label for value in axis.values] for axis in across)))
    inside = {tuple(row["axes"].values()): row for row in rows if len(row["axes"]) == len(recipe.axes)}
    outside = [row for row in rows if len(row["axes"]) < len(recipe.axes)]

    figure = Figure(figsize=(4 + 0.55 * len(columns) * 2, 3 + 0.42 * len(lines) * 2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for panel, (key, (heading, factor)) in zip(panels, COLUMNS.items()):
        values = [[_value(inside[line, *column][key], factor) for column in columns] for line in lines]
        span = (0, 100) if key != "promise_kept" else (-_widest(values), _widest(values))
        image = panel.imshow(
            values, aspect="auto", cmap="viridis" if key != "promise_kept" else "RdBu", vmin=span[0], vmax=span[1]
        )
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if value == value:
                    dark = (value - span[0]) / (span[1] - span[0]) < 0.6 if key != "promise_kept" else False
                    panel.text(
                        j, i, f"{value:.0f}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
                    )
        also = "".join(
            f"; {row['method']} {number(row[key], 1, scale=factor)}" for row in outside if row[key] is not None
        )
        panel.set_title(heading + also, fontsize=10)
        panel.set_xticks(
            range(len(columns)), [" | ".join(column) for column in columns], rotation=60, ha="right", fontsize=7
        )
        panel.set_yticks(range(len(lines)), lines, fontsize=8)
        figure.colorbar(image, ax=panel, shrink=0.8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return f"heat map written to {path}"


def _value(value: float | None, factor: float) -> float:
    return float("nan") if value is None else factor * value


def _widest(values: list[list[float]]) -> float:
    return max((abs(v) for row in values for v in row if v == v), default=1.0) or 1.0
