"""The tables of docs/offers.md, from the committed summaries: `python -m feduca.reproduce.offers_page [RESULTS [TARGET]]`.

Each table stands between `<!-- table NAME -->` and `<!-- end -->`; what is there is replaced. Nothing is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feduca.reproduce.commands import commands, console, not_run
from feduca.reproduce.page import changes, device, filled
from feduca.reproduce.tables import NOTHING, Cells, axes_of, label, markdown
from feduca.reproduce.writer import main

COLUMNS = (  # title, key, decimals of a percentage
    ("participation %", "participation_mean", 1),
    ("global accuracy %", "accuracy_mean", 1),
    ("forced-in ceiling %", "ceiling_accuracy_mean", 1),
    ("mean concession", "concession", None),
    ("deployed %", "deployed_test_mean", 1),
    ("alone %", "alone_test_mean", 1),
    ("better off %", "better_off_share", 0),
    ("worst silo, points", "gain_worst", 1),
    ("still in %", "members_share", 0),
)


def table(cells: Cells, quitting: bool = False) -> str:
    """One row per cell; columns that no cell knows are left out."""
    axes = axes_of(cells)
    columns = [column for column in COLUMNS if quitting or column[1] != "members_share"]
    rows = [
        [*(label(cell, axis) for axis in axes), *(_shown(cell.get(key), n) for _, key, n in columns)] for cell in cells
    ]
    return markdown([*axes, *(title for title, _, _ in columns)], rows, len(axes))


def _shown(value: float | None, decimals: int | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if decimals is None else f"{100 * value:.{decimals}f}"


def deeds(found: Mapping[str, Any]) -> str:
    """The audit of conduct, one row per deed."""

    def points(value: Mapping[str, float | None]) -> str:
        error = "" if value["stderr"] is None else f" +- {100 * value['stderr']:.1f}"
        return NOTHING if value["mean"] is None else f"{100 * value['mean']:+.1f}{error}"

    titles = ["method", "deed", "its own accuracy, points", "the others'", "shared model's", "better / worse off"]
    rows = [
        [
            *(row[key] for key in ("method", "deed")),
            *(points(row[key]) for key in ("own", "others", "accuracy")),
            f"{row['gained']:.0%} / {row['lost']:.0%}",
        ]
        for row in found["rows"]
    ]
    return markdown(titles, rows, 2)


def block(name: str, results: Path) -> str:
    """The text of one marked place: the command, then the table; or that it has not been run."""
    file, _, part = name.partition(":")
    path = results / f"{file}.json"
    command = f"feduca reproduce {file}" + (f" --only study={part}" if part else "")
    found: Any = json.loads(path.read_text()) if path.is_file() else []
    if file == "incentives":
        if not found:
            return "Not run yet: `feduca audit --conduct`."
        return f"{console([found['command']])}\n\n{deeds(found)}\n\ncpu; commit {found['commit']}."
    cells = [cell for cell in found if not part or cell["labels"].get("study") == part]
    if not cells:
        return f"Not run yet: `{command}`."
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells}))
    where = ", ".join(sorted({device(cell) + changes(cell) for cell in cells}))
    about = f"Seeds per row: {_seeds(cells)}; {where}; commit {commits}."
    above = console(commands(file, cells, part or None))
    parts = [above, table(cells, part == "quitting"), about, not_run(file, cells, part or None)]
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
    target.write_text(filled(target.read_text(), lambda name: block(name, results)))
    return [f"written to {target}"]


if __name__ == "__main__":
    main(
        "offers_page",
        "Write the tables of docs/offers.md anew, between their marks, from the summaries.",
        "docs/offers.md",
        write,
    )
