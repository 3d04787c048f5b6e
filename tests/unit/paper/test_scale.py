"""The tables of docs/scale.md: made from a summary, and those of the committed one where there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale  # noqa: E402
from tables import replace_tables  # noqa: E402


def case(sizes, silos, asked, ms):
    methods = {name: {"cpu": ms / 1000, "wall": 2 * ms / 1000} for name in scale.METHODS}
    return {"sizes": sizes, "silos": silos, "asked": asked, **methods, "megabytes": 12}


FOUND = {
    "federations": [case("equal", 100, 100, 8), case("equal", 10_000, 100, 9), {**case("equal", 10_000, 10_000, 1)}],
    "large": {"disk": {"cpu": 0.5, "wall": 1, "parameters": 100_184, "megabytes": 400.4, "rounds": 12}},
    "study": {"1": {"wall": 60.0}, "2": {"wall": 40.0}, "4": {"longer_than": 240}},
    "peers": {
        "pfl": {"silos": 1000, "theirs": {"cpu": 1.0, "wall": 3.0}, "ours": {"cpu": 0.1, "wall": 0.2}},
        "flower": {"left_out": "ray is not installed"},
    },
}


def test_tables_say_what_the_summary_says(tmp_path):
    found = {**FOUND, "federations": [*FOUND["federations"][:2], {**FOUND["federations"][2], "longer_than": 240.0}]}
    page = tmp_path / "scale.md"
    page.write_text((ROOT / "docs/scale.md").read_text())
    replace_tables(page, scale.tables(found))
    text = page.read_text()
    assert "| equal | 10,000 | 100 | 9.0 | 9.0 | 9.0 | 1.12 | 12 |" in text
    assert "| equal | 10,000 | 10,000 | over 240 s |" in text
    assert "| disk | 100,184 | 500 | 400 | 12 |" in text
    assert "| pfl | 1,000 | 10.0 (cpu), 15.0 (wall) |" in text
    assert "| flower |  | left out: ray is not installed |" in text
    assert "| 2 | 40.0 | 1.50 |" in text
    assert "| 4 |" not in text


def test_the_page_has_the_committed_figures(tmp_path):
    if not scale.RESULT.exists():
        assert "No result is committed yet" in scale.DOCUMENT.read_text()
        pytest.skip("benchmarks/results/scale.json is made by `python benchmarks/scale.py`")
    page = tmp_path / "scale.md"
    page.write_text(scale.DOCUMENT.read_text())
    replace_tables(page, scale.tables(json.loads(scale.RESULT.read_text())))
    assert page.read_text() == scale.DOCUMENT.read_text()


def test_sizes_are_a_hundred_times_apart():
    counts = scale.counts("log-normal", 10_000)
    assert (counts.min(), counts.max()) == (2, 200)
    assert set(scale.counts("equal", 5)) == {20}
