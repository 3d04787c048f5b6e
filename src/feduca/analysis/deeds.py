"""The audit of conduct over a table of federations, cell by cell: `feduca audit RECIPE --conduct --results FOLDER`.

Every cell of the recipe's table is audited as one method, and its figures take their place in FOLDER/NAME.json at once: a study
may be done in several sittings, by several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca.analysis.incentives import DEEDS, Tell, incentives
from feduca.errors import InputError
from feduca.recipes.schema import Recipe
from feduca.runs.directory import held, write_whole
from feduca.studies import summary_file
from feduca.studies.cells import cells


def study(
    recipe: Recipe,
    results: Path,
    keep: Mapping[str, Sequence[str]],
    about: Mapping[str, Any],
    seeds: Sequence[int],
    deviators: int | None,
    deeds: Sequence[str] = DEEDS,
    tell: Tell = lambda line: None,
    lockstep: int = 1,
) -> list[dict[str, Any]]:
    """The figures of every cell that `keep` leaves, each with `about` (its command, its commit)."""
    path, done = results / f"{recipe.name}.json", []
    order = {summary_file.place(cell.labels): k for k, cell in enumerate(cells(recipe))}
    results.mkdir(parents=True, exist_ok=True)
    for cell in cells(recipe, keep):
        label = ", ".join(cell.labels.values())
        found = incentives(cell.recipe, seeds, deviators, {label: cell.recipe}, deeds, tell, lockstep)
        one = {"labels": dict(cell.labels), **found, "honest": found["honest"][0], **about}
        done.append(one)
        with held(results):
            kept = summary_file.read(path) | {summary_file.place(cell.labels): one}
            write_whole(path, summary_file.written(summary_file.in_order(kept.values(), order)))
    return done


def chosen(names: str | None) -> tuple[str, ...]:
    """The deeds that a list with commas names; all without one."""
    found = DEEDS if names is None else tuple(name.strip() for name in names.split(","))
    if strangers := [name for name in found if name not in DEEDS]:
        raise InputError(f"--deeds names {strangers[0]!r}; choose among {', '.join(DEEDS)}")
    return found
