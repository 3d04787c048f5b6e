"""docs/story.md and README's picture: drawn from the committed record, and the record is what the run still gives."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from paper.page import filled

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def clinics():
    spec = importlib.util.spec_from_file_location("clinics", DOCS / "clinics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def record():
    found = json.loads((DOCS / "images/clinics.json").read_text(encoding="utf-8"))
    assert found.pop("command") == "python docs/clinics.py"
    return found


def test_the_picture_and_the_tables_are_those_of_the_record(clinics, record):
    drawn = (DOCS / "images/who-is-in.svg").read_text(encoding="utf-8")
    assert drawn == clinics.picture(record)
    filled_squares = len(re.findall(r"M", "".join(re.findall(r'class="in" d="([^"]*)"', drawn))))
    assert filled_squares == sum(row.count("x") for one in record.values() for row in one["in"])
    story = (DOCS / "story.md").read_text(encoding="utf-8")
    assert filled(story, lambda name: clinics.block(record, name)) == story
    assert "prefers-color-scheme: dark" in drawn


def test_the_story_says_what_the_record_says(record):
    shared, own = (record[name] for name in ("one model for all", "its own mixture"))
    left = [silo for silo, there in enumerate(shared["in"][-1]) if there == "x"]
    gains = {name: [a - b for a, b in zip(one["deployed"], one["alone"])] for name, one in record.items()}
    assert left == [3]  # clinic 4
    assert min(gains["one model for all"]) == gains["one model for all"][3] < -0.05
    assert gains["its own mixture"][3] > 0
    assert own["in"][-1].count("x") >= 5
    assert (own["surely better"], own["surely worse"]) == (0, 0)
    assert gains["its own mixture"][4] == pytest.approx(-0.0125, abs=0.001)  # "a point lower than alone"
    assert shared["alone"] == own["alone"]


@pytest.mark.slow
def test_the_run_still_gives_the_record(clinics, record):
    for name, settings in clinics.OFFERS.items():
        again = clinics.recorded(settings)
        assert again["in"] == record[name]["in"]
        assert again["deployed"] == pytest.approx(record[name]["deployed"], abs=0.002)
