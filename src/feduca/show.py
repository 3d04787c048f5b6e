"""`feduca show`: a recipe in full, as a TOML file that says the same."""

from __future__ import annotations

from typing import Any

import tomlkit
from pydantic import BaseModel

from feduca.config import Recipe


def text(recipe: Recipe) -> str:
    """Every entry with its value. TOML has no word for "unset": such entries are comments that say what it means."""
    tree = recipe.model_dump(exclude_none=True)
    tree["mechanism"] = {key: value for key, value in tree["mechanism"].items() if value is not None}
    document = tomlkit.item(tree)
    for name in Recipe.model_fields:
        for line in _unset(getattr(recipe, name)):
            table: Any = document[name]
            table.add(tomlkit.comment(line))
    return tomlkit.dumps(document).rstrip()


def _unset(table: Any) -> list[str]:
    if isinstance(table, BaseModel):
        fields = type(table).model_fields
        return [f"{key} is unset: {fields[key].description}" for key in fields if getattr(table, key) is None]
    if isinstance(table, dict):  # a mechanism: its page says what it then does
        return [f"{key} is unset: see the method's page" for key, value in table.items() if value is None]
    return []
