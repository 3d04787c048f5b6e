"""How accurate methods are and whom they keep: per data set and split, and over the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from paper.figures.drawing import Drawing
from paper.figures.style import (
    BLACK,
    PAPER,
    at,
    bars,
    colour_of,
    diamonds,
    distinct,
    key_below,
    legend_below,
    line,
    method_of,
    named,
    numbers,
    panels,
    percent,
    places,
    rows,
    title,
)
from paper.printed import other_start
from paper.tables import Cells, theirs

MOST_POINTS = 60  # of a line over the rounds
SMOOTH = 10  # rounds of the running mean of participation


def table1(cells: Cells) -> list[Drawing]:
    """Accuracies of every data set, then what happened over the rounds where that is known."""
    by_data = {data: [c for c in cells if c["data"] == data] for data in distinct(c["data"] for c in cells)}
    with_rounds = {data: [c for c in some if c.get("accuracy_by_round")] for data, some in by_data.items()}
    accuracies = [_accuracy(some, f"table1-{data}") for data, some in by_data.items()]
    return [*accuracies, *(_over_rounds(some, data) for data, some in with_rounds.items() if some)]


def text(cells: Cells) -> list[Drawing]:
    return [_accuracy(cells, "text")]


def participation(cells: Cells) -> list[Drawing]:
    """A bar per method in a panel per data set and split."""

    def draw(figure: Any) -> None:
        for axes, place in zip(panels(figure, len(places(cells))), places(cells)):
            here = at(cells, place)
            bars(axes, here, percent(here, "participation_mean"))
            diamonds(axes, 100 * numbers([theirs(c)[2] for c in here]), range(len(here)))
            axes.set(xlim=(0, 100), xlabel="participation, %", title=title(place))
        printed = any(theirs(c)[2] is not None for c in cells)
        key_below(figure, {"marker": "s", "label": "ours"}, *([PAPER] if printed else []))

    caption = "Participation, mean over rounds, silos and seeds; diamonds where the paper gives a figure."
    return [Drawing("participation", caption, _height(cells), draw)]


def _height(cells: Cells) -> float:
    """Of two panels a row with a line per method."""
    most = max(len(at(cells, place)) for place in places(cells))
    return 0.5 + -(-len(places(cells)) // 2) * (0.7 + 0.2 * most)


def _accuracy(cells: Cells, name: str) -> Drawing:
    """Methods down: our accuracy with its spread over seeds, and the paper's as a hollow diamond."""

    def draw(figure: Any) -> None:
        for axes, place in zip(panels(figure, len(places(cells))), places(cells)):
            here = at(cells, place)
            for row, cell in enumerate(here):
                ours = cell["accuracy_mean"], cell["accuracy_std"]
                _whiskers(axes, row, *ours, fmt="o", color=colour_of(cell), capsize=2.5, zorder=3)
                _whiskers(axes, row, *theirs(cell)[:2], fmt="D", color=BLACK, mfc="none", elinewidth=0.8, zorder=4)
            rows(axes, [method_of(cell) for cell in here])
            axes.set(xlim=(0, 100), xlabel="accuracy, %", title=title(place))
        key_below(figure, {"marker": "o", "label": "ours, ± over seeds"}, PAPER)

    start = next(filter(None, map(other_start, cells)), "")
    ours = f"ours ({start})" if start else "ours"
    caption = (
        f"{named(cells[0]['data'])}: accuracy, {ours} and the paper's; whiskers are standard deviations over seeds."
    )
    return Drawing(name, caption, _height(cells), draw)


def _whiskers(axes: Any, row: int, mean: float | None, spread: float | None, **look: Any) -> None:
    if mean is not None:
        axes.errorbar(100 * mean, row, xerr=None if spread is None else 100 * spread, ms=5, **look)


def _over_rounds(cells: Cells, data: str) -> Drawing:
    """Accuracy and participation over the rounds, one row of panels per split; long runs are thinned to keep files small."""
    step = -(-max(c["rounds"] for c in cells) // MOST_POINTS)

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(places(cells)), 2, squeeze=False, sharex=True)
        for (left, right), place in zip(grid, places(cells)):
            for cell in at(cells, place):
                style = {**line(method_of(cell)), "label": named(method_of(cell)), "lw": 1.3}
                curve, shares = (numbers(cell[f"{key}_by_round"]) for key in ("accuracy", "participation"))
                rounds = np.arange(1, len(curve) + 1)
                left.plot(rounds[::step], 100 * curve[::step], **style)
                right.plot(rounds[::step], 100 * running(shares)[::step], **style)
            left.set(ylabel="accuracy, %", title=title(place), ylim=(0, None))
            right.set(ylabel="participation, %", title=title(place), ylim=(0, 103))
        for axes in grid[-1]:
            axes.set_xlabel("round")
        legend_below(figure, grid, 4)

    thinned = f"every {step} rounds; " if step > 1 else ""
    caption = f"{named(data)}: accuracy and participation over the rounds, mean over seeds"
    caption += f" ({thinned}participation as running mean of {SMOOTH} rounds)."
    return Drawing(f"rounds-{data}", caption, 1.0 + 2.0 * len(places(cells)), draw)


def running(values: np.ndarray, width: int = SMOOTH) -> np.ndarray:
    """Mean over the last `width` rounds, fewer at the start."""
    return np.array([np.nanmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))])
