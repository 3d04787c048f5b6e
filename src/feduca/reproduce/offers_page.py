"""The tables of docs/offers.md, from the committed summaries: `python -m feduca.reproduce.offers_page [RESULTS] [PAGE]`.

Each table stands between `<!-- table NAME -->` and `<!-- end -->`; what is there is replaced. Nothing is typed by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Cells = Sequence[Mapping[str, Any]]

COLUMNS = (  # title, key, decimals of a percentage
    ("participation %", "participation_mean", 1),
    ("global accuracy %", "accuracy_mean", 1),
    ("forced-in ceiling %", "ceiling_accuracy_mean", 1),
    ("mean concession", "concession", None),
    ("deployed %", "deployed_test_mean", 1),
    ("alone %", "alone_test_mean", 1),
    ("better off %", "better_off_share", 0),
    ("worst silo, points", "gain_worst", 1),
    ("silos left %", "members_share", 0),
)


def table(cells: Cells, quitting: bool = False) -> str:
    """One row per cell; columns that no cell knows are left out."""
    axes = [axis for axis in dict.fromkeys(a for cell in cells for a in cell["labels"]) if axis != "study"]
    columns = [
        column
        for column in COLUMNS
        if any(cell.get(column[1]) is not None for cell in cells) and (quitting or column[1] != "members_share")
    ]
    lines = [
        "| " + " | ".join([*axes, *(title for title, _, _ in columns)]) + " |",
        "|" + "---|" * len(axes) + "---:|" * len(columns),
    ]
    for cell in cells:
        shown = [cell["labels"].get(axis, "") for axis in axes] + [_shown(cell.get(k), d) for _, k, d in columns]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _shown(value: float | None, decimals: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if decimals is None else f"{100 * value:.{decimals}f}"


def deeds(found: Mapping[str, Any]) -> str:
    """The audit of conduct, one row per deed."""

    def points(value: Mapping[str, float | None]) -> str:
        error = "" if value["stderr"] is None else f" +- {100 * value['stderr']:.1f}"
        return "-" if value["mean"] is None else f"{100 * value['mean']:+.1f}{error}"

    lines = [
        "| method | deed | its own accuracy, points | the others' | shared model's | better / worse off |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        cells = [row["method"], row["deed"], *(points(row[key]) for key in ("own", "others", "accuracy"))]
        lines.append("| " + " | ".join([*cells, f"{row['gained']:.0%} / {row['lost']:.0%}"]) + " |")
    return "\n".join(lines)


def block(name: str, results: Path) -> str:
    """The text of one marked place: the command, then the table; or that it has not been run."""
    file, _, part = name.partition(":")
    path = results / f"{file}.json"
    command = f"feduca reproduce {file}" + (f" --only study={part}" if part else "")
    found: Any = json.loads(path.read_text()) if path.is_file() else []
    if file == "incentives":
        return f"`{found['command']}`\n\n{deeds(found)}" if found else "Not run yet: `feduca audit --conduct`."
    cells = [cell for cell in found if not part or cell["labels"].get("study") == part]
    if not cells:
        return f"Not run yet: `{command}`."
    seeds = sorted({len(cell["seeds"]) for cell in cells})
    commits = ", ".join(sorted({str(cell["commit"]) for cell in cells}))
    where = ", ".join(sorted({cell["device"] for cell in cells}))
    about = f"Seeds per row: {' or '.join(map(str, seeds))}; {where}; commit {commits}."
    return f"`{command}`\n\n{table(cells, part == 'quitting')}\n\n{about}"


def filled(page: str, results: Path) -> str:
    """The page with every marked table written anew."""
    return re.sub(
        r"(<!-- table (\S+) -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{block(m[2], results)}\n{m[3]}",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    where, target = (Path(word) for word in (sys.argv[1:] + ["results", "docs/offers.md"][len(sys.argv) - 1 :])[:2])
    target.write_text(filled(target.read_text(), where))
