"""Who lost their standing is named on the command line, by `run` and by `compare`, with the reason and nobody else."""

from __future__ import annotations

import json

import pytest

from command_line import feduca
from feduca.runs.standing import unheard

FAST = ["--rounds", "4", "--set", "task.max_examples=300", "--set", "local.epochs=1", "--set", "mechanism.name=fedavg"]
ASKED = ["--set", "standing.kind=work", "--set", "standing.patience=2", "--set", "participation.rule=always"]
SHIRK = ["--set", "conduct.kind=withhold", "--set", "conduct.clients=[2]"]
SAID = "1 of 10 silos has no standing: silo-2 (sent nothing new for 4 rounds)"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_run_and_compare_name_who_lost_their_standing_and_why(capsys):
    assert SAID in feduca("run", "quickstart", *FAST, *ASKED, *SHIRK, capsys=capsys)[1].splitlines()
    assert "standing" not in feduca("run", "quickstart", *FAST, *ASKED, capsys=capsys)[1]
    _, out, err = feduca("compare", "quickstart", *FAST[:-2], *ASKED[:-2], *SHIRK, capsys=capsys)
    told = [line for line in err.splitlines() if "standing" in line]
    assert told
    assert all("silos has no standing: silo-2 (sent nothing new for" in line for line in told)
    assert "standing" not in out
    _, out, err = feduca("compare", "quickstart", *FAST[:-2], *ASKED[:-2], *SHIRK, "--json", capsys=capsys)
    assert json.loads(out)
    assert [line for line in err.splitlines() if "no standing" in line] == told


def test_as_a_sentence():
    assert unheard([], []) == ""
    assert unheard([{"advice": None}], ["a"]) == ""
    assert unheard([{"advice": ["", "is told something else"]}], ["a", "b"]) == ""
    advice = ["shortened; without standing: sent nothing new for 1 round", 3, "without standing: it idles"]
    said = "2 of 3 silos have no standing: a (sent nothing new for 1 round); c (it idles)"
    assert unheard([{"advice": advice}], ["a", "b", "c"]) == said
    many = unheard([{"advice": ["without standing: x"] * 12}], [])
    assert many.startswith("12 of 12 silos have no standing: silo-0 (x); ")
    assert many.endswith("; silo-9 (x); and 2 more")
