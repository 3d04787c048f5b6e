"""What all figures share: a method has one colour in every figure and its variants differ in dash; names, panels, keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feduca.report.palette import DASHES, OKABE_ITO
from paper.claims import look
from paper.tables import Cell, Cells

BLUE, RED, GREEN, PINK, ORANGE, SKY, OLIVE, GREY = OKABE_ITO
BLACK = "#222222"
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
    "stack": (SKY, 2),
    "ditto": (OLIVE, 0),
    "apfl": (OLIVE, 1),
    "uniform": (GREY, 0),
    "random": (GREY, 2),
    "random-near": (GREY, 1),
    "local": (GREY, 3),
    "forced": (BLACK, 1),
}
NAMES = {
    **look.NAMES,
    "feduca-fresh": "FedUCA fresh",
    "feduca-maximum": "FedUCA maximum",
    "feduca-lagged": "FedUCA lagged",
    "forced": "forced in",
    "random-near": "random, near uniform",
    "least-concession": "least concession",
    "best-mixture": "best mixture",
    "ditto": "Ditto",
    "apfl": "APFL",
    **look.DATA,
    "fmnist": "Fashion-MNIST",
}

Place = tuple[str, str]  # data and split


def method_of(cell: Cell) -> str:
    """As the study calls it."""
    return cell["labels"].get("method", cell["method"])


def named(word: str) -> str:
    """A method or a data set as people write it; a variant keeps what stands after the comma."""
    first, comma, rest = word.partition(",")
    return NAMES.get(word) or NAMES.get(first, first) + comma + rest


def title(place: Place) -> str:
    return f"{named(place[0])} {split(place[1])}"


def split(word: str) -> str:
    """`0.5,1.0` as it is written beside a data set."""
    return f"({word.replace(',', ', ')})"


def dash(index: int) -> Any:
    """As matplotlib wants it."""
    return "-" if index == 0 else (0, tuple(x / 1.5 for x in DASHES[index % len(DASHES)]))


def line(method: str) -> dict[str, Any]:
    """Colour and dash; a variant (`least-concession, ties by loss`) has its family's colour."""
    colour, index = STYLES.get(method) or STYLES.get(method.split(",")[0], (GREY, 0))
    return {"color": colour, "linestyle": dash(index)}


def colour_of(cell: Cell) -> str:
    return line(method_of(cell))["color"]


def distinct(values: Any) -> list[Any]:
    """Each once, in the order they come in."""
    return list(dict.fromkeys(values))


def places(cells: Cells) -> list[Place]:
    return distinct((cell["data"], cell["split"]) for cell in cells)


def at(cells: Cells, place: Place) -> list[Cell]:
    return [cell for cell in cells if (cell["data"], cell["split"]) == place]


def numbers(values: Any) -> Any:
    """One number, or a sequence of them, for arithmetic: None becomes NaN, which is not drawn."""
    return np.asarray(values, float)


def percent(cells: Cells, key: str) -> Any:
    """A fraction of every cell, in percent."""
    return 100 * numbers([cell[key] for cell in cells])


def panels(figure: Any, count: int, across: int = 2, **options: Any) -> list[Any]:
    """So many panels in rows of `across`."""
    axes = list(np.ravel(figure.subplots(-(-count // across), min(across, count), squeeze=False, **options)))
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def rows(axes: Any, methods: Sequence[str]) -> None:
    """Methods down, the first on top."""
    axes.set_yticks(range(len(methods)), [named(method) for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)


def bars(axes: Any, cells: Cells, values: Any) -> None:
    """A bar per method."""
    axes.barh(range(len(cells)), values, color=[colour_of(cell) for cell in cells], height=0.65)
    rows(axes, [method_of(cell) for cell in cells])
    axes.grid(visible=False, axis="y")


def diamonds(axes: Any, x: Any, y: Any, marks: str = "D", **options: Any) -> None:
    """The paper's figures, where it has one: a line joins them across those it lacks."""
    x, y = numbers(x), numbers(y)
    known = np.isfinite(x) & np.isfinite(y)
    axes.plot(x[known], y[known], marks, **{"color": BLACK, "mfc": "white", "ms": 5.5, **options})


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend under all panels, without names that repeat."""
    entries: dict[str, Any] = {}
    for one in np.ravel(axes):
        for handle, label in zip(*one.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def key_below(figure: Any, *entries: dict[str, Any]) -> None:
    """A legend of what the marks mean, whatever their colour."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **{"ls": "", "color": GREY, **entry}) for entry in entries]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(2, len(handles)))


PAPER = {"marker": "D", "color": BLACK, "mfc": "none", "label": "paper"}  # an entry of such a key
