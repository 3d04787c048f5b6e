"""A round's line is as long as its cohort, and reads as one of all silos."""

from __future__ import annotations

import json

import pytest

from feduca import api
from feduca.core.records import COHORT, of_all
from feduca.errors import InputError
from feduca.runs.lines import Lines, Packed, decoded

SETTINGS = {"local.epochs": 1, "utility.check_every": 1, "utility.keep_curves": True, "cohort.size": 3}


def test_lines_have_those_who_were_asked_and_read_as_all(tmp_path):
    whole = {}

    def watch(record, clients):
        whole[record.round] = clients

    result = api.run("quickstart", SETTINGS, rounds=4, out=tmp_path, watch=watch)
    path = result.run_dir / "clients.jsonl"
    for text, line in zip(path.read_text().splitlines(), Lines.of(path)):
        raw, seen = json.loads(text), whole[line["round"]]
        asked = raw[COHORT]["asked"]
        assert raw[COHORT]["silos"] == 10
        assert len(asked) == len(raw["status"]) == len(raw["utility_points"]["values"]) == 3
        assert COHORT not in line
        assert line["status"] == list(seen.status)
        assert line["utility_points"]["places"] == raw["utility_points"]["places"]
        for k in range(10):
            if k in asked:
                assert line["alpha"][k] == seen.alpha[k]
                assert line["staleness"][k] == seen.staleness[k]
                assert line["utility_points"]["values"][k] is not None
            else:
                assert line["status"][k] == "not asked"
                assert [line[name][k] for name in ("alpha", "gamma", "zeta", "staleness", "own_accuracy")] == [None] * 5
                assert line["eq1"][k] is line["capped"][k] is False
                assert line["reason"][k] == ""
    assert decoded(text.encode(), ("status",)) == {"status": line["status"]}
    assert Packed([json.loads(text)]).one(0, ("status",)) == {"status": line["status"]}
    assert Packed([json.loads(text)])[0] == line


def test_a_line_of_everybody_is_as_it_was(tmp_path):
    result = api.run("quickstart", {**SETTINGS, "cohort.size": 10}, rounds=2, out=tmp_path)
    raw = json.loads((result.run_dir / "clients.jsonl").read_text().splitlines()[0])
    assert COHORT not in raw
    assert "asked" not in raw
    assert len(raw["status"]) == 10


@pytest.mark.parametrize(
    "told",
    [
        None,
        7,
        {},
        {"silos": 3},
        {"silos": "3", "asked": [0]},
        {"silos": True, "asked": []},
        {"silos": 10**12, "asked": [0]},
        {"silos": 0, "asked": []},
        {"silos": 2, "asked": [0, 1, 1]},
        {"silos": 2, "asked": [2]},
        {"silos": 2, "asked": [-1]},
        {"silos": 2, "asked": [0.5]},
        {"silos": 2, "asked": [None]},
    ],
)
def test_nonsense_about_who_was_asked_is_refused(tmp_path, told):
    with pytest.raises(ValueError, match=r"^a line "):
        of_all({"round": 1, COHORT: told, "status": ["joined"]})
    result = api.run("quickstart", {**SETTINGS, "checkpoint.keep": False}, rounds=1, out=tmp_path)
    path = result.run_dir / "clients.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), COHORT: told}) + "\n")
    (result.run_dir / "status.json").write_text(json.dumps({"schema": 1, "state": "interrupted"}))
    with pytest.raises((InputError, ValueError)):
        api.runs.load(result.run_dir).clients[0]
