"""docs/incentives.md says what the committed summary says, and the study is what the page calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feduca.analysis.incentives import DEEDS
from feduca.recipes.schema import load
from feduca.studies.cells import cells
from feduca.studies.summary_file import place
from paper import incentives_page

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "incentives.md").read_text(encoding="utf-8")
FOUND = json.loads((ROOT / "results" / "incentives.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_the_summary_says():
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in incentives_page.PAGES]
    for page in pages:
        assert page == incentives_page.filled(page, lambda name: incentives_page.block(name, ROOT / "results"))
    assert sum(page.count("<!-- table ") for page in pages) == len({**incentives_page.BLOCKS, **incentives_page.APART})


def test_every_deed_has_its_words_on_the_page():
    deeds = PAGE[PAGE.index("## The deeds") : PAGE.index("## What was asked")]
    assert all(f"`{deed}`" in deeds for deed in DEEDS)


def test_the_summary_holds_cells_of_the_study_and_no_others():
    plan = {place(cell.labels): cell for cell in cells(load("incentives"))}
    assert len(plan) == 7 * 4 * 2
    for one in FOUND:
        cell = plan[place(one["labels"])]
        assert (one["rounds"], one["silos"]) == (cell.recipe.rounds, cell.recipe.task.clients)
        assert ("honest_limited" in one["honest"]) == (one["labels"]["standing"] == "on")


TOO_MANY = {  # judged by sketches of 2,048 numbers, which were too short
    "fmnist": {"FedUCA, Eq. 2"},
    "cifar10": {"FedAvg, everybody in", "best mixture from consensus", "stack, everybody trains"},
}
NAMED = {"fmnist": "Fashion-MNIST, FedUCA", "cifar10": "CIFAR-10"}


@pytest.mark.parametrize("data", dict.fromkeys(one["labels"]["data"] for one in FOUND))
def test_honest_silos_keep_their_standing(data):
    """The rate that must be small, where nobody deviates. The page names the cells where it is not."""
    rates = {
        one["labels"]["method"]: one["honest"]["honest_limited"]
        for one in FOUND
        if one["labels"]["data"] == data and one["labels"]["standing"] == "on"
    }
    large = {method: rate for method, rate in rates.items() if rate > 0.01}
    assert set(large) == TOO_MANY.get(data, set()), "where it is small now, take it out of here and off the page"
    if large:
        assert f"| {NAMED[data]} | {100 * max(large.values()):.1f} |" in PAGE


def test_before_a_study_is_run_the_page_says_so(tmp_path):
    text = "<!-- table incentives:deeds -->\nold\n<!-- end -->"
    assert "Not run yet" in incentives_page.filled(text, lambda name: incentives_page.block(name, tmp_path))
