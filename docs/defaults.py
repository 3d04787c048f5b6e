"""docs/defaults.md: every entry of a recipe with its default, what it takes and what it is for, from the schema itself.

    python docs/defaults.py

The words are the comments beside the fields in `recipes/tables.py` and `recipes/schema.py`; bounds are what validation holds.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from feduca.recipes.schema import Recipe

PAGE = Path(__file__).with_name("defaults.md")
HEAD = """# Every default

Every entry of a recipe, with its default and what it takes. `python docs/defaults.py` writes this page from the code, and a test
compares them. [Every option](options.md) says it in words. A mechanism's own options are on the [method pages](methods/index.md).
"""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table"}


def page() -> str:
    """The whole page: a table of the recipe itself, then one for each of its tables."""
    tables = {
        name: field.annotation
        for name, field in Recipe.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    parts = [HEAD, _table("Outside the tables", Recipe, set(tables))]
    parts += [_table(f"`[{name}]`", table) for name, table in tables.items()]
    return "\n".join(parts)


def _table(title: str, table: type[BaseModel], without: Collection[str] = ()) -> str:
    said = _comments(table)
    rows = [
        f"| `{name}` | {_default(field)} | {takes(field)} | {_cell(said.get(name, ''))} |"
        for name, field in table.model_fields.items()
        if name not in without
    ]
    return "\n".join([f"## {title}\n", "| entry | default | takes | what for |", "|---|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    """As a recipe would say it; what is unset is said in the schema's words."""
    if field.default is None:
        return f"unset: {field.description}" if field.description else "unset"
    if isinstance(field.default, dict):
        return f"`{{{', '.join(f'{key} = {json.dumps(value)}' for key, value in field.default.items())}}}`"
    return f"`{json.dumps(field.default)}`"


def takes(field: FieldInfo) -> str:
    """The choices or the kind of an entry, and its bounds."""
    kinds = _kinds(field.annotation)
    words = ", ".join(kinds) if len(kinds) > 2 else " or ".join(kinds)
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    bounds = [
        f"{word} {_number(getattr(rule, name))}"
        for rule in field.metadata
        for name, word in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([words, *bounds])


def _number(bound: float) -> str:
    return f"{bound:,.0f}".replace(",", " ") if bound >= 10_000 else f"{bound:g}"


def _kinds(annotation: Any) -> list[str]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return [f"`{json.dumps(choice)}`" for choice in inner]
    if origin is list:
        return ["a list"]
    if origin in KINDS or annotation in KINDS:
        return [KINDS[origin or annotation]]
    return [word for one in inner if one is not type(None) for word in _kinds(one)]


def _comments(table: type[BaseModel]) -> dict[str, str]:
    """The comments that stand beside the fields of a class."""
    source = textwrap.dedent(inspect.getsource(table))
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    return {
        part.target.id: " ".join(by_line[n] for n in range(part.lineno, (part.end_lineno or 0) + 1) if n in by_line)
        for part in body.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
