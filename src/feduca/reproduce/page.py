"""docs/reproduction.md, written from the committed summaries: `python -m feduca.reproduce.page [RESULTS [PAGE]]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca.reproduce import paper
from feduca.reproduce.claims import ALSO, Summaries, register
from feduca.reproduce.study import STUDIES

VIEWS = {"participation": "table1", "discrepancy": "table1", "jensen": "delta"}  # other views of the same runs

HEAD = """# The paper, reproduced

Ours beside the paper's, cell by cell. Every figure below comes from a file in `results/`, written by `feduca reproduce NAME`; the
page itself is written by `python -m feduca.reproduce.page`. A table may have been filled in several sittings, with `--only` (some
cells of it) and `--lockstep` (several runs side by side); neither changes results beyond float rounding.

Accuracy is the mean over the last ten rounds, participation the mean over rounds and silos, both in percent. "Paper" columns are
what the paper prints; `-` means that it prints no figure.

Three rows are ours: `uniform` and `random` are the controls under the same rule as FedUCA (Eq. 2), `forced` is FedAvg with
everybody made to join: the ceiling.
"""


def read(folder: Path) -> Summaries:
    """All committed summaries of studies, by name."""
    found = {}
    for name in (*STUDIES, *ALSO):
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def page(summaries: Summaries) -> str:
    """The whole page."""
    parts = [HEAD]
    for name in STUDIES:
        if name in summaries:
            parts.append(_section(name, summaries[name]))
    missing = [name for name in STUDIES if name not in summaries and VIEWS.get(name) not in summaries]
    if missing:
        parts.append(f"## Not run yet\n\nNo committed summary: {', '.join(missing)}.\n")
    parts.append(register(summaries))
    return "\n".join(parts)


def _percent(value: float | None, spread: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def _difference(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{100 * (ours - theirs):+.1f}"


def _splits(cells: Sequence[Mapping[str, Any]]) -> str:
    """The study that trains nothing: how many classes and examples silos have, and where the pictures are."""
    lines = ["## splits\n", "```console\n$ feduca reproduce splits\n```\n"]
    axes = list(cells[0]["labels"])
    columns = [*axes, "silos", "classes per silo", "training examples per silo", "pictures"]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for cell in cells:
        classes = [sum(count > 0 for count in silo) for silo in cell["train"]]
        sizes = [sum(silo) for silo in cell["train"]]
        row = [*(cell["labels"][axis] for axis in axes), str(len(sizes)), f"{min(classes)} to {max(classes)}"]
        row += [f"{min(sizes)} to {max(sizes)}", ", ".join(f"`results/{name}`" for name in cell["files"])]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _section(name: str, cells: Sequence[Mapping[str, Any]]) -> str:
    if name == "splits":
        return _splits(cells)
    axes = list(cells[0]["labels"])
    columns = [*axes, "accuracy", "paper", "difference", "participation", "paper", "seeds", "Eq. 1 holds"]
    extra = {"delta": ["summed Jensen gap", "paper"], "jensen": ["mean", "top-50", "top-25", "paper"]}.get(name, [])
    where = " --device cuda" if any(cell["device"] != "cpu" for cell in cells) else ""
    lines = [f"## {name}\n", f"```console\n$ feduca reproduce {name}{where}\n```\n"]
    lines.append("| " + " | ".join([*columns, *extra]) + " |")
    lines.append("|" + "---|" * len([*columns, *extra]))
    for cell in cells:
        theirs, share = _paper(name, cell)
        row = [cell["labels"].get(axis, "") for axis in axes]
        row += [_percent(cell["accuracy_mean"], cell["accuracy_std"]), _percent(theirs)]
        row += [_difference(cell["accuracy_mean"], theirs), _percent(cell["participation_mean"]), _percent(share)]
        row += [str(len(cell["seeds"])), _percent(cell["eq1_share"])]
        row += _gaps(name, cell)
        lines.append("| " + " | ".join(row) + " |")
    devices = ", ".join(sorted({cell["device"] for cell in cells}))
    commits = ", ".join(sorted({cell["commit"] or "unknown" for cell in cells}))
    lines.append(f"\nOn {devices}; commit {commits}; {cells[0]['rounds']} rounds.\n")
    return "\n".join(lines)


def _paper(name: str, cell: Mapping[str, Any]) -> tuple[float | None, float | None]:
    labels = cell["labels"]
    if name == "misreporting":
        return paper.MISREPORTING[labels["inflation"]]
    if name in ("delta", "jensen"):
        return None, paper.DELTA_PARTICIPATION.get(labels["delta"])
    if name == "strategies":
        known = (cell["data"], labels["n_s"]) in paper.STRATEGIES and labels.get("schedule") == "lagged"
        return paper.STRATEGIES[cell["data"], labels["n_s"]] if known else (None, None)
    return cell["paper_accuracy"], cell["paper_participation"]


def _gaps(name: str, cell: Mapping[str, Any]) -> list[str]:
    if name not in ("delta", "jensen"):
        return []
    gaps = cell["jensen"]
    theirs = paper.JENSEN.get(cell["labels"]["delta"])
    if name == "delta":
        return [_number(gaps["mean"] if gaps else None), "-" if theirs is None else f"{theirs[0]:.2f}"]
    ours = [_number(gaps[key]) if gaps else "-" for key in ("mean", "top50", "top25")]
    return [*ours, "-" if theirs is None else " / ".join(f"{value:.2f}" for value in theirs)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


if __name__ == "__main__":
    results, target = (sys.argv[1:] + ["results", "docs/reproduction.md"][len(sys.argv) - 1 :])[:2]
    Path(target).write_text(page(read(Path(results))))
    print(f"written to {target}")
