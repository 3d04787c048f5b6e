"""Pictures of a run for a notebook: SVG that needs nothing but the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from feduca.errors import InputError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by the colour-blind, too
STATUS = {"joined": "#0072B2", "declined": "#E69F00", "absent": "#999999", "refused": "#CC79A7", "left": "#555555"}
STATUS["not asked"] = "#E9ECEF"
WIDE, HIGH, LEFT, BELOW, ABOVE = 640, 240, 52, 34, 26
INK, FAINT = "#777777", "#cccccc"  # on white and on black

Series = Sequence[float | None]


@dataclass(frozen=True)
class Picture:
    """An SVG: a notebook shows it, `save` writes it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return f"a picture of {len(self.svg)} characters of SVG; save(path) writes it"

    __repr__ = __str__

    def save(self, path: str | Path) -> Path:
        """Write it to a file, an SVG."""
        path = Path(path)
        if path.suffix.lower() not in ("", ".svg"):
            raise InputError(
                f"a picture is saved as SVG, and {path} ends in {path.suffix}: call it {path.with_suffix('.svg')}"
                " (`feduca report --figures DIR` draws PNG and PDF)"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.svg, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from None
        return path


def _page(width: float, height: float, parts: Sequence[str], title: str) -> Picture:
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
        f' font-family="sans-serif" font-size="12" role="img"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers between."""
    rough = 10.0 ** math.floor(math.log10(high - low))
    step = next(s * rough for s in (0.25, 0.5, 1, 2) if (high - low) / (s * rough) <= 5 or s == 2)
    return [round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def lines(
    rounds: Sequence[int], series: Mapping[str, Series], title: str, unit: str = "%", scale: float = 100
) -> Picture:
    """Curves over the rounds, each with its name; a gap where a value is missing."""
    known = [scale * value for values in series.values() for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-9 else (low, high)
    right = WIDE - 150

    def at(i: int, value: float) -> tuple[float, float]:
        x = LEFT + (right - LEFT) * (i / max(1, len(rounds) - 1))
        return x, HIGH - BELOW - (HIGH - BELOW - ABOVE) * (scale * value - low) / (high - low)

    parts = [_text(LEFT, 14, title)]
    for tick in ticks(low, high):
        y = HIGH - BELOW - (HIGH - BELOW - ABOVE) * (tick - low) / (high - low)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}" stroke-width="0.5"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    parts += [_text(LEFT, HIGH - 12, f"round {rounds[0]}"), _text(right, HIGH - 12, str(rounds[-1]), "end")]
    parts.append(_text(LEFT - 6, ABOVE - 8, unit, "end"))
    for n, (name, values) in enumerate(series.items()):
        colour, pen, path = COLOURS[n % len(COLOURS)], "M", []
        wide = 2 + 1.5 * (len(series) - 1 - n)  # what lies below, where curves are equal, shows at the edges
        for i, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            path.append("{}{:.1f} {:.1f}".format(pen, *at(i, value)))
            pen = "L"
        parts.append(f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="{wide:g}"/>')
        parts.append(_text(right + 10, ABOVE + 14 + 18 * n, name, colour=colour))
    return _page(WIDE, HIGH, parts, title)


def strip(rounds: Sequence[int], status: Sequence[Sequence[str]], silos: Sequence[str]) -> Picture:
    """Who was in: a row per silo, a column per round; who is out has a bar across, so that it does not hang on the colour."""
    left = 12 + 7 * max(map(len, silos), default=0)
    wide, high = max(4.0, min(18.0, (WIDE - left) / len(rounds))), 16.0
    parts = []
    for k, name in enumerate(silos):
        y = 4 + high * k
        parts.append(_text(left - 6, y + 12, name, "end"))
        for i, words in enumerate(status):
            if k >= len(words):  # it came later
                continue
            x, word = left + wide * i, words[k]
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{high - 2:.1f}"'
                f' fill="{STATUS.get(word, INK)}"><title>{escape(f"{name}, round {rounds[i]}: {word}")}</title></rect>'
            )
            if word != "joined":
                middle = y + high / 2 - 1
                parts.append(
                    f'<line x1="{x:.1f}" x2="{x + wide - 1:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="#ffffff"/>'
                )
    foot = 4 + high * len(silos)
    x = float(left)
    for word in dict.fromkeys(word for words in status for word in words):
        parts.append(f'<rect x="{x:.1f}" y="{foot + 8:.1f}" width="10" height="10" fill="{STATUS.get(word, INK)}"/>')
        parts.append(_text(x + 14, foot + 17, word))
        x += 30 + 7 * len(word)
    width = max(x, left + wide * len(rounds)) + 8
    return _page(width, foot + 26, parts, f"who was in, rounds {rounds[0]} to {rounds[-1]}")


Point = tuple[float, float, float, float]  # where on the axis; mean, lowest and highest over seeds


def bands(series: Mapping[str, Sequence[Point]], axis: str, what: str, unit: str = "%", scale: float = 100) -> Picture:
    """A quantity against a number, a curve per name with a band from the lowest to the highest seed."""
    points = [point for each in series.values() for point in each]
    left, right = min(x for x, *_ in points), max(x for x, *_ in points)
    low, high = scale * min(p[2] for p in points), scale * max(p[3] for p in points)
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-9 else (low, high)
    edge = WIDE - 150

    def at(x: float, y: float) -> str:
        across, up = 0.5 if right == left else (x - left) / (right - left), (scale * y - low) / (high - low)
        return f"{LEFT + (edge - LEFT) * across:.1f} {HIGH - BELOW - (HIGH - BELOW - ABOVE) * up:.1f}"

    parts = [_text(LEFT, 14, f"{what} over {axis}, with the band over seeds"), _text(LEFT - 6, ABOVE - 8, unit, "end")]
    for share in (0, 0.5, 1):
        y = HIGH - BELOW - (HIGH - BELOW - ABOVE) * share
        parts.append(f'<line x1="{LEFT}" x2="{edge}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}" stroke-width="0.5"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{low + share * (high - low):.3g}", "end"))
    parts += [_text(LEFT, HIGH - 12, f"{axis} {left:g}"), _text(edge, HIGH - 12, f"{right:g}", "end")]
    for n, (name, each) in enumerate(series.items()):
        colour = COLOURS[n % len(COLOURS)]
        around = [at(x, top) for x, _, _, top in each] + [at(x, bottom) for x, _, bottom, _ in reversed(each)]
        parts.append(f'<path d="M{" L".join(around)} Z" fill="{colour}" fill-opacity="0.2"/>')
        parts.append(
            f'<path d="M{" L".join(at(x, y) for x, y, *_ in each)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(_text(edge + 10, ABOVE + 14 + 18 * n, name, colour=colour))
    return _page(WIDE, HIGH, parts, f"{what} over {axis}")
