"""Tailored offers: participation against accuracy, and what every silo gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feduca.studies.cell_summary import CellSummary
from feduca.studies.summarise import alone
from paper.figures.drawing import Drawing
from paper.figures.style import (
    BLACK,
    colour_of,
    dash,
    distinct,
    key_below,
    method_of,
    named,
    numbers,
    panels,
    rows,
    split,
)
from paper.tables import Cell, Cells

Panel = tuple[tuple[str, str], ...]  # all labels but the method's: what they are and what they say


def offers(cells: Cells, name: str) -> list[Drawing]:
    """Of the study's main part."""
    main = [c for c in cells if c["study"] == cells[0]["study"]]
    gains = [(c, g) for c in main if c["rule"] != "never" and (g := _gains(c, main)) is not None]
    return [_trade(name, main), *([_gain(name, gains)] if gains else [])]


def _trade(name: str, cells: Cells) -> Drawing:
    """Participation and accuracy of every method, and the accuracy of forcing everybody in."""
    ceiling = {"color": BLACK, "lw": 1, "ls": dash(2)}

    def draw(figure: Any) -> None:
        for axes, panel in _side_by_side(figure, cells):
            here = [c for c in cells if _panel(c) == panel]
            for cell in here:
                row, colour = _methods(cells).index(method_of(cell)), colour_of(cell)
                axes.plot(100 * numbers(cell["participation_mean"]), row, "o", ms=5.5, color=colour)
                axes.plot(100 * numbers(cell["accuracy_mean"]), row, "s", ms=5, color=colour, mfc="white")
            known = [c["ceiling_accuracy_mean"] for c in here if c.get("ceiling_accuracy_mean") is not None]
            if known:
                axes.axvline(100 * known[0], **ceiling)
            axes.set_xlim(0, 103)
        key_below(
            figure,
            {"marker": "o", "label": "participation, %"},
            {"marker": "s", "mfc": "white", "label": "accuracy of the shared model, %"},
            {**ceiling, "label": "accuracy, everybody forced in"},
        )

    return Drawing(name, "Participation and accuracy of the shared model per method.", _height(cells), draw)


def _gain(name: str, gains: Sequence[tuple[Cell, np.ndarray]]) -> Drawing:
    """A row per method, a stroke per silo and seed (one path: as many marks would make a large file)."""
    cells = [cell for cell, _ in gains]

    def draw(figure: Any) -> None:
        for axes, panel in _side_by_side(figure, cells):
            axes.axvline(0, color=BLACK, lw=1)
            here = {_methods(cells).index(method_of(c)): (c, values) for c, values in gains if _panel(c) == panel}
            for row, (cell, values) in here.items():
                x = np.stack([values, values, np.full(len(values), np.nan)], axis=1).ravel()
                y = np.tile([row - 0.28, row + 0.28, np.nan], len(values))
                axes.plot(x, y, color=colour_of(cell), lw=1)
            axes.plot([np.median(values) for _, values in here.values()], list(here), "o", ms=4.5, color=BLACK)
        figure.supxlabel("accuracy gained over the model alone, points", fontsize=9)

    caption = "What every silo gains over training alone, on data no decision saw"
    caption += " (a stroke per silo and seed; dot: median)."
    return Drawing(f"{name}-gain", caption, _height(cells), draw)


def _gains(cell: Cell, cells: Cells) -> np.ndarray | None:
    """What each silo of each seed gained over its model alone, on data no decision saw, in points."""
    deployed, without = cell.get("deployed_test"), alone(CellSummary.of(cell), [CellSummary.of(one) for one in cells])
    return None if deployed is None or without is None else 100 * (numbers(deployed) - numbers(without)).ravel()


def _panel(cell: Cell) -> Panel:
    return tuple((axis, word) for axis, word in cell["labels"].items() if axis not in ("method", "study"))


def _methods(cells: Cells) -> list[str]:
    return distinct(method_of(cell) for cell in cells)


def _side_by_side(figure: Any, cells: Cells) -> Iterator[tuple[Any, Panel]]:
    """Panels that share their rows, one per method; names stand at the left."""
    found = distinct(_panel(cell) for cell in cells)
    for axes, panel in zip(panels(figure, len(found), _across(len(found)), sharey=True, sharex=True), found):
        rows(axes, _methods(cells))
        axes.set_title("\n".join(_said(axis, word) for axis, word in panel) or named(cells[0]["data"]))
        yield axes, panel


def _said(axis: str, word: str) -> str:
    if axis == "split":
        return split(word)
    return named(word) + (" validation examples" if axis == "validation" else "")


def _across(count: int) -> int:
    return 2 if count in (2, 4) else min(3, count)


def _height(cells: Cells) -> float:
    count = len(distinct(_panel(cell) for cell in cells))
    return 0.7 + -(-count // _across(count)) * (0.6 + 0.2 * len(_methods(cells)))
