"""How numbers are worded, everywhere: fractions of 1 in percent, their differences in points, other scores as they are.

And how they stand in a table of plain text.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import TextWrapper
from typing import TextIO

from rich.cells import cell_len

NOTHING = "-"
SCORE = "accuracy"  # the metric that is a fraction of 1

Number = float | None


def number(value: Number, decimals: int = 2, sign: bool = False, scale: float = 1.0) -> str:
    """A number as it stands in a table."""
    return NOTHING if value is None else f"{scale * value:{'+' if sign else ''}.{decimals}f}"


def percent(value: Number, spread: Number = None, *, unit: str = "", decimals: int = 1, nothing: str = NOTHING) -> str:
    """A fraction of 1 in percent, with its spread; in a sentence `unit` is " %"."""
    if value is None:
        return nothing
    return number(value, decimals, scale=100) + ("" if spread is None else f" ± {100 * spread:.{decimals}f}") + unit


def points(value: Number, metric: str = SCORE, *, unit: str = "", nothing: str = NOTHING) -> str:
    """A difference of two scores: accuracy in points, any other as it is."""
    if value is None:
        return nothing
    return number(value, 3, sign=True) if metric != SCORE else number(value, 1, sign=True, scale=100) + unit


def scored(value: Number, metric: str = SCORE, *, unit: str = "", nothing: str = NOTHING) -> str:
    """A score: accuracy in percent, any other as it is."""
    if value is None or metric == SCORE:
        return percent(value, unit=unit, nothing=nothing)
    return number(value, 3)


def estimate(value: Mapping[str, Number], sign: bool = False) -> str:
    """A mean with its standard error in points, `mean` and `stderr` of `value`; `sign` puts a plus before gains."""
    head = number(value["mean"], 1, sign, scale=100)
    return head if None in (value["mean"], value["stderr"]) else f"{head} +- {number(value['stderr'], 1, scale=100)}"


def screen(stream: TextIO | None = None) -> int | None:
    """How many columns the terminal has that a stream (stdout) is; None where it is none, and lines may have any length."""
    stream = stream or sys.stdout
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def folded(text: str, width: int | None, indent: int = 2) -> str:
    """`text` in lines of at most `width` columns, broken between words only; what goes on is indented."""
    if width is None:
        return text
    wrap = TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    lines = text.split("\n")
    return "\n".join(line if cell_len(line) <= width else "\n".join(wrap.wrap(line)) for line in lines)


NARROW = 16  # columns that labels keep in any case


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, width: int | None = None) -> str:
    """A table as plain text, never cut: the first `left` columns to the left, the others, figures, to the right.

    A heading may have several lines. Where a row is longer than `width` (the terminal's), a long label goes on below, and if that
    is not enough figures stand in several tables, one below the other: no number is broken.
    """
    body, width = list(map(list, rows)), width or screen()
    body = [body_row for row in body for body_row in _split(row, left, width, [list(head), *body])]
    heads = _stacked(head)
    widths = [max(map(cell_len, column)) for column in zip(*heads, *body, strict=True)]

    def line(row: Sequence[str], shown: Sequence[int]) -> str:
        gaps = [" " * (widths[i] - cell_len(row[i])) for i in shown]
        return "  ".join(row[i] + gap if i < left else gap + row[i] for i, gap in zip(shown, gaps)).rstrip()

    blocks = _blocks(widths, left, width)
    return "\n\n".join("\n".join(line(row, block) for row in [*heads, *body]) for block in blocks)


def _stacked(head: Sequence[str]) -> list[list[str]]:
    """Headings of several lines, the last ones beside each other."""
    parts = [word.split("\n") for word in head]
    deep = max(map(len, parts))
    return [list(row) for row in zip(*([""] * (deep - len(part)) + part for part in parts))]


def _split(row: list[str], left: int, width: int | None, table: list[list[str]]) -> list[list[str]]:
    """A row whose first cell is too long for the screen, as several."""
    others = [max(cell_len(part) for row in column for part in row.split("\n")) for column in list(zip(*table))[1:]]
    room = None if width is None else max(NARROW, width - sum(others) - 2 * len(others))
    if room is None or cell_len(row[0]) <= room or not left:
        return [row]
    first, *more = folded(row[0], room).split("\n")
    return [[first, *row[1:]], *([part, *[""] * (len(row) - 1)] for part in more)]


def _blocks(widths: Sequence[int], left: int, width: int | None) -> list[list[int]]:
    """Columns that fit beside each other, each time with the first `left` ones."""
    labels, blocks = list(range(left)), [list(range(left))]
    for i in range(left, len(widths)):
        block = [*blocks[-1], i]
        if width is not None and len(blocks[-1]) > left and sum(widths[k] + 2 for k in block) - 2 > width:
            blocks.append(labels.copy())
        blocks[-1].append(i)
    return blocks
