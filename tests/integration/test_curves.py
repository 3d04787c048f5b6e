"""Kept utility curves: what the summary shows is what was measured, and its R^2 is the recorded one."""

from __future__ import annotations

import numpy as np
import pytest

import feduca
from feduca.core.utility import family, r_squared
from feduca.recipes import schema as config
from feduca.runs.directory import load
from feduca.studies.cells import Cell
from feduca.studies.curves import curves, fits
from feduca.studies.execute import reproduce


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("concavity")
    (cell,) = reproduce("concavity", smoke=True, keep={"data": ["cifar10"]}, out=out, results=out)
    (where,) = [path.parent for path in out.rglob("clients.jsonl")]
    return cell, load(where)


def test_the_curve_drawn_is_the_familys_and_its_r2_the_recorded_one(study):
    cell, run = study
    kept = cell["curves"]
    grid = np.array(kept["grid"])
    assert len(grid) == 21
    assert {shown["which"] for shown in kept["shown"]} == {"best", "median", "worst"}
    assert {shown["round"] for shown in kept["shown"]} == {1, 2, 3}
    fit = family(kept["family"])
    for shown in kept["shown"]:
        record = run.clients[shown["round"] - 1]
        points, k = record["utility_points"], shown["silo"]
        assert shown["zeta"] == record["zeta"][k]
        assert shown["utility"] == points["values"][k][-21:]
        assert shown["r2"] == record["r2"][k]
        again = r_squared(fit, np.array([shown["zeta"]]), grid, np.array([shown["utility"]]))
        assert again[0] == pytest.approx(shown["r2"], abs=1e-9)
        a, b, c = shown["zeta"]
        drawn = fit.value(np.array([shown["zeta"]]), grid[:, None])[:, 0]
        assert drawn == pytest.approx(-a * grid**2 + b * grid + c)
        loss = r_squared(fit, np.array([shown["loss_zeta"]]), grid, -np.array([shown["loss"]]))
        assert loss[0] == pytest.approx(shown["loss_r2"], abs=1e-3)  # losses are kept to six digits


def test_representatives_are_the_best_the_median_and_the_worst(study):
    cell, run = study
    for round in (1, 2, 3):
        defined = sorted(value for value in run.clients[round - 1]["r2"] if value is not None)
        shown = {s["which"]: s["r2"] for s in cell["curves"]["shown"] if s["round"] == round}
        assert shown["best"] == defined[-1]
        assert shown["worst"] == defined[0]
        assert shown.get("median", defined[0]) == defined[(len(defined) - 1) // 2]


def test_the_distribution_counts_every_fit(study):
    cell, run = study
    values = [value for record in run.clients for value in record["r2"]]
    known = [value for value in values if value is not None]
    found = cell["fits"]
    assert found["fits"] == len(values) == 30
    assert found["flat"] == pytest.approx(1 - len(known) / len(values))
    assert found["median"] == pytest.approx(np.median(known))
    assert found["above"] == pytest.approx(np.mean([value > 0.8 for value in known]))
    assert found["straight"] == pytest.approx(
        np.mean([r["zeta"][k][0] <= 1e-4 for r in run.clients for k in range(10)])
    )


def test_nothing_is_kept_unless_asked_for():
    plain = feduca.run("quickstart", {"utility.record_points": False, "utility.check_every": 2}, rounds=3)
    assert all(record["utility_points"] is None for record in plain.clients)
    assert curves(plain) is None
    assert fits([plain])["fits"] == 20  # R^2 has a distribution all the same
    kept = feduca.run(
        "quickstart", {"utility.record_points": False, "utility.check_every": 2, "utility.keep_curves": True}, rounds=3
    )
    assert [record["utility_points"] is None for record in kept.clients] == [False, True, False]
    assert [record["zeta"] for record in kept.clients] == [record["zeta"] for record in plain.clients]


def test_the_option_changes_no_name_while_it_is_off():
    off = config.load("quickstart")
    assert off.hash() == config.load("quickstart", {"utility.keep_curves": False}).hash()
    assert off.hash() != config.load("quickstart", {"utility.keep_curves": True}).hash()
    assert Cell({}, config.load("concavity")).recipe.utility.keep_curves
