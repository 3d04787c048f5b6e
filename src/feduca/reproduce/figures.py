"""The figures of docs/reproduction.md, from the committed summaries: `python -m feduca.reproduce.figures [RESULTS [FOLDER]]`.

What there is to draw is decided here without matplotlib (`drawings`), so that the page can name the files; `write` draws them.
The same summaries give the same files: no dates, no random names. A method has one colour in every figure; its variants differ
in dash.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feduca.errors import ConfigError, InputError
from feduca.palette import DASHES, FRAME, GRID, OKABE_ITO
from feduca.reproduce import paper
from feduca.reproduce.claims import Summaries
from feduca.reproduce.tables import Cell, Cells, gap, pointwise_bound, their_gap, theirs
from feduca.utility import family

WIDTH = 7.6  # inches: the page's width, so that text keeps its size
MOST_POINTS = 60  # of a line over the rounds
SMOOTH = 10  # rounds of the running mean of participation
BLUE, RED, GREEN, PINK, ORANGE, SKY, OLIVE, GREY = OKABE_ITO
BLACK = "#222222"
STYLE = {
    "svg.hashsalt": "feduca",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.edgecolor": FRAME,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.minor.bottom": False,
    "ytick.minor.left": False,
    "lines.linewidth": 1.5,
}
STYLES = {  # colour, which dash
    "feduca": (BLUE, 0),
    "feduca-fresh": (BLUE, 1),
    "feduca-maximum": (BLUE, 2),
    "feduca-lagged": (BLUE, 0),
    "fedavg": (RED, 0),
    "fedavg-ws": (RED, 1),
    "fedprox": (ORANGE, 0),
    "incfl": (GREEN, 0),
    "aaggff": (PINK, 0),
    "least-concession": (SKY, 0),
    "best-mixture": (SKY, 1),
    "ditto": (OLIVE, 0),
    "apfl": (OLIVE, 1),
    "uniform": (GREY, 0),
    "random": (GREY, 2),
    "local": (GREY, 3),
    "forced": (BLACK, 1),
}
NAMES = {
    "feduca": "FedUCA",
    "feduca-fresh": "FedUCA fresh",
    "feduca-maximum": "FedUCA maximum",
    "feduca-lagged": "FedUCA lagged",
    "fedavg": "FedAvg",
    "fedavg-ws": "FedAvg-WS",
    "fedprox": "FedProx",
    "incfl": "IncFL",
    "aaggff": "AAggFF-S",
    "forced": "forced in",
    "least-concession": "least concession",
    "best-mixture": "best mixture",
    "ditto": "Ditto",
    "apfl": "APFL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fmnist": "Fashion-MNIST",
    "20news": "20 Newsgroups",
}


@dataclass(frozen=True)
class Drawing:
    """One figure of a section: its file, what it says in one line, how tall it is, and how it is drawn."""

    name: str
    caption: str
    height: float  # inches
    draw: Callable[[Any], None]  # onto an empty matplotlib figure


def drawings(name: str, cells: Cells) -> list[Drawing]:
    """What there is to draw of a study's cells."""
    return DRAWN[name](cells) if cells and name in DRAWN else []


def write(summaries: Summaries, folder: str | Path) -> list[Path]:
    """Draw everything; figures that no summary asks for any more are removed. Returns the files."""
    from feduca.reproduce.page import shown
    from feduca.reproduce.study import STUDIES

    folder = Path(folder)
    found = [one for name in STUDIES for one in drawings(name, shown(name, summaries))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in {path.name for path in folder.glob("*.svg")} - {f"{one.name}.svg" for one in found}:
            (folder / old).unlink()
        written = [folder / f"{one.name}.svg" for one in found]
        for one, path in zip(found, written):
            path.write_text(svg(one))
    except OSError as error:
        raise InputError(f"cannot write figures to {folder}: {error.strerror}; choose another folder") from None
    return written


def svg(drawing: Drawing) -> str:
    """A figure as text; coordinates are rounded to a tenth of a point, which nobody can see."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing figures needs matplotlib: pip install 'feduca[plots]'") from error
    rc: Any = STYLE
    with matplotlib.rc_context(rc):
        figure = Figure(figsize=(WIDTH, drawing.height), layout="constrained")
        FigureCanvasSVG(figure)
        drawing.draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"<[^>]*>", lambda tag: _small(tag[0]), re.sub(r"^ +", "", text.getvalue(), flags=re.MULTILINE))


def _small(tag: str) -> str:
    """A tag, not what it encloses: coordinates rounded, a path on one line, no rotation by nothing."""
    tag = re.sub(r"\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    return re.sub(r"\s+", " ", tag)


# ---------------------------------------------------------------------------------------------------------------------
# Small helpers


def _method(cell: Cell) -> str:
    return cell["labels"].get("method", cell["method"])


def _style(method: str) -> dict[str, Any]:
    """Colour and dash; a variant (`least-concession, ties by loss`) has its family's colour."""
    colour, dash = STYLES.get(method) or STYLES.get(method.split(",")[0], (GREY, 0))
    return {"color": colour, "linestyle": "-" if dash == 0 else (0, tuple(x / 1.5 for x in DASHES[dash]))}


def _name(word: str) -> str:
    first, comma, rest = word.partition(",")
    return NAMES.get(word) or NAMES.get(first, first) + comma + rest


def _places(cells: Cells) -> list[tuple[str, str]]:
    return list(dict.fromkeys((cell["data"], cell["split"]) for cell in cells))


def _at(cells: Cells, place: tuple[str, str]) -> list[Cell]:
    return [cell for cell in cells if (cell["data"], cell["split"]) == place]


def _title(place: tuple[str, str]) -> str:
    return f"{_name(place[0])} ({place[1].replace(',', ', ')})"


def _percent(value: float | None) -> float:
    return np.nan if value is None else 100 * value


def _floats(values: Sequence[float | None] | None) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values or []], float)


def _running(values: np.ndarray, width: int = SMOOTH) -> np.ndarray:
    """Mean over the last `width` rounds, fewer at the start."""
    return np.array([np.nanmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))])


def _below(figure: Any, axes: Any, columns: int) -> None:
    """One legend under all panels, without names that repeat."""
    entries: dict[str, Any] = {}
    for one in np.ravel(axes):
        for handle, label in zip(*one.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _dots(axes: Any, cells: Cells) -> None:
    """Methods down: our accuracy with its spread over seeds, and the paper's as a hollow diamond."""
    for row, cell in enumerate(cells):
        colour, spread = _style(_method(cell))["color"], cell["accuracy_std"]
        mean, error = _percent(cell["accuracy_mean"]), None if spread is None else 100 * spread
        axes.errorbar(mean, row, xerr=error, fmt="o", ms=5, color=colour, capsize=2.5, zorder=3)
        value, deviation, _ = theirs(cell)
        if value is not None:
            error = None if deviation is None else 100 * deviation
            axes.errorbar(
                100 * value, row, xerr=error, fmt="D", ms=5, color=BLACK, mfc="none", elinewidth=0.8, zorder=4
            )
    axes.set_yticks(range(len(cells)), [_name(_method(cell)) for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(0, 100)


def _key(figure: Any, ours: str = "ours, ± over seeds", marker: str = "o", printed: bool = True) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], marker=marker, ls="", color=GREY, label=ours)]
    if printed:
        handles.append(Line2D([], [], marker="D", ls="", color=BLACK, mfc="none", label="paper"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


# ---------------------------------------------------------------------------------------------------------------------
# One function per study


def _panels(figure: Any, count: int, **options: Any) -> list[Any]:
    """Two panels a row."""
    rows = -(-count // 2)
    axes = list(np.ravel(figure.subplots(rows, min(2, count), squeeze=False, **options)))
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def _accuracy(cells: Cells, name: str) -> Drawing:
    places = _places(cells)
    most = max(len(_at(cells, place)) for place in places)

    def draw(figure: Any) -> None:
        for axes, place in zip(_panels(figure, len(places)), places):
            _dots(axes, _at(cells, place))
            axes.set_title(_title(place))
            axes.set_xlabel("accuracy, %")
        _key(figure)

    caption = f"{_name(cells[0]['data'])}: accuracy, ours and the paper's; whiskers are standard deviations over seeds."
    return Drawing(name, caption, 0.5 + -(-len(places) // 2) * (0.7 + 0.2 * most), draw)


def _over_rounds(cells: Cells, data: str) -> Drawing:
    """Accuracy and participation over the rounds, one row of panels per split; long runs are thinned to keep files small."""
    mine = [c for c in cells if c["data"] == data and c.get("accuracy_by_round")]
    places = _places(mine)
    step = -(-max(c["rounds"] for c in mine) // MOST_POINTS)

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(places), 2, squeeze=False, sharex=True)
        for (left, right), place in zip(grid, places):
            for cell in _at(mine, place):
                style = {**_style(_method(cell)), "label": _name(_method(cell)), "lw": 1.3}
                curve, shares = (_floats(cell[f"{key}_by_round"]) for key in ("accuracy", "participation"))
                rounds = np.arange(1, len(curve) + 1)
                left.plot(rounds[::step], 100 * curve[::step], **style)
                right.plot(rounds[::step], 100 * _running(shares)[::step], **style)
            left.set(ylabel="accuracy, %", title=_title(place), ylim=(0, None))
            right.set(ylabel="participation, %", title=_title(place), ylim=(0, 103))
        for axes in grid[-1]:
            axes.set_xlabel("round")
        _below(figure, grid, 4)

    thinned = f"every {step} rounds; " if step > 1 else ""
    caption = f"{_name(data)}: accuracy and participation over the rounds, mean over seeds"
    caption += f" ({thinned}participation as running mean of {SMOOTH} rounds)."
    return Drawing(f"rounds-{data}", caption, 1.0 + 2.0 * len(places), draw)


def _table1(cells: Cells) -> list[Drawing]:
    with_rounds = dict.fromkeys(c["data"] for c in cells if c.get("accuracy_by_round"))
    by_data = {data: [c for c in cells if c["data"] == data] for data in dict.fromkeys(c["data"] for c in cells)}
    accuracies = [_accuracy(some, f"table1-{data}") for data, some in by_data.items()]
    return [*accuracies, *(_over_rounds(cells, data) for data in with_rounds)]


def _participation(cells: Cells) -> list[Drawing]:
    places = _places(cells)
    most = max(len(_at(cells, place)) for place in places)

    def draw(figure: Any) -> None:
        for axes, place in zip(_panels(figure, len(places)), places):
            here = _at(cells, place)
            colours = [_style(_method(cell))["color"] for cell in here]
            axes.barh(range(len(here)), [_percent(c["participation_mean"]) for c in here], color=colours, height=0.65)
            printed = [(row, 100 * value) for row, c in enumerate(here) if (value := theirs(c)[2]) is not None]
            axes.plot([x for _, x in printed], [row for row, _ in printed], "D", ms=5.5, color=BLACK, mfc="white")
            axes.set_yticks(range(len(here)), [_name(_method(cell)) for cell in here])
            axes.set(ylim=(len(here) - 0.5, -0.5), xlim=(0, 100), xlabel="participation, %", title=_title(place))
            axes.grid(visible=False, axis="y")
        _key(figure, "ours", "s", any(theirs(c)[2] is not None for c in cells))

    caption = "Participation, mean over rounds, silos and seeds; diamonds where the paper gives a figure."
    return [Drawing("participation", caption, 0.5 + -(-len(places) // 2) * (0.7 + 0.2 * most), draw)]


def _by_delta(axes: Any, cells: Cells, ours: Callable[[Cell], float], printed: Callable[[Cell], float | None]) -> None:
    x = [float(cell["labels"]["delta"]) for cell in cells]
    axes.plot(x, [ours(cell) for cell in cells], "o-", color=BLUE, ms=4.5, label="ours")
    known = [(d, value) for d, cell in zip(x, cells) if (value := printed(cell)) is not None]
    axes.plot([d for d, _ in known], [v for _, v in known], "D--", color=BLACK, mfc="white", ms=5, lw=1, label="paper")
    axes.set_xscale("log")
    axes.set_xlabel("delta")


def _delta(cells: Cells) -> list[Drawing]:
    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        _by_delta(left, cells, lambda c: _percent(c["participation_mean"]), lambda c: _maybe_percent(theirs(c)[2]))
        left.set(ylabel="participation, %", ylim=(0, 100))
        _gaps(right, cells, "mean")
        right.set(ylabel="summed Jensen gap, %")
        _below(figure, [left], 2)

    return [Drawing("delta", "Participation and the mean summed Jensen gap by delta (CIFAR-10).", 2.9, draw)]


def _maybe_percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _gaps(axes: Any, cells: Cells, key: str) -> None:
    _by_delta(axes, cells, lambda c: _nan(gap(c, key)), lambda c: their_gap(c, key))
    axes.set_yscale("log")


def _nan(value: float | None) -> float:
    return np.nan if value is None else value


def _jensen(cells: Cells) -> list[Drawing]:
    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 3, sharey=True)
        titles = {"mean": "mean over rounds", "top50": "50 largest rounds", "top25": "25 largest rounds"}
        for axes, (key, title) in zip(panels, titles.items()):
            _gaps(axes, cells, key)
            axes.set_title(title)
        panels[0].set_ylabel("summed Jensen gap, %")
        _below(figure, panels[:1], 2)

    return [Drawing("jensen", "Sum of Jensen gaps per round by delta, ours and the paper's.", 2.9, draw)]


def _discrepancy(cells: Cells) -> list[Drawing]:
    known = [cell for cell in cells if cell.get("discrepancy")]
    if not known:
        return []
    colours = dict(zip(dict.fromkeys(c["data"] for c in known), (BLUE, RED, GREEN, PINK)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        splits = list(dict.fromkeys(c["split"] for c in known))
        for cell in known:
            curve = _floats(cell["discrepancy"])
            dash = _dash(splits.index(cell["split"]))
            label = _title((cell["data"], cell["split"]))
            axes.plot(np.arange(1, len(curve) + 1), curve, color=colours[cell["data"]], ls=dash, lw=1.2, label=label)
        worst = dict.fromkeys((round(b, 6), c["clients"]) for c in known if (b := pointwise_bound(c)))
        for bound, clients in worst:
            axes.axhline(bound, color=BLACK, lw=1, ls=_dash(1), label=f"(n_s - 1)/N, N = {clients}")
        expected = {}
        for cell in known:
            mean = (
                np.nanmean(_floats(cell["discrepancy_bound_expected"])) if cell["discrepancy_bound_expected"] else None
            )
            if mean is not None:
                expected.setdefault(round(float(mean), 6), cell.get("clients"))
        for bound, clients in expected.items():
            label = "bound in expectation" + (f", N = {clients}" if clients else "")
            axes.axhline(bound, color=GREY, lw=1, ls=_dash(2), label=label)
        axes.set(yscale="log", xlabel="round", ylabel="||alpha - 1/N||²")
        ticks = [v * 10.0**e for e in range(-4, 1) for v in (1, 2, 5)]
        low, high = axes.get_ylim()
        axes.set_yticks([v for v in ticks if low <= v <= high], [f"{v:g}" for v in ticks if low <= v <= high])
        axes.minorticks_off()
        _below(figure, [axes], 3)

    return [
        Drawing(
            "discrepancy", "Discrepancy of FedUCA's weights, mean over seeds, with both bounds (log scale).", 3.6, draw
        )
    ]


def _dash(index: int) -> Any:
    return "-" if index == 0 else (0, tuple(x / 1.5 for x in DASHES[index % len(DASHES)]))


def _strategies(cells: Cells) -> list[Drawing]:
    places = list(dict.fromkeys(c["labels"]["data"] for c in cells))

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(places), 2, squeeze=False)
        colours = {"lagged": 0, "fresh": 1, "announce-next": 2}
        for row, data in zip(grid, places):
            here = [c for c in cells if c["labels"]["data"] == data]
            ticks = list(dict.fromkeys(c["labels"]["n_s"] for c in here))
            for axes, key, which in zip(row, ("accuracy_mean", "participation_mean"), (0, 2)):
                for schedule, index in colours.items():
                    some = [c for c in here if c["labels"].get("schedule") == schedule]
                    x = [ticks.index(c["labels"]["n_s"]) for c in some]
                    axes.plot(
                        x, [_percent(c[key]) for c in some], "o", ms=4, color=BLUE, ls=_dash(index), label=schedule
                    )
                known = [
                    (ticks.index(c["labels"]["n_s"]), theirs(c)[which]) for c in here if theirs(c)[which] is not None
                ]
                x, y = [a for a, _ in known], [_percent(b) for _, b in known]
                axes.plot(x, y, "D", color=BLACK, mfc="white", ms=5.5, label="paper (lagged)")
                axes.set_xticks(range(len(ticks)), ticks)
                axes.set(xlabel="n_s", ylabel="accuracy, %" if which == 0 else "participation, %", title=_name(data))
                axes.set_ylim(0, 103)
        _below(figure, grid, 4)

    return [
        Drawing(
            "strategies", "Accuracy and participation by the number of strategies n_s.", 0.9 + 2.0 * len(places), draw
        )
    ]


def _misreporting(cells: Cells) -> list[Drawing]:
    def draw(figure: Any) -> None:
        pairs = (("participation_mean", 2, "participation, %"), ("accuracy_mean", 0, "accuracy, %"))
        panels = figure.subplots(1, 2)
        for axes, (key, which, label) in zip(panels, pairs):
            x = [float(cell["labels"]["inflation"]) for cell in cells]
            axes.plot(x, [_percent(cell[key]) for cell in cells], "o-", color=BLUE, label="ours")
            known = [(d, 100 * v) for d, c in zip(x, cells) if (v := theirs(c)[which]) is not None]
            axes.plot(*zip(*known), "D--", color=BLACK, mfc="white", ms=5.5, lw=1, label="paper")
            axes.set(xlabel="threshold inflated by, %", ylabel=label, ylim=(-3, 103))
            axes.set_xticks(x)
        _below(figure, panels[:1], 2)

    return [
        Drawing("misreporting", "What everybody's inflated thresholds do to participation and accuracy.", 2.9, draw)
    ]


def _cost(cells: Cells) -> list[Drawing]:
    base = next((c["seconds"] for c in cells if _method(c) == "fedavg"), None)
    if base is None:
        return []
    memory = [c for c in cells if c["peak_mb"] is not None]

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2 if memory else 1, squeeze=False)[0]
        rows, colours = range(len(cells)), [_style(_method(c))["color"] for c in cells]
        panels[0].barh(rows, [c["seconds"] / base for c in cells], color=colours, height=0.65)
        known = [
            (i, paper.COST[m][0] / paper.COST["fedavg"][0])
            for i, c in enumerate(cells)
            if (m := _method(c)) in paper.COST
        ]
        panels[0].plot([v for _, v in known], [i for i, _ in known], "D", color=BLACK, mfc="white", ms=5.5)
        panels[0].set_xlabel("time of a run, FedAvg = 1")
        if memory:
            panels[1].barh(rows, [_nan(c["peak_mb"]) for c in cells], color=colours, height=0.65)
            panels[1].set_xlabel("peak memory on the GPU, MB")
        for axes in panels:
            axes.set_yticks(rows, [_name(_method(c)) for c in cells])
            axes.set_ylim(len(cells) - 0.5, -0.5)
            axes.grid(visible=False, axis="y")
        _key(figure, "ours", "s")

    return [
        Drawing(
            "cost",
            "Time relative to FedAvg and peak memory; diamonds: the paper's relative time.",
            1.0 + 0.24 * len(cells),
            draw,
        )
    ]


def _concavity(cells: Cells) -> list[Drawing]:
    return [_curves(cell, _floats(cell["curves"]["grid"])) for cell in cells if cell.get("curves")]


def _curves(cell: Cell, grid: np.ndarray) -> Drawing:
    """Measured utility (top) and loss (bottom) of the chosen silos, with their fits, a column per round."""
    kept = cell["curves"]
    rounds = list(dict.fromkeys(curve["round"] for curve in kept["shown"]))
    colours = {"best": BLUE, "median": GREEN, "worst": RED}
    markers = {"best": "o", "median": "s", "worst": "^"}
    fine = np.linspace(0, 1, 31)

    def fitted(zeta: Sequence[float]) -> np.ndarray:
        return family(kept["family"]).value(np.array([zeta]), fine[:, None])[:, 0]

    def draw(figure: Any) -> None:
        top, bottom = figure.subplots(2, len(rounds), squeeze=False, sharex=True)
        for upper, lower, round_ in zip(top, bottom, rounds):
            for curve in (c for c in kept["shown"] if c["round"] == round_):
                which, name = curve["which"], f"{curve['which']} fit of the silos"
                dots = {"marker": markers[which], "ms": 3, "ls": "", "color": colours[which], "label": name}
                scale = 100 if kept["metric"] == "accuracy" else 1
                upper.plot(grid, scale * _floats(curve["utility"]), **dots)
                upper.plot(fine, scale * fitted(curve["zeta"]), color=colours[which], lw=1.2)
                lower.plot(grid, _floats(curve["loss"]), **dots)
                lower.plot(fine, -fitted(curve["loss_zeta"]), color=colours[which], lw=1.2)
            told = [f"{c['r2']:.2f}" for c in kept["shown"] if c["round"] == round_]
            upper.set_title(f"round {round_}\nR² {', '.join(told)}")
            lower.set_xlabel("weight r of the own model")
        top[0].set_ylabel("utility: accuracy, %" if kept["metric"] == "accuracy" else "utility: minus loss")
        bottom[0].set_ylabel("loss")
        _below(figure, top, 3)

    caption = (
        f"{_name(cell['labels']['data'])}, seed {kept['seed']}: measured utility and loss along the path (marks) and"
    )
    caption += " concave fits (lines); R² of the utility fits of the best, the median and the worst silo of the round."
    return Drawing(f"concavity-{cell['labels']['data']}", caption, 4.6, draw)


def _offers(cells: Cells, name: str) -> list[Drawing]:
    main = [c for c in cells if c["study"] == cells[0]["study"]]
    gains = [(c, g) for c in main if c["rule"] != "never" and (g := _gains(c, main)) is not None]
    return [_trade(name, main), *([_gain(name, gains)] if gains else [])]


def _table_of(cells: Cells) -> tuple[list[tuple[str, ...]], list[str]]:
    """Panels (all labels but the method) and rows (methods)."""
    panels = list(dict.fromkeys(_panel(c) for c in cells))
    return panels, list(dict.fromkeys(_method(c) for c in cells))


def _panel(cell: Cell) -> tuple[str, ...]:
    return tuple(value for axis, value in cell["labels"].items() if axis not in ("method", "study"))


def _side_by_side(figure: Any, cells: Cells) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Panels that share their rows, one per method; names stand at the left."""
    panels, methods = _table_of(cells)
    across = _across(len(panels))
    grid = figure.subplots(-(-len(panels) // across), across, squeeze=False, sharey=True, sharex=True)
    for axes, panel in zip(np.ravel(grid), panels):
        axes.set_yticks(range(len(methods)), [_name(method) for method in methods])
        axes.set_ylim(len(methods) - 0.5, -0.5)
        words = [
            f"{_name(word)} {axis} examples" if axis == "validation" else _name(word)
            for axis, word in _words(cells, panel)
        ]
        axes.set_title(", ".join(words) or _name(cells[0]["data"]))
        yield axes, panel
    for spare in np.ravel(grid)[len(panels) :]:
        spare.remove()


def _words(cells: Cells, panel: tuple[str, ...]) -> list[tuple[str, str]]:
    axes = [axis for axis in cells[0]["labels"] if axis not in ("method", "study")]
    return list(zip(axes, panel))


def _across(panels: int) -> int:
    return 2 if panels in (2, 4) else min(3, panels)


def _height(cells: Cells) -> float:
    panels, methods = _table_of(cells)
    return 0.7 + -(-len(panels) // _across(len(panels))) * (0.5 + 0.2 * len(methods))


def _trade(name: str, cells: Cells) -> Drawing:
    """Participation and accuracy of every method, and the accuracy of forcing everybody in."""
    methods = _table_of(cells)[1]

    def draw(figure: Any) -> None:
        from matplotlib.lines import Line2D

        drawn = []
        for axes, panel in _side_by_side(figure, cells):
            drawn.append(axes)
            here = [c for c in cells if _panel(c) == panel]
            for cell in here:
                row, colour = methods.index(_method(cell)), _style(_method(cell))["color"]
                share, accuracy = _percent(cell["participation_mean"]), _percent(cell["accuracy_mean"])
                axes.plot(share, row, "o", ms=5.5, color=colour)
                axes.plot(accuracy, row, "s", ms=5, color=colour, mfc="white")
            ceilings = [c["ceiling_accuracy_mean"] for c in here if c.get("ceiling_accuracy_mean") is not None]
            if ceilings:
                axes.axvline(_percent(ceilings[0]), color=BLACK, lw=1, ls=_dash(2))
            axes.set_xlim(0, 103)
        handles = [
            Line2D([], [], marker="o", ls="", color=GREY, label="participation, %"),
            Line2D([], [], marker="s", ls="", color=GREY, mfc="white", label="accuracy of the shared model, %"),
            Line2D([], [], color=BLACK, lw=1, ls=_dash(2), label="accuracy, everybody forced in"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)

    return Drawing(name, "Participation and accuracy of the shared model per method.", _height(cells), draw)


def _gains(cell: Cell, cells: Cells) -> np.ndarray | None:
    """What each silo of each seed gained over its model alone, on data no decision saw, in points."""
    deployed, alone = cell.get("deployed_test"), cell.get("alone_test")
    if deployed is not None and alone is None:
        solo = next((c for c in cells if c["rule"] == "never" and c.get("start") and c["start"] == cell["start"]), None)
        by_seed = dict(zip(solo["seeds"], solo["deployed_test"])) if solo is not None else {}
        alone = [by_seed[seed] for seed in cell["seeds"]] if all(seed in by_seed for seed in cell["seeds"]) else None
    if deployed is None or alone is None:
        return None
    return 100 * (np.array(deployed, float) - np.array(alone, float)).ravel()


def _gain(name: str, gains: Sequence[tuple[Cell, np.ndarray]]) -> Drawing:
    """A row per method, a stroke per silo and seed (one path: as many marks would make a large file)."""
    cells = [cell for cell, _ in gains]
    methods = _table_of(cells)[1]

    def draw(figure: Any) -> None:
        for axes, panel in _side_by_side(figure, cells):
            axes.axvline(0, color=BLACK, lw=1)
            for cell, values in gains:
                if _panel(cell) == panel:
                    row = methods.index(_method(cell))
                    x = np.stack([values, values, np.full(len(values), np.nan)], axis=1).ravel()
                    y = np.tile([row - 0.28, row + 0.28, np.nan], len(values))
                    axes.plot(x, y, color=_style(_method(cell))["color"], lw=1)
                    axes.plot(np.median(values), row, "o", ms=4.5, color=BLACK)
        figure.supxlabel("accuracy gained over the model alone, points", fontsize=9)

    caption = (
        "What every silo gains over training alone, on data no decision saw (a stroke per silo and seed; dot: median)."
    )
    return Drawing(f"{name}-gain", caption, _height(cells), draw)


DRAWN: Mapping[str, Callable[[Any], list[Drawing]]] = {
    "table1": _table1,
    "participation": _participation,
    "delta": _delta,
    "jensen": _jensen,
    "discrepancy": _discrepancy,
    "strategies": _strategies,
    "misreporting": _misreporting,
    "cost": _cost,
    "concavity": _concavity,
    "text": lambda cells: [_accuracy(cells, "text")],
    "offers": lambda cells: _offers(cells, "offers"),
    "offers-quickstart": lambda cells: _offers(cells, "offers-quickstart"),
    "offers-validation": lambda cells: _offers(cells, "offers-validation"),
}


if __name__ == "__main__":
    from feduca.reproduce.page import read

    results, target = (sys.argv[1:] + ["results", "docs/images/reproduction"][len(sys.argv) - 1 :])[:2]
    for file in write(read(Path(results)), target):
        print(f"{file}  {file.stat().st_size} bytes")
