"""Changing a recipe's tree: tables laid over tables, dotted settings, and what of it does not apply."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any

from feduca.errors import ConfigError, printable, shown
from feduca.recipes.folders import NATURAL, entries, folder_there, is_folder
from feduca.recipes.tables import CLASSWISE, DEALT, FOLDERS, NATURAL_SHARES, TaskTable

DEEPEST, LONGEST, LARGEST = 16, 4096, 1e100  # of nesting, of a word (the longest path), of a number


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` of `--set`; the value is TOML, and a bare word is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set needs key=value, got {shown(text)}; for instance --set mechanism.delta=1.0")
    try:
        return key.strip(), parsed(f"v = {value}", f"--set {key.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parsed(text: str, source: str) -> dict[str, Any]:
    """TOML as a tree; what Python itself cannot read of it is refused, what is not TOML is the caller's to word."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ConfigError(
            f"{source} is nested hundreds of levels deep; a recipe's tables hold {DEEPEST} at most"
        ) from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise ConfigError(f"{source} holds an integer of thousands of digits; integers have 64 bits") from None


def updated(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `tree` with dotted keys set; another mechanism or model starts from its own defaults."""
    out = _copied(tree)
    mechanism, task = out.get("mechanism", {}), out.get("task", {})
    if isinstance(mechanism, dict) and settings.get("mechanism.name") not in (None, mechanism.get("name", "feduca")):
        out["mechanism"] = {}
    if isinstance(task, dict):
        out["task"] = kept(task, settings.get("task.model"), settings.get("task.data"))
    for dotted, value in settings.items():
        *path, last = dotted.split(".")
        if len(path) > DEEPEST:
            raise ConfigError(f"unknown key {shown(dotted)}; no table of a recipe is nested {len(path)} levels deep")
        here = out
        for part in path:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise ConfigError(f"unknown key {shown(dotted)}; {shown(part)} is a value, not a table")
        here[last] = _copied(value, dotted)
    return out


def _copied(value: Any, key: str = "", depth: int = 0) -> Any:
    """A copy of what a recipe may hold; whatever no table could mean is refused here, before anybody reckons with it."""
    if depth > DEEPEST:
        raise ConfigError(f"{printable(key, 120)} is nested more than {DEEPEST} levels deep; no table of a recipe is")
    if isinstance(value, Mapping):
        strange = next((k for k in value if not isinstance(k, str)), None)
        if strange is not None:
            raise ConfigError(f"{shown(strange)} cannot be the name of an entry; use text")
        return {k: _copied(v, f"{key}.{k}" if key else k, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(v, f"{key}.{i}", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"{printable(key, 120)} is an integer of {value.bit_length()} bits; give one below 2^63 = 9.2e18"
        )
    if isinstance(value, float) and math.isfinite(value) and abs(value) > LARGEST:
        raise ConfigError(
            f"{printable(key, 120)} is {value!r}; numbers are at most {LARGEST:g}, so that they can be squared"
        )
    if isinstance(value, str) and len(value) > LONGEST:
        raise ConfigError(f"{printable(key, 120)} is text of {len(value)} characters; use at most {LONGEST}")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{printable(key, 120)} is {shown(value)}; text may hold no NUL characters")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{printable(key, 120)} is {shown(value)}; a recipe holds numbers, words, lists and tables")


def settled(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` without what does not apply to it; where `settings` ask for such a thing, that is refused."""
    task = tree.get("task", {})
    if not isinstance(task, dict) or not isinstance(data := task.get("data", "digits"), str):
        return tree  # which the schema refuses
    if tree.get("own") is not None:
        clients = {"clients": task["clients"]} if "clients" in task else {}
        return {**{key: value for key, value in tree.items() if key != "engine"}, "task": clients}
    if not is_folder(data):
        for key in FOLDERS:
            if task.get(key, TaskTable.model_fields[key].default) != TaskTable.model_fields[key].default:
                raise ConfigError(
                    f"task.{key} is {task[key]!r} with task.data {data!r}: it is for a folder of your own; leave it out"
                )
        return {**tree, "task": _natural(task, settings)} if data in NATURAL else _dealt(tree)
    for key in DEALT:
        if f"task.{key}" in settings:
            raise ConfigError(
                f"task.{key} is {task[key]!r} with task.data {data!r}: a folder's silos have their data already; leave it out"
            )
    task = {key: value for key, value in task.items() if key not in DEALT}
    if folder_there(data):
        there = len(entries(data)[0])
        if settings.get("task.clients", there) != there:
            raise ConfigError(f"task.clients is {task['clients']}, but {data} holds {there} silos: leave it out")
        task["clients"] = there
    return {**tree, "task": task}


def _natural(task: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`[task]` of a data set whose silos nature dealt: their number and sizes are not to be chosen."""
    data = task["data"]
    for key in CLASSWISE:
        if f"task.{key}" in settings:
            raise ConfigError(
                f"task.{key} is {task[key]!r} with task.data {data!r}: its silos have their data already; leave it out"
            )
    there = NATURAL[data]
    if task.get("clients", there) != there:
        raise ConfigError(f"task.clients is {task['clients']}, but {data} has {there} silos: leave it out")
    return {**NATURAL_SHARES, **{key: value for key, value in task.items() if key not in CLASSWISE}, "clients": there}


def _dealt(tree: dict[str, Any]) -> dict[str, Any]:
    if tree.get("task", {}).get("pooled"):
        raise ConfigError(
            f"task.pooled is true with task.data {tree['task'].get('data', 'digits')!r}: it is for data with silos of their own,"
            f" {', '.join(NATURAL)}; leave it out"
        )
    return tree


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; lists and the mechanism of another name are replaced whole."""
    out = dict(below)
    for key, value in above.items():
        under = below.get(key)
        named = under.get("name") if isinstance(under, Mapping) else None
        if key == "mechanism" and isinstance(value, Mapping) and value.get("name") not in (None, named):
            out[key] = value
        elif key == "task" and isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            out[key] = {**kept(below[key], value.get("model"), value.get("data")), **value}
        elif isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            out[key] = over(below[key], value)
        else:
            out[key] = value
    return out


def kept(task: Mapping[str, Any], model: Any, data: Any = None) -> dict[str, Any]:
    """What of `[task]` holds for this model and these data (None: the same), too.

    Another model has layers and weights of its own. Silos that nature dealt have their number, and shares that go with it.
    """
    another = model not in (None, task.get("model", TaskTable.model_fields["model"].default))
    before = task.get("data", TaskTable.model_fields["data"].default)
    unused = {"hidden", "weights"} if another else set()
    if isinstance(data, str) and data != before and {data, before} & NATURAL.keys():
        unused |= {"clients"} if {data, before} <= NATURAL.keys() else {"clients", "pooled", *DEALT}
    return {key: value for key, value in task.items() if key not in unused}
