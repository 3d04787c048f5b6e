"""The table of hostile cases in docs/robustness.md is that of the committed counts, and nothing in it is wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUND = json.loads((ROOT / "benchmarks" / "results" / "hostile.json").read_text(encoding="utf-8"))


def test_nothing_is_silently_wrong():
    for part in ("folders", "settings"):
        counts = FOUND[part].values()
        assert sum(count["clear"] + count["right"] for count in counts) >= 1000
        assert all(count["wrong"] == count["traceback"] == count["hang"] == 0 for count in counts)
    assert {*FOUND["folders"], *FOUND["settings"]} >= {
        "resume", "load", "report", "watch", "export", "run", "compare", "solve",
    }  # fmt: skip


def test_the_page_shows_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = ROOT / "benchmarks" / "hostile.py"
    spec = importlib.util.spec_from_file_location("benchmarks_hostile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert FOUND["command"] in page
    for name, table in module.tables(FOUND).items():
        shown = re.search(rf"<!-- table: {name} -->\n(.*?)\n?<!-- end -->", page, re.DOTALL)
        assert shown is not None
        assert shown[1] == table
