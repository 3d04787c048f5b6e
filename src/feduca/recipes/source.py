"""Recipes as files: the embedded ones, and TOML files that may extend them."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from feduca.errors import ConfigError, shown
from feduca.recipes.complaints import nearest
from feduca.recipes.settings import over, parsed


def recipes() -> dict[str, str]:
    """The embedded recipes and what each is for (the comment on a file's first line)."""
    found = {}
    for file in sorted(resources.files("feduca.recipes").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            first = file.read_text(encoding="utf-8").splitlines()[0]
            found[file.name.removesuffix(".toml")] = first.removeprefix("#").strip()
    return found


def read(source: str) -> tuple[dict[str, Any], str]:
    embedded = recipes()
    if source in embedded:
        text, name = resources.files("feduca.recipes").joinpath(f"{source}.toml").read_text(encoding="utf-8"), source
    else:
        path = Path(source)
        if not _is_file(path):
            near = nearest(source, embedded, "`feduca list` names the recipes")
            raise ConfigError(f"there is no recipe or TOML file {shown(source)}; {near}")
        try:
            text, name = path.read_text(encoding="utf-8"), path.stem
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}; give a file you may read") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source} cannot be read: {error}; write it in UTF-8") from None
    try:
        tree = parsed(text, source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    parent = tree.pop("extends", None)
    if parent is None:
        return tree, name
    if not isinstance(parent, str) or parent not in embedded:
        near = nearest(str(parent), embedded)
        raise ConfigError(f"{source} extends {shown(parent)}, which is no built-in recipe; {near}")
    below = read(parent)[0]
    if source not in embedded:
        below.pop("name", None)  # a file of the user's is called after itself; its runs are not its parent's
    return over(below, tree), name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for any file, or with a zero in it
        return False
