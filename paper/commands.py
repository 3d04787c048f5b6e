"""Under which command a table of committed cells stands, which cells of its study have not been run, and what would run them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from feduca.studies.cells import Cell
from feduca.studies.execute import kept, plan
from feduca.studies.summary_file import place, settings_text

Cells = Sequence[Mapping[str, Any]]

ASKED = {  # what claims ask of a study's cells, and older summaries do not say
    "table1": ("participations", "joined_least"),
    "delta": ("participations", "joined_least", "jensen_short"),
    **dict.fromkeys(("strategies", "misreporting"), ("participations", "joined_least")),
    **dict.fromkeys(("rules", "schedules", "text"), ("participations",)),
}
ON_GPU = "--device cuda --set engine.precision=bf16"


def commands(name: str, cells: Cells, part: str | None = None) -> list[str]:
    """The commands that give these cells of a study (or of a `part` of it): one for each kind of settings they were run with."""
    planned = _planned(name, part)
    seeds = {place(cell.labels): cell.recipe.seeds for cell in planned}
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        words = ["--device cuda"] if cell.get("device", "cpu") != "cpu" else []
        if cell.get("precision", "fp32") != "fp32":  # the recipes' default
            words.append(f"--set engine.precision={cell['precision']}")
        words += [f"--set {shlex.quote(text)}" for text in settings_text(cell.get("set") or {})]
        asked = seeds.get(place(cell["labels"]))
        if asked and cell.get("seeds", asked) != asked:
            words += [f"--set {text}" for text in settings_text({"seeds": cell["seeds"]})]
        kinds.setdefault(" ".join(words), []).append(cell)
    lines = []
    for settings, some in kinds.items():
        only = _only(planned, some)
        keep = ["--only " + shlex.quote(f"{axis}={'|'.join(labels)}") for axis, labels in only.items()]
        keep = [f"--only study={part}", *keep] if part else keep
        chosen = kept(planned, only)
        line = " ".join(word for word in ("feduca reproduce", name, *keep, settings) if word)
        lines.append(line if len(chosen) == len(some) else f"{line}  # {len(some)} of its {len(chosen)} cells")
    return lines


def console(lines: Sequence[str]) -> str:
    """Commands as they stand above a table."""
    return "\n".join(["```console", *(f"$ {line}" for line in lines), "```"])


def not_run(name: str, cells: Cells, part: str | None = None, data: Sequence[str] = ()) -> str:
    """A sentence about the study's cells (those on `data`, if any is named) that are not among these; else nothing."""
    planned = [cell for cell in _planned(name, part) if not data or cell.labels.get("data") in data]
    known = {place(cell["labels"]) for cell in cells}
    missing = [cell for cell in planned if place(cell.labels) not in known]
    if not missing:
        return ""
    said, rest = [], missing
    for axis in _axes(planned):
        for label in dict.fromkeys(cell.labels[axis] for cell in rest if axis in cell.labels):
            of_it = [cell for cell in planned if cell.labels.get(axis) == label]
            if all(place(cell.labels) not in known for cell in of_it):
                said.append(f"{axis} {label}")
                rest = [cell for cell in rest if cell.labels.get(axis) != label]
    if rest:
        only = _only(planned, [{"labels": cell.labels} for cell in rest])
        names = ", ".join(f"{axis} {' | '.join(labels)}" for axis, labels in only.items())
        said.append(names if len(kept(planned, only)) == len(rest) else f"{len(rest)}{' other' if said else ''} cells")
    count = f"{len(missing)} of {len(planned)} cells"
    named = "" if said == [f"{len(missing)} cells"] else "; ".join(said)
    return f"Not run yet: {named} ({count})." if named else f"Not run yet: {count}."


def to_run(name: str, cells: Cells) -> list[str]:
    """What would complete a study on a GPU: cells that are missing or have fewer seeds than the recipe's, and those that lack
    what claims ask of them."""
    planned, known = _planned(name, None), {place(cell["labels"]): cell for cell in cells}
    short = [c for c in planned if not set(c.recipe.seeds) <= set(known.get(place(c.labels), {}).get("seeds", ()))]
    older = [c for c in planned if c not in short and _lacks(name, known[place(c.labels)])]
    return [*_lines(name, planned, short, f"{ON_GPU} --fill"), *_lines(name, planned, older, ON_GPU)]


def _lacks(name: str, cell: Mapping[str, Any]) -> bool:
    asked = (*ASKED.get(name, ()), *(("promise_error",) if (name, cell["method"]) == ("table1", "feduca") else ()))
    return any(cell.get(key) is None for key in asked)


def _lines(name: str, planned: Sequence[Cell], some: Sequence[Cell], words: str) -> list[str]:
    """A command for some cells; where it would run others, too, one for those of each label on the study's first axis."""
    if not some:
        return []
    only = _only(planned, [{"labels": cell.labels} for cell in some])
    first = _axes(planned)[0]
    labels = dict.fromkeys(cell.labels.get(first, "") for cell in some)
    if len(kept(planned, only)) > len(some) and len(labels) > 1:
        parts = [[cell for cell in some if cell.labels.get(first, "") == label] for label in labels]
        return [line for part in parts for line in _lines(name, planned, part, words)]
    keep = ["--only " + shlex.quote(f"{axis}={'|'.join(chosen)}") for axis, chosen in only.items()]
    return [" ".join(word for word in ("feduca reproduce", name, *keep, words) if word)]


@functools.cache
def _planned(name: str, part: str | None) -> list[Cell]:
    return plan(name, keep={"study": [part]} if part else None)


def _axes(planned: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(axis for cell in planned for axis in cell.labels))


def _only(planned: Sequence[Cell], cells: Cells) -> dict[str, list[str]]:
    """The axes of which these cells have only some labels."""
    found = {}
    for axis in _axes(planned):
        everything = list(dict.fromkeys(cell.labels[axis] for cell in planned if axis in cell.labels))
        there = {cell["labels"].get(axis) for cell in cells}
        if len(there & set(everything)) < len(everything) and None not in there:
            found[axis] = [label for label in everything if label in there]
            planned = [cell for cell in planned if cell.labels.get(axis) in there]
    return found
