"""The house stays one a stranger finds a way in: few rooms at the top, small files, short functions, no pointers to nowhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "src" / "feduca"
FILES = sorted(HOUSE.rglob("*.py"))
BESIDE = [path for room in ("paper", "benchmarks", "examples") for path in sorted((ROOT / room).rglob("*.py"))]
MOST_AT_THE_TOP, MOST_LINES, LONGEST = 8, 500, 120


def test_few_modules_stand_at_the_top():
    assert len(list(HOUSE.glob("*.py"))) <= MOST_AT_THE_TOP


def test_files_are_small():
    everything = [*FILES, *BESIDE, *HOUSE.rglob("*.js"), *HOUSE.rglob("*.html"), *HOUSE.rglob("*.css")]
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in everything
    }
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_functions_are_short():
    long = {}
    for path in [*FILES, *BESIDE]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                if length > LONGEST:
                    long[f"{path.relative_to(ROOT).as_posix()}: {node.name}"] = length
    assert long == {}


def test_comments_point_to_places_that_a_reader_has():
    """Sections of a specification that is not in the repository, and numbers of readings without their page, are none."""
    lost = [
        f"{path.relative_to(HOUSE).as_posix()}: {found.group()}"
        for path in FILES
        for found in re.finditer(r"SPEC\b[^.\n]*|\breadings? \d+", path.read_text(encoding="utf-8"))
    ]
    assert lost == []
    places = re.compile(r"docs/[\w./-]+\.md")
    named = {(path.name, name) for path in FILES for name in places.findall(path.read_text(encoding="utf-8"))}
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []


def test_contributing_names_rooms_that_are_there():
    """Every path in CONTRIBUTING exists, as do the names it puts behind them (`file.py::name`)."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?)(?:::([\w.]+))?`", text)
    assert len(named) > 20
    for place, name in named:
        path = next((base / place for base in (HOUSE, ROOT) if (base / place).exists()), None)
        assert path is not None, f"CONTRIBUTING names {place}, which is not there"
        if name:
            assert re.search(rf"\b(def|class) {name}\b|^{name}\b", path.read_text(encoding="utf-8"), re.M), (
                place,
                name,
            )
