"""What is wrong with a recipe, in one line: what it was, the value seen, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from feduca import mechanisms
from feduca.errors import shown
from feduca.recipes.tables import Table


def options_model(name: str) -> type[BaseModel]:
    """A pydantic model of a mechanism's options; those wired to other tables are not the user's to set there."""
    cls = mechanisms.registry[name]
    hints = get_type_hints(cls)
    options: dict[str, Any] = {
        f.name: (hints[f.name], ... if f.default is MISSING else f.default)
        for f in fields(cls)
        if "wired" not in f.metadata
    }
    return create_model(f"{name}_options", __base__=Table, **options)


def sentence(error: ValidationError, recipe: type[BaseModel]) -> str:
    """The first complaint in one line: what was wrong, the value seen, what to do."""
    errors = error.errors()
    first, title = errors[0], error.title
    prefix = "mechanism." if title.endswith("_options") else ""
    key = prefix + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known, last = _known_keys(title, first["loc"], recipe), str(first["loc"][-1])
        text = f"unknown key {shown(key)}; {nearest(last, known)}"
        if prefix and (others := [name for name in mechanisms.registry if last in options_model(name).model_fields]):
            mine, whose = title.removesuffix("_options"), ", ".join(others[:6]) + " ..." * (len(others) > 6)
            text = f"{key} is an option of {whose}, not of {mine}, which has {', '.join(known) or 'none'}"
    elif first["type"] == "value_error":
        text = f"{key} is {shown(first['input'])}: {first['msg'].removeprefix('Value error, ')}"
    elif first["type"] == "model_type" and first.get("ctx", {}).get("class_name") in ("AxisValue", "CompareRow"):
        text = (
            f'{key} is {shown(first["input"])}: an entry looks like {{ label = "slow", set = {{ "local.lr" = 0.05 }} }}'
        )
    elif first["type"].startswith("bool_"):
        text = f"{key} is {shown(first['input'])}: it should be true or false"
    else:
        advice = first["msg"][0].lower() + first["msg"][1:]
        text = f"{key} is {shown(first['input'])}: {advice.replace('input should', 'it should')}"
    return text if len(errors) == 1 else f"{text} (and {len(errors) - 1} more)"


def _known_keys(title: str, loc: Sequence[Any], recipe: type[BaseModel]) -> Sequence[str]:
    model: Any = options_model(title.removesuffix("_options")) if title.endswith("_options") else recipe
    for part in loc[:-1]:
        if isinstance(part, str) and model is not None:  # a number is a place in a list
            field = model.model_fields.get(part)
            model = None if field is None else _table_in(field.annotation)
    return [] if model is None else list(model.model_fields)


def _table_in(annotation: Any) -> Any:
    """The table that an annotation such as `list[Row]` or `Table | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table_in(inner)) is not None), None)


def nearest(word: str, known: Any, otherwise: str | None = None) -> str:
    near = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"
