"""Studies: a recipe with axes stands for a table of runs, one cell for every combination of the axes' values.

    [[axes]]
    name = "method"
    values = [{ label = "fedavg", set = { "mechanism.name" = "fedavg" } }, ...]

Settings of later axes win over earlier ones. A recipe with `compare` rows is a study with one axis, `method`; beside axes, such
rows come first and stand outside the table, on its first axis alone (a ceiling, say).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from feduca.errors import ConfigError
from feduca.recipes.schema import Recipe


@dataclass(frozen=True)
class Cell:
    """One place in a table: where it stands (`labels`, by axis) and what is run there, once per seed."""

    labels: Mapping[str, str]
    recipe: Recipe
    changed: Mapping[str, Any] = field(default_factory=dict)  # what the command line changed of the experiment

    @property
    def label(self) -> str:
        return ", ".join(self.labels.values())

    def of_seed(self, seed: int) -> Self:
        """One of its runs as a cell; where there are several, its label says which."""
        which = {} if len(self.recipe.seeds) == 1 else {"seed": f"seed {seed}"}
        return replace(self, labels={**self.labels, **which}, recipe=self.recipe.with_settings({"seeds": [seed]}))


def set_by(recipe: Recipe, key: str) -> list[tuple[str, str]]:
    """Who in a table (an axis, a row) sets the dotted `key`, something in it or a table that holds it, and what they set."""
    values = [(f"the axis {axis.name!r}", value.set) for axis in recipe.axes for value in axis.values]
    rows = [(f"the row {row.label!r}", row.set) for row in recipe.compare]
    theirs = [(who, one) for who, changes in values + rows for one in changes]
    return [(who, one) for who, one in theirs if f"{one}.".startswith(f"{key}.") or f"{key}.".startswith(f"{one}.")]


def relabelled(before: Recipe, after: Recipe, changes: Mapping[str, str]) -> list[Cell]:
    """The rows of a comparison whose entries `changes` (`key=value`, by key) has changed, said in the labels that are about them.

    Rows are about what some of them set: where one of these entries has another value than in the recipe `before`, a label that
    leaves it out would be untrue. Cells of a table with axes have no such room, and nothing of theirs is changed.
    """
    rows = cells(after)
    own = any(set_by(after, "mechanism.name"))  # rows have mechanisms of their own, whose options reach some of them
    about = {k: text for k, text in changes.items() if set_by(after, k) or (own and k.startswith("mechanism."))}
    unchanged = cells(before) if about else []
    if len(rows) != len(unchanged):
        return rows  # nothing that a row is about; or the rows themselves are others
    said = [
        [text for key, text in about.items() if _entry(row.recipe, key) != _entry(old.recipe, key)]
        for row, old in zip(rows, unchanged)
    ]
    if after.axes and any(said):
        place = next(k for k, texts in enumerate(said) if texts)
        raise ConfigError(
            f"--set {said[place][0]}: a table's axis is about it, and {rows[place].label!r} would not be what it says; use"
            " another label, in a recipe of your own"
        )
    return [replace(row, labels={"method": ", ".join([row.label, *t])}) if t else row for row, t in zip(rows, said)]


def unreached(rows: Sequence[Cell], key: str, value: Any) -> list[str]:
    """Labels of rows with another mechanism than the recipe's, which starts from its own defaults and not from what was set."""
    if not key.startswith("mechanism.") or key == "mechanism.name":
        return []
    return [row.label for row in rows if _entry(row.recipe, key) != value]


def _entry(recipe: Recipe, key: str) -> Any:
    """What a recipe has at a dotted key; None where there is no such thing."""
    here: Any = recipe.model_dump()
    for part in key.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def one_of(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """One run of a table: `settings` over what the recipe says for all; of its offer, what the run's kind has a use for."""
    offer = recipe.offer.used_by(settings.get("offer.kind", recipe.offer.kind))
    base = recipe.model_copy(update={"smoke": {}, "also": [], "offer": offer})
    if not settings:
        return base.single()
    return base.model_copy(update={"compare": [], "axes": []}).with_settings(settings)


def cells(recipe: Recipe, keep: Mapping[str, Sequence[str]] | None = None, smoke: bool = False) -> list[Cell]:
    """All cells, validated before anything runs.

    `keep` restricts an axis to some of its labels; `smoke` lays the recipe's small version over every cell, but for what an
    axis is about.
    """
    if not recipe.axes:
        rows = [(row.label, row.set) for row in recipe.compare] or [(recipe.mechanism["name"], {})]
        axes = [("method", rows)]
    else:
        axes = [(axis.name, [(value.label, value.set) for value in axis.values]) for axis in recipe.axes]
    chosen = [[v for v in values if v[0] in (keep or {}).get(name, [v[0]])] for name, values in axes]
    names = [name for name, _ in axes]

    def cell(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Cell:
        return Cell(labels, one_of(recipe, settings))

    small = {key: value for key, value in recipe.smoke.items() if key not in _swept(recipe)} if smoke else {}
    found = []
    if recipe.axes and not keep:
        outside = [(row.label, {**row.set, **small}) for row in recipe.compare]
        found = [cell({names[0]: label}, changes) for label, changes in outside]
    for combination in itertools.product(*chosen):
        settings: dict[str, Any] = {}
        for _, changes in combination:
            settings.update(changes)
        settings.update(small)
        found.append(cell(dict(zip(names, (label for label, _ in combination))), settings))
    return found


def _swept(recipe: Recipe) -> set[str]:
    """What axes are about: the one entry that all values of an axis set, and nothing beside it."""
    kinds = [{tuple(value.set) for value in axis.values} for axis in recipe.axes]
    return {key for kind in kinds if len(kind) == 1 for keys in kind if len(keys) == 1 for key in keys}
