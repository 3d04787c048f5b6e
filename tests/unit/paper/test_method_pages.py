"""Every method has a page that names all its options, and every number on a page is what a committed summary says."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path

import pytest

from feduca.mechanisms import registry

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "methods"
PAGE_OF = {"uniform": "controls", "random": "controls"}
OWN = sorted(registry._own)


@pytest.mark.parametrize("name", OWN)
def test_every_method_has_a_page_with_its_options(name):
    text = (PAGES / f"{PAGE_OF.get(name, name)}.md").read_text()
    assert "## Formula" in text
    for option in fields(registry[name]):
        if "wired" not in option.metadata:
            assert f"| `{option.name}` |" in text, f"{name}: option {option.name} is not on its page"
    assert "<!-- table: " in text
    assert f"{PAGE_OF.get(name, name)}.md" in (PAGES / "index.md").read_text()


def pages():
    spec = importlib.util.spec_from_file_location("method_pages", ROOT / "benchmarks" / "method_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_the_summaries_say():
    assert pages().behind() == []


def test_a_changed_number_is_noticed(tmp_path, monkeypatch):
    module = pages()
    page = PAGES / "fedprox.md"
    lines = page.read_text().splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if line.startswith("| global | Eq. 1 |"))
    lines[row] = "| global | Eq. 1 | 99.9 | 99.9 | 99.9 | 99.9 |\n"
    assert module.rewritten("".join(lines)) == page.read_text()


def test_summaries_carry_the_command_that_made_them():
    module = pages()
    for name, command in module.COMMANDS.items():
        found = json.loads((ROOT / "results" / f"{name}.json").read_text())
        assert found["command"] == command
