"""The recipe that we recommend: it says what it is, judges on untouched data, and goes on other data by one setting."""

from __future__ import annotations

import numpy as np

import feduca
from feduca.recipes.schema import load
from feduca.studies.cells import cells

SMALL = {"local.epochs": 1, "utility.check_every": 0}


def test_everybody_trains_along_and_is_offered_a_mixture_against_its_outside_option():
    recipe = load("tailored")
    assert recipe.mechanism["name"] == "fedavg"
    assert (recipe.participation.rule, recipe.participation.against) == ("always", "outside")
    assert (recipe.offer.kind, recipe.alone, recipe.share) == ("stack", True, "all")
    result = feduca.run("tailored", SMALL, rounds=3)
    assert result.participation == 1
    assert {"alone", "better_off", "gain_worst", "gain_worst_silo"} <= set(result.summary)
    assert result.summary["deployed"] > result.summary["alone"] - 0.05


def test_its_silos_learn_from_what_the_quickstarts_learn_from():
    """The test part is taken from what silos decide by: training data, and the model of all, stay the same."""
    forced = next(cell for cell in cells(load("tailored")) if cell.label == "forced in")
    theirs = next(cell for cell in cells(load("quickstart")) if cell.label == "everybody forced in")
    ours = [feduca.run(cell.recipe.with_settings(SMALL), rounds=2) for cell in (forced, theirs)]
    assert ours[0].theta is not None
    assert ours[1].theta is not None
    np.testing.assert_array_equal(ours[0].theta, ours[1].theta)
    assert ours[0].summary["accuracy"] == ours[1].summary["accuracy"]


def test_it_goes_on_other_data_by_one_setting_and_is_a_base_to_extend(tmp_path):
    (tmp_path / "sites.toml").write_text('extends = "tailored"\n[task]\ndata = "randhie"\n')
    for recipe in (load("tailored", {"task.data": "randhie"}), load(tmp_path / "sites.toml")):
        assert recipe.task.clients == 6
        assert recipe.offer.kind == "stack"
        assert recipe.task.test_share == 0.5
    result = feduca.run(tmp_path / "sites.toml", SMALL, rounds=2)
    assert len(result.silos) == 6
    assert "better_off" in result.summary


def test_its_table_puts_the_recommendation_beside_what_others_do():
    rows = cells(load("tailored"))
    assert [cell.label for cell in rows] == ["alone", "free to leave", "forced in", "FedUCA", "tailored"]
    assert all(cell.recipe.alone and cell.recipe.task.test_share == 0.5 for cell in rows)
    assert rows[-1].recipe.hash() == load("tailored").single().hash()
    for name in ("quickstart", "clinics"):  # there, too, it is a row
        last = cells(load(name))[-1].recipe
        assert (last.offer.kind, last.participation.against) == ("stack", "outside")
