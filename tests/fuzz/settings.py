"""Hostile settings, as a person, a script or an enemy might give them: to a run, a comparison, a recipe's file, a program's file.

Every answer is one of: `clear` (refused in one line that says what was seen), `right` (done, and what came out holds together).
Anything else, a traceback, a hang, an answer that is not one, is an error of ours.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

import feduca
from feduca import program
from feduca.errors import FeducaError, InputError
from feduca.recipes import schema
from feduca.studies.cells import cells
from feduca.types import Allocation

SECONDS = 60  # after which an answer counts as none
SMALL = {"rounds": 1, "task.max_examples": 120, "task.clients": 3, "task.classes_per_client": 5, "local.epochs": 1}
TINY = {
    "rounds": 2,
    "task.clients": 6,
    "local.epochs": 3,
    "utility.check": 200,
    "mechanism.n_s": 50,
    "task.hidden": 5000,
}
HUGE = 10**4999

VALUES: tuple[Any, ...] = (
    HUGE, -HUGE, 2**63, 2**64, -(2**63) - 1, 2**63 - 1, -1, 0, 1, 2, 3, 100_000, 1_000_000, 10**15,
    1e308, -1e308, 1e-308, 5e-324, 1e12, 1e-12, 0.5, -0.0, math.inf, -math.inf, math.nan,
    True, False, None, "", " ", "x", "x" * 5000, "../" * 50 + "etc/passwd", "/" + "y" * 300, "a\0b", "\x1b[31mred\x1b[0m",
    "\r\n", "\u202egnp", "größe", "🤡", "feduca", "fedavg", "cpu", "cuda", "nan", "1e5", "true",
    [], {}, [[]], [{}], [99_999_999_999], [-1], [0.5], ["a", "b"], [None], [1] * 1000, {"a": {"b": {"c": 1}}}, {"name": []},
    {"label": "\x1b[2J", "set": {}}, [{"label": "a", "set": {"x.y": 1}}], object(), b"bytes", 3 + 4j, {1: 2}, float("1e100"),
)  # fmt: skip

MILD = (
    1,
    2,
    0.1,
    0.5,
    0.99,
    1e-6,
    True,
    False,
    "accuracy",
    "relative",
    "trimmed",
    "loss",
    "refuse",
    "guided",
    [0],
    [2],
    3,
)

MORE_KEYS = (
    "mechanism.n_s", "mechanism.delta", "mechanism.eps", "mechanism.mu", "mechanism.q", "mechanism.nope", "nope", "nope.nope",
    "", ".", "..", "task.", ".task", "a." * 5000 + "b", "rounds.x", "seeds.0", "compare.0.label", "\x1b[31m", "mechanism.name.x",
)  # fmt: skip


class Hang(Exception):
    """Nothing came for too long."""


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def keys() -> list[str]:
    """Every entry of every table of a recipe, and some that are none."""
    found = []
    for name, field in schema.Recipe.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        found += [name, *([] if inner is None else [f"{name}.{key}" for key in inner])]
    return [*found, *MORE_KEYS]


KEYS = keys()


def deep(rng: random.Random, depth: int) -> Any:
    """Lists and tables in one another."""
    value: Any = rng.choice((1, "x", None))
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def value(rng: random.Random) -> Any:
    kind = rng.random()
    return deep(rng, rng.choice((3, 20, 900, 3000))) if kind < 0.05 else rng.choice(MILD if kind < 0.35 else VALUES)


def fitting(rng: random.Random, key: str) -> Any:
    """A value of the kind that the entry takes: hostile by its size alone, or not at all."""
    table, _, name = key.partition(".")
    model: Any = schema.Recipe.model_fields.get(table)
    if name:
        model = getattr(getattr(model, "annotation", None), "model_fields", {}).get(name)
    kind = getattr(model, "annotation", None)
    words = [word for word in getattr(kind, "__args__", ()) if isinstance(word, str)]
    default = getattr(model, "default", None)
    if words:
        return rng.choice(words)
    if isinstance(default, bool):
        return rng.random() < 0.5
    return rng.choice([v for v in (*MILD, *VALUES) if type(v) is type(default)] or MILD)


def is_small(recipe: Any) -> bool:
    """Whether a run of this is over in a moment."""
    t, u = recipe.task, recipe.utility
    return (
        recipe.rounds <= TINY["rounds"]
        and recipe.own is None
        and t.clients <= TINY["task.clients"]
        and recipe.local.epochs <= TINY["local.epochs"]
        and u.check <= TINY["utility.check"]
        and recipe.mechanism.get("n_s", 1) <= TINY["mechanism.n_s"]
        and sum(t.hidden or ()) <= TINY["task.hidden"]
        and t.data == "digits"
        and t.model in ("mlp", "logistic")
    )


def assert_clear(error: FeducaError) -> None:
    said = str(error)
    assert said
    assert said.isprintable(), said
    assert len(said) < 2100, said


def a_run(rng: random.Random) -> str:
    """Settings of `--set` or of Python: what is accepted is run where it is small."""
    settings: dict[str, Any] = dict(SMALL)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        key = rng.choice(KEYS)
        settings[key] = fitting(rng, key) if rng.random() < 0.5 else value(rng)
    recipe = feduca.recipe("quickstart", settings).single()
    assert schema.Recipe.model_validate(recipe.model_dump()).hash() == recipe.hash()
    if not is_small(recipe):
        return "right"
    with tempfile.TemporaryDirectory() as out:
        result = feduca.run(recipe, out=out)
        row = result.row()
        assert row["rounds"] == recipe.rounds
        assert row["accuracy"] is None or 0 <= row["accuracy"] <= 1
        assert result.run_dir is not None
        assert feduca.run(recipe, out=out).row() == row  # its folder is read back
    return "right"


def a_comparison(rng: random.Random) -> str:
    """Rows and axes that set what they should not."""

    def entry() -> dict[str, Any]:
        return {rng.choice(KEYS): value(rng)} if rng.random() < 0.4 else {"local.lr": rng.choice((0.05, 0.1))}

    rows = [{"label": value(rng) if rng.random() < 0.2 else rng.choice("abc"), "set": entry()} for _ in range(2)]
    table: Any = {"compare": rows}
    if rng.random() < 0.5:
        table = {
            "axes": [
                {
                    "name": "x" if rng.random() < 0.8 else value(rng),
                    "values": rows if rng.random() < 0.8 else value(rng),
                }
            ]
        }
    recipe = feduca.recipe(SMALL_TREE | table, {rng.choice(KEYS): value(rng)} if rng.random() < 0.3 else {})
    for cell in cells(recipe):
        assert all(word.isprintable() for word in map(str, cell.labels.values() if hasattr(cell, "labels") else ()))
        cell.recipe.single().hash()
    return "right"


SMALL_TREE: dict[str, Any] = {
    "rounds": 1,
    "task": {"max_examples": 120, "clients": 3},
    "local": {"epochs": 1},
}


def as_toml(rng: random.Random, setting: Any) -> str:
    try:
        return tomlkit.item(setting).as_string()
    except Exception:  # what TOML cannot say is said in a way that is no TOML
        return "[" * rng.choice((3, 2000)) if rng.random() < 0.5 else "9" * rng.choice((30, 5000))


def a_file(rng: random.Random) -> str:
    """A recipe's file, its entries replaced by what does not belong there."""
    lines = ['extends = "quickstart"'] if rng.random() < 0.5 else []
    if rng.random() < 0.1:
        lines = [f"extends = {as_toml(rng, value(rng))}"]
    for _ in range(rng.choice((1, 2))):
        table, _, key = rng.choice(KEYS[: -len(MORE_KEYS)]).partition(".")
        what = as_toml(rng, value(rng))
        shape = rng.random()
        if shape < 0.2:
            lines.append(f"[{table}]")
        elif shape < 0.3:
            lines.append(f"[[{table}]]\nlabel = {what}")
        else:
            lines.append(f"[{table}]\n{key} = {what}" if key else f"{table} = {what}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        recipe = schema.load(path)
    recipe.hash()
    return "right"


def a_program(rng: random.Random) -> str:
    """A file for `feduca solve`: what is solved is feasible, and what is called optimal has a proof."""
    n, n_s = rng.choice((1, 2, 5)), rng.choice((1, 2, 4))
    content: dict[str, Any] = {
        "zeta": [[rng.uniform(0.1, 1), rng.random(), rng.random()] for _ in range(n)],
        "gamma": [rng.random() for _ in range(n)],
        "s": [1 / n_s] * n_s,
    }
    for _ in range(rng.choice((1, 1, 2))):
        key = rng.choice(
            ("zeta", "gamma", "s", "eps", "family", "selection", "objective", "solver", "beta", "tolerance")
        )
        if key in ("zeta", "gamma", "s") and rng.random() < 0.6:
            row = rng.randrange(len(content[key])) if isinstance(content[key], list) and content[key] else 0
            if isinstance(content[key], list) and content[key]:
                content[key][row] = value(rng)
        else:
            content[key] = value(rng)
    try:
        text = json.dumps(content)
    except (TypeError, ValueError, RecursionError):
        text = rng.choice(
            ("[" * 100_000, '{"zeta": ' + "9" * 5000 + ', "gamma": [1], "s": [1]}', "", "null", "{}", '{"a":')
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        path.write_text(text, encoding="utf-8")
        answer: Allocation = program.allocate(**program.read_problem(path))
    assert np.isfinite(answer.alpha).all()
    assert abs(answer.alpha.sum() - 1) < 1e-6
    assert answer.status == "optimal" or answer.reason
    json.dumps(program.to_json(answer), allow_nan=False)
    return "right"


SURFACES = (a_run, a_comparison, a_file, a_program)


def answer(seed: int) -> tuple[str, str]:
    """The surface that was tried and the answer it gave."""
    rng = random.Random(seed)
    surface = SURFACES[seed % len(SURFACES)]
    before = set(Path.cwd().iterdir())
    try:
        with no_longer_than(SECONDS), np.errstate(all="ignore"):
            found = surface(rng)
    except InputError as error:
        assert_clear(error)
        found = "clear"
    left = set(Path.cwd().iterdir()) - before
    for path in left:
        shutil.rmtree(path)
    assert not left, f"seed {seed} left {left}"
    return surface.__name__, found
