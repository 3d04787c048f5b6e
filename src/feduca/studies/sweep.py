"""The figure of a sweep: a study whose one axis is a number, drawn against it with bands over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feduca.runs.pictures import Picture, Point, bands
from feduca.studies.cell_summary import CellSummary

FEWEST = 3  # values that make a sweep of an axis


def swept(cells: Sequence[CellSummary]) -> str | None:
    """The axis whose labels are numbers, at least three of them; None where there is none."""
    for axis in dict.fromkeys(axis for cell in cells for axis in cell.labels):
        labels = {cell.labels.get(axis, "") for cell in cells}
        if len(labels) >= FEWEST and all(_number(label) is not None for label in labels):
            return axis
    return None


def drawn(summary: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Accuracy against the swept axis, a curve for everything else that tells cells apart; None where nothing is swept."""
    cells = [CellSummary.of(entry) for entry in summary]
    axis = swept(cells)
    series: dict[str, list[Point]] = {}
    for cell in cells if axis else ():
        seen = [value for value in cell.accuracies or () if value is not None]
        if not seen:
            continue
        others = ", ".join(label for name, label in cell.labels.items() if name != axis) or cell.mechanism
        x = _number(cell.labels[str(axis)]) or 0.0
        series.setdefault(others, []).append((x, sum(seen) / len(seen), min(seen), max(seen)))
    if not series or all(len(points) < FEWEST for points in series.values()):
        return None
    return bands({name: sorted(points) for name, points in series.items()}, str(axis), "accuracy")


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None
