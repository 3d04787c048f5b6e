"""The audit of conduct where the server keeps standing: its figures by hand, and a table of federations cell by cell."""

from __future__ import annotations

import json

import pytest

from feduca import api
from feduca.analysis import deeds, incentives
from feduca.analysis.audit import Outcome
from feduca.errors import InputError
from feduca.recipes.schema import load
from feduca.studies import summary_file

SMALL = {"rounds": 6, "local.epochs": 1, "task.test_share": 0.5, "task.validation_share": 0.5, "task.max_examples": 600}


def outcome(own, standing):
    return Outcome([own, 0.5, 0.5], [1 / 3] * 3, [1.0] * 3, 0.5, 1.0, standing)


def test_figures_by_hand():
    full, lost = [1.0, 1.0, 1.0], [0.5, 1.0, 0.4]
    cases = [
        incentives._compare(outcome(0.9, [full] * 4), outcome(own, [full, full, lost, lost]), [0]) for own in (0.8, 0.7)
    ]
    row = incentives._row(cases)
    assert row["own"]["mean"] == pytest.approx(-0.15)
    assert row["interval"] == pytest.approx([-0.15 - 12.7062 * 0.05, -0.15 + 12.7062 * 0.05], abs=1e-4)  # t, 1 degree
    assert row["standing"] == [1, 1, 0.5, 0.5]
    assert (row["found"], row["found_after"]) == (1.0, 3)
    assert row["honest_limited"] == pytest.approx(0.25)  # one of two others, in half of the rounds
    assert incentives.when(row) == "100%, round 3"
    assert incentives.between(row["interval"]) == "-78.5 to +48.5"
    assert incentives.interval([0.1]) is None


def test_copying_takes_two_and_is_judged_by_both():
    assert incentives.doers("copy", 2, 3) == [0, 2]
    assert incentives.doers("echo", 2, 3) == [2]
    case = incentives._compare(outcome(0.9, []), outcome(0.7, []), [0, 1])
    assert case["own"] == pytest.approx(-0.1)
    assert "standing" not in case


def test_a_table_is_audited_cell_by_cell_and_kept(tmp_path):
    axes = [
        {
            "name": "standing",
            "values": [{"label": kind, "set": {"standing.kind": kind}} for kind in ("off", "work")],
        }
    ]
    recipe = load({"name": "mine", "axes": axes}, {**SMALL, "mechanism.name": "fedavg", "participation.rule": "always"})
    about = {"command": "c", "commit": "0"}
    for kind in ("work", "off"):
        deeds.study(recipe, tmp_path, {"standing": [kind]}, about, (0,), 2, ("withhold",))
    kept = json.loads((tmp_path / "mine.json").read_text())
    assert [one["labels"]["standing"] for one in kept] == ["off", "work"]  # in the recipe's order
    assert summary_file.read(tmp_path / "mine.json").keys() == {summary_file.place(one["labels"]) for one in kept}
    off, on = kept
    assert "found" not in off["rows"][0]
    assert on["rows"][0]["found"] == 1.0
    assert on["rows"][0]["found_after"] == 3
    assert on["honest"]["honest_limited"] == 0
    assert off["honest"]["accuracy"] == on["honest"]["accuracy"]
    assert "100%, round 3" in incentives.text(on)


@pytest.mark.parametrize("offer", [{"offer.kind": "best-mixture", "offer.train_from": "consensus"}, {}])
def test_side_by_side_finds_what_one_by_one_finds(offer, monkeypatch):
    recipe = load("quickstart", {**SMALL, **offer, "mechanism.name": "fedavg", "standing.kind": "work"})
    deeds_tried = ("withhold", "echo", "replay", "lapse", "copy", "claim")
    batches, run_many = [], api.run_many
    monkeypatch.setattr(api, "run_many", lambda jobs, **how: batches.append(len(jobs)) or run_many(jobs, **how))
    alone = incentives.incentives(recipe, (0, 1), 2, {"mine": recipe}, deeds_tried)
    assert batches == []
    heard = []
    beside = incentives.incentives(recipe, (0, 1), 2, {"mine": recipe}, deeds_tried, heard.append, lockstep=7)
    # Two honest runs, and by seed: five deeds by two silos, but copying by a pair of ten, and honesty by weights of examples.
    assert sum(batches) == 2 + 2 * (5 * 2 + 1)
    assert max(batches) == 7
    assert beside == alone
    assert heard[0] == "mine: 7 of 24 runs done"


def test_a_study_that_is_interrupted_keeps_the_cells_that_were_done(tmp_path, monkeypatch):
    values = [{"label": kind, "set": {"standing.kind": kind}} for kind in ("off", "work")]
    recipe = load({"name": "mine", "axes": [{"name": "standing", "values": values}]}, SMALL)

    def tell(line):
        if line.startswith("work"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deeds.study(recipe, tmp_path, {}, {}, (0,), 1, ("withhold",), tell, lockstep=2)
    assert [one["labels"] for one in json.loads((tmp_path / "mine.json").read_text())] == [{"standing": "off"}]


def test_deeds_are_chosen_by_name():
    assert deeds.chosen(None) == incentives.DEEDS
    assert deeds.chosen("idle, echo") == ("idle", "echo")
    with pytest.raises(InputError, match="--deeds names 'sloth'; choose among refuse, take"):
        deeds.chosen("sloth")


def test_the_embedded_study_is_sound():
    assert api.recipe("incentives").name == "incentives"
