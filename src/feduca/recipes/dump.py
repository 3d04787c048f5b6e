"""`feduca show`: a recipe in full, as a TOML file that says the same."""

from __future__ import annotations

from typing import Any

import tomlkit
from pydantic import BaseModel

from feduca.recipes.schema import Recipe
from feduca.runs.directory import without_none


def text(recipe: Recipe) -> str:
    """Every entry with its value. TOML has no word for "unset": such entries are comments that say what it means."""
    tree = recipe.model_dump()
    tables = {name: table for name, table in tree.items() if isinstance(table, dict)}
    document = tomlkit.item(without_none(tree))
    for name, entries in tables.items():
        table: Any = document[name]
        for key in (key for key, value in entries.items() if value is None):
            table.add(tomlkit.comment(f"{key} is unset: {_meaning(getattr(recipe, name), key)}"))
    return tomlkit.dumps(document).rstrip()


def _meaning(table: Any, key: str) -> str:
    said = type(table).model_fields[key].description if isinstance(table, BaseModel) else "see the method's page"
    return said or "see docs/options.md"
