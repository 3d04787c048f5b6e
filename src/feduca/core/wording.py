"""How numbers are worded, everywhere: fractions of 1 in percent, their differences in points, other scores as they are.

And how they stand in a table of plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table as plain text, never cut: the first `left` columns to the left, the others, figures, to the right."""
    table = [list(head), *map(list, rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]

    def line(row: Sequence[str]) -> str:
        gaps = [" " * (width - cell_len(text)) for text, width in zip(row, widths)]
        return "  ".join(t + gap if i < left else gap + t for i, (t, gap) in enumerate(zip(row, gaps))).rstrip()

    return "\n".join(map(line, table))
