"""A figure before it is drawn, and how it becomes a small SVG that is the same every time."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from feduca.errors import ConfigError
from feduca.report.palette import FRAME, GRID
from paper.figures.dark import adaptive

WIDTH = 7.6  # inches: the page's width, so that text keeps its size
RC: Any = {
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


@dataclass(frozen=True)
class Drawing:
    """One figure of a section: its file, what it says in one line, how tall it is, and how it is drawn."""

    name: str
    caption: str
    height: float  # inches
    draw: Callable[[Any], None]  # onto an empty matplotlib figure


def svg(drawing: Drawing) -> str:
    """A figure as text; coordinates are rounded to a tenth of a point, which nobody can see."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing figures needs matplotlib: pip install 'feduca[plots]'") from error
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, drawing.height), layout="constrained")
        FigureCanvasSVG(figure)
        drawing.draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    small = re.sub(r"<[^>]*>", lambda tag: _small(tag[0]), re.sub(r"^ +", "", text.getvalue(), flags=re.MULTILINE))
    return adaptive(small)


def _small(tag: str) -> str:
    """A tag, not what it encloses: coordinates rounded, a path terse, no rotation by nothing, no names of groups."""
    tag = re.sub(r"\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)  # marks and clips are referred to, groups are not
    tag = re.sub(r"\s+", " ", tag)
    return re.sub(r'(?<= d=")[^"]*', lambda path: _terse(path[0]), tag)


def _terse(path: str) -> str:
    """The same strokes in fewer letters: an upright line says where it ends, not once more where it stands."""
    path = re.sub(r"M (\S+) (\S+) L \1 (\S+)(?= M| ?$)", r"M \1 \2 V \3", path)
    path = re.sub(r" ?([A-Za-z]) ?", r"\1", path).strip()
    fence = re.fullmatch(r"(?:M\S+ (\S+)V([^\sM]+))(?:M\S+ \1V\2)+", path)
    return path if fence is None else _fence(re.findall(r"M(\S+) ", path), fence[1], fence[2])


def _fence(places: Sequence[str], top: str, bottom: str) -> str:
    """Upright strokes side by side, all as high: each says how far it is from the one before."""

    def short(number: float) -> str:
        return f"{number:.1f}".removesuffix(".0")

    tall = float(bottom) - float(top)
    steps = [short(float(x) - float(before)) for before, x in pairwise(places)]
    return f"M{places[0]} {top}v{short(tall)}" + "".join(f"m{step} {short(-tall)}v{short(tall)}" for step in steps)
