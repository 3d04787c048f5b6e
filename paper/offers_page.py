"""The tables of the pages on offers, from the committed summaries: `python -m paper.offers_page [RESULTS [TARGET ...]]`.

Each table stands between `<!-- table STUDY[:PART[:DATA|DATA]] -->` and `<!-- end -->`; what is there is replaced. Nothing is
typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feduca.core import wording
from feduca.studies.cell_summary import CellSummary
from paper.commands import commands, console, not_run
from paper.page import changes, device, filled
from paper.tables import Cells, axes_of, label, markdown
from paper.writer import main

PAGES = (
    "docs/offers.md",
    *(f"docs/offers-{name}.md" for name in ("small", "results", "other-data", "heterogeneity", "silos", "ablation")),
)

Column = tuple[
    str, Callable[[CellSummary], float | None], int | None
]  # title, what of a cell, decimals of a percentage

QUITTING: Column = ("still in %", lambda c: c.members_share, 0)
COLUMNS: tuple[Column, ...] = (
    ("participation %", lambda c: c.participation_mean, 1),
    ("global accuracy %", lambda c: c.accuracy_mean, 1),
    ("forced-in ceiling %", lambda c: c.ceiling_accuracy_mean, 1),
    ("mean concession", lambda c: c.concession, None),
    ("deployed %", lambda c: c.deployed_test_mean, 1),
    ("alone %", lambda c: c.alone_test_mean, 1),
    ("better off %", lambda c: c.better_off_share, 0),
    ("worst silo, points", lambda c: c.gain_worst, 1),
    QUITTING,
)


def table(cells: Cells, quitting: bool = False) -> str:
    """One row per cell; columns that no cell knows are left out."""
    axes = axes_of(cells)
    columns = [column for column in COLUMNS if quitting or column is not QUITTING]
    rows = [
        [*(label(cell, axis) for axis in axes), *(_shown(of(CellSummary.of(cell)), n) for _, of, n in columns)]
        for cell in cells
    ]
    return markdown([*axes, *(title for title, _, _ in columns)], rows, len(axes))


def _shown(value: float | None, decimals: int | None) -> str:
    return wording.number(value) if decimals is None else wording.percent(value, decimals=decimals)


def block(name: str, results: Path) -> str:
    """The text of one marked place: the command, then the table; or that it has not been run."""
    file, part, only, *_ = f"{name}::".split(":")
    data = only.split("|") if only else []
    path = results / f"{file}.json"
    command = f"feduca reproduce {file}" + (f" --only study={part}" if part else "")
    found: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    cells = [cell for cell in found if not part or cell["labels"].get("study") == part]
    cells = [cell for cell in cells if not data or cell["labels"]["data"] in data]
    if not cells:
        return f"Not run yet: `{command}`."
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells}))
    where = ", ".join(sorted({device(cell) + changes(cell) for cell in cells}))
    about = f"Seeds per row: {_seeds(cells)}; {where}; commit {commits}."
    above = console(commands(file, cells, part or None))
    parts = [above, table(cells, part == "quitting"), about, not_run(file, cells, part or None, data)]
    return "\n\n".join(text for text in parts if text)


def _seeds(cells: Cells) -> str:
    """How many seeds a row has; and which data it is about, where rows differ."""
    data: dict[int, list[str]] = {}
    for cell in cells:
        data.setdefault(len(cell["seeds"]), []).append(cell["data"])
    if len(data) == 1:
        return str(next(iter(data)))
    return ", ".join(f"{n} ({', '.join(dict.fromkeys(names))})" for n, names in data.items())


def write(results: Path, target: Path) -> list[str]:
    target.write_text(filled(target.read_text(encoding="utf-8"), lambda name: block(name, results)), encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    main(
        "offers_page",
        "Write the tables of the pages on offers anew, between their marks, from the summaries.",
        PAGES,
        write,
    )
