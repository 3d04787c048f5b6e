"""`feduca compare cross`: methods x offers x rules x thresholds in one table, everything else equal.

A recipe's `[cross]` holds axes; an axis holds labelled settings; the product of all axes is run. Every combination has
the same seed, so the same data, the same initial model and the same mini-batches. `[[compare]]` rows come first (the
ceiling, say).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduca.config import Recipe

Rows = list[dict[str, Any]]
COLUMNS = {  # what is shown: key of a row, heading, factor
    "participation": ("participation %", 100),
    "accuracy": ("accuracy %", 100),
    "worst_client": ("worst client %", 100),
    "promise_kept": ("promise kept, points", 100),
}


@dataclass(frozen=True)
class Combination:
    """One cell: its place on every axis, and the recipe that runs there."""

    place: Mapping[str, str]  # axis -> label
    recipe: Recipe

    @property
    def label(self) -> str:
        return " | ".join(self.place.values())


def combinations(recipe: Recipe) -> Sequence[Combination]:
    """The product of the recipe's axes, the last axis running fastest; all validated before anything runs."""
    axes = recipe.cross
    cells = []
    for labels in itertools.product(*axes.values()):
        place = dict(zip(axes, labels))
        settings: dict[str, Any] = {}
        for axis, label in place.items():
            settings |= axes[axis][label]
        cells.append(Combination(place, recipe.with_settings(settings)))
    return cells


def labelled(recipe: Recipe, rows: Rows) -> Rows:
    """Finished rows, in the order of `api.rows`, with their place on every axis (None for `[[compare]]` rows)."""
    outside: list[dict[str, str | None]] = [dict.fromkeys(recipe.cross) for _ in recipe.compare]
    places = [*outside, *(dict(one.place) for one in combinations(recipe))]
    return [row | {"axes": place} for row, place in zip(rows, places, strict=True)]


def table(recipe: Recipe, rows: Rows) -> str:
    """The whole cross as plain text, one line per combination."""
    from rich.console import Console
    from rich.table import Table

    axes = list(recipe.cross)
    shown = Table(box=None, pad_edge=False, header_style="")
    for axis in axes:
        shown.add_column(axis, no_wrap=True)
    for heading, _ in COLUMNS.values():
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        place = [row["axes"][axis] or "" for axis in axes]
        if not any(place):
            place[0] = row["method"]
        shown.add_row(*place, *(_number(row[key], factor) for key, (_, factor) in COLUMNS.items()))
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{factor * value:.1f}"


def heat_map(recipe: Recipe, rows: Rows, path: str | Path) -> str:
    """Draw the cross: one panel per quantity, methods down, everything else across. Returns one line on what happened."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return (
            "no heat map: matplotlib is not installed; pip install 'feduca[plots]' and repeat (finished runs are kept)"
        )
    down, *across = recipe.cross
    lines = list(recipe.cross[down])
    columns = [" | ".join(labels) for labels in itertools.product(*(recipe.cross[axis] for axis in across))]
    cells = {
        (row["axes"][down], " | ".join(row["axes"][axis] for axis in across)): row for row in rows if row["axes"][down]
    }
    ceilings = [row for row in rows if not row["axes"][down]]

    figure = Figure(figsize=(4 + 0.55 * len(columns) * 2, 3 + 0.42 * len(lines) * 2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for panel, (key, (heading, factor)) in zip(panels, COLUMNS.items()):
        values = [[_value(cells[line, column][key], factor) for column in columns] for line in lines]
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
        also = "".join(f"; {row['method']} {_number(row[key], factor)}" for row in ceilings if row[key] is not None)
        panel.set_title(heading + also, fontsize=10)
        panel.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7)
        panel.set_yticks(range(len(lines)), lines, fontsize=8)
        figure.colorbar(image, ax=panel, shrink=0.8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return f"heat map written to {path}"


def _value(value: float | None, factor: float) -> float:
    return float("nan") if value is None else factor * value


def _widest(values: list[list[float]]) -> float:
    return max((abs(v) for row in values for v in row if v == v), default=1.0) or 1.0
