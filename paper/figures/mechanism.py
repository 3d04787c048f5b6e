"""What FedUCA's weights do: delta and Jensen's gap, the discrepancy, strategies, inflated thresholds, utility curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feduca.core.records import mean
from feduca.core.utility import family
from paper.figures.drawing import Drawing
from paper.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PINK,
    RED,
    SKY,
    dash,
    diamonds,
    distinct,
    legend_below,
    named,
    numbers,
    percent,
    title,
)
from paper.tables import Cell, Cells, gap, pointwise_bound, their_gap, theirs

QUALITIES = {"best": (BLUE, "o"), "median": (GREEN, "s"), "worst": (RED, "^")}  # of a fit: colour, mark
SCHEDULES = ("lagged", "fresh", "announce-next")  # dashes, in this order


def delta(cells: Cells) -> list[Drawing]:
    """Participation beside the gap that is said to raise it."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        _by_delta(left, cells, percent(cells, "participation_mean"), 100 * numbers([theirs(c)[2] for c in cells]))
        left.set(ylabel="participation, %", ylim=(0, 100))
        _gaps(right, cells, "mean")
        right.set(ylabel="summed Jensen gap, %")
        legend_below(figure, [left], 2)

    return [Drawing("delta", "Participation and the mean summed Jensen gap by delta (CIFAR-10).", 2.9, draw)]


def jensen(cells: Cells) -> list[Drawing]:
    """The gap over all rounds and over those where it is largest."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 3, sharey=True)
        titles = {"mean": "mean over rounds", "top50": "50 largest rounds", "top25": "25 largest rounds"}
        for axes, (key, words) in zip(panels, titles.items()):
            _gaps(axes, cells, key)
            axes.set_title(words)
        panels[0].set_ylabel("summed Jensen gap, %")
        legend_below(figure, panels[:1], 2)

    return [Drawing("jensen", "Sum of Jensen gaps per round by delta, ours and the paper's.", 2.9, draw)]


def _gaps(axes: Any, cells: Cells, key: str) -> None:
    _by_delta(axes, cells, numbers([gap(c, key) for c in cells]), [their_gap(c, key) for c in cells])
    axes.set_yscale("log")


def _by_delta(axes: Any, cells: Cells, ours: Any, printed: Any) -> None:
    x = [float(cell["labels"]["delta"]) for cell in cells]
    axes.plot(x, ours, "o-", color=BLUE, ms=4.5, label="ours")
    diamonds(axes, x, printed, "D--", ms=5, lw=1, label="paper")
    axes.set_xscale("log")
    axes.set_xlabel("delta")


def discrepancy(cells: Cells) -> list[Drawing]:
    """||alpha - 1/N||^2 over the rounds: a colour per data set, a dash per split; both bounds, a shade per number of silos."""
    known = [cell for cell in cells if cell.get("discrepancy")]
    if not known:
        return []
    colours = dict(zip(distinct(c["data"] for c in known), (BLUE, RED, GREEN, PINK)))
    shades = dict(zip(distinct(c.get("clients") for c in known), (BLACK, GREY, SKY)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        splits = distinct(c["split"] for c in known)
        for cell in known:
            curve = numbers(cell["discrepancy"])
            look = {"color": colours[cell["data"]], "ls": dash(splits.index(cell["split"])), "lw": 1.2}
            axes.plot(np.arange(1, len(curve) + 1), curve, **look, label=title((cell["data"], cell["split"])))
        for bound, clients in distinct((round(b, 6), c["clients"]) for c in known if (b := pointwise_bound(c))):
            axes.axhline(bound, color=shades[clients], lw=1, ls=dash(1), label=f"(n_s - 1)/N, N = {clients}")
        expected: dict[float, int | None] = {}
        for cell in known:
            if (bound := mean(cell["discrepancy_bound_expected"] or [])) is not None:
                expected.setdefault(round(bound, 6), cell.get("clients"))
        for bound, clients in expected.items():
            label = "bound in expectation" + (f", N = {clients}" if clients else "")
            axes.axhline(bound, color=shades[clients], lw=1, ls=dash(2), label=label)
        axes.set(yscale="log", xlabel="round", ylabel="||alpha - 1/N||²")
        low, high = axes.get_ylim()
        ticks = [v for e in range(-4, 1) for m in (1, 2, 5) if low <= (v := m * 10.0**e) <= high]
        axes.set_yticks(ticks, [f"{v:g}" for v in ticks])
        axes.minorticks_off()
        legend_below(figure, [axes], 3)

    caption = "Discrepancy of FedUCA's weights, mean over seeds, with both bounds (log scale)."
    return [Drawing("discrepancy", caption, 3.6, draw)]


def strategies(cells: Cells) -> list[Drawing]:
    """Accuracy and participation by n_s, a row of panels per data set, a dash per schedule."""
    data = distinct(c["labels"]["data"] for c in cells)

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(data), 2, squeeze=False)
        for row, one in zip(grid, data):
            here = [c for c in cells if c["labels"]["data"] == one]
            ticks = distinct(c["labels"]["n_s"] for c in here)
            for axes, which, i in zip(row, ("accuracy", "participation"), (0, 2)):
                for index, schedule in enumerate(SCHEDULES):
                    some = [c for c in here if c["labels"].get("schedule") == schedule]
                    x, y = [ticks.index(c["labels"]["n_s"]) for c in some], percent(some, f"{which}_mean")
                    axes.plot(x, y, "o", ms=4, color=BLUE, ls=dash(index), label=schedule)
                x, y = [ticks.index(c["labels"]["n_s"]) for c in here], 100 * numbers([theirs(c)[i] for c in here])
                diamonds(axes, x, y, label="paper (lagged)")
                axes.set_xticks(range(len(ticks)), ticks)
                axes.set(xlabel="n_s", ylabel=f"{which}, %", title=named(one), ylim=(0, 103))
        legend_below(figure, grid, 4)

    caption = "Accuracy and participation by the number of strategies n_s."
    return [Drawing("strategies", caption, 0.9 + 2.0 * len(data), draw)]


def misreporting(cells: Cells) -> list[Drawing]:
    """Participation and accuracy by how much everybody inflates."""

    def draw(figure: Any) -> None:
        x = [float(cell["labels"]["inflation"]) for cell in cells]
        panels = figure.subplots(1, 2)
        for axes, which, i in zip(panels, ("participation", "accuracy"), (2, 0)):
            axes.plot(x, percent(cells, f"{which}_mean"), "o-", color=BLUE, label="ours")
            diamonds(axes, x, 100 * numbers([theirs(c)[i] for c in cells]), "D--", lw=1, label="paper")
            axes.set(xlabel="threshold inflated by, %", ylabel=f"{which}, %", ylim=(-3, 103))
            axes.set_xticks(x)
        legend_below(figure, panels[:1], 2)

    caption = "What everybody's inflated thresholds do to participation and accuracy."
    return [Drawing("misreporting", caption, 2.9, draw)]


def concavity(cells: Cells) -> list[Drawing]:
    return [_curves(cell) for cell in cells if cell.get("curves")]


def _curves(cell: Cell) -> Drawing:
    """Measured utility (top) and loss (bottom) of the chosen silos, with their fits, a column per round."""
    kept, data = cell["curves"], cell["labels"]["data"]
    rounds = distinct(curve["round"] for curve in kept["shown"])
    grid, fine = numbers(kept["grid"]), np.linspace(0, 1, 31)
    accuracy = kept["metric"] == "accuracy"
    scale = 100 if accuracy else 1

    def fitted(zeta: Sequence[float]) -> np.ndarray:
        return family(kept["family"]).value(np.array([zeta]), fine[:, None])[:, 0]

    def draw(figure: Any) -> None:
        top, bottom = figure.subplots(2, len(rounds), squeeze=False, sharex=True)
        for upper, lower, round_ in zip(top, bottom, rounds):
            here = [curve for curve in kept["shown"] if curve["round"] == round_]
            for curve in here:
                colour, mark = QUALITIES[curve["which"]]
                dots = {"marker": mark, "ms": 3, "ls": "", "label": f"{curve['which']} fit of the silos"}
                upper.plot(grid, scale * numbers(curve["utility"]), color=colour, **dots)
                upper.plot(fine, scale * fitted(curve["zeta"]), color=colour, lw=1.2)
                lower.plot(grid, numbers(curve["loss"]), color=colour, **dots)
                lower.plot(fine, -fitted(curve["loss_zeta"]), color=colour, lw=1.2)
            upper.set_title(f"round {round_}\nR² " + ", ".join(f"{curve['r2']:.2f}" for curve in here))
            lower.set_xlabel("weight r of the own model")
        top[0].set_ylabel("utility: accuracy, %" if accuracy else "utility: minus loss")
        bottom[0].set_ylabel("loss")
        legend_below(figure, top, 3)

    caption = f"{named(data)}, seed {kept['seed']}: measured utility and loss along the path (marks) and"
    caption += " concave fits (lines); R² of the utility fits of the best, the median and the worst silo of the round."
    return Drawing(f"concavity-{data}", caption, 4.6, draw)
