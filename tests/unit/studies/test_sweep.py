"""A sweep is drawn against its axis, with a band over seeds."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from command_line import feduca
from feduca.studies.sweep import drawn

SWEEP = """
extends = "quickstart"
compare = []
rounds = 1
seeds = [0, 1]
task = { clients = 3 }
local = { epochs = 1 }
utility = { check_every = 0 }

[[axes]]
name = "method"
values = [{ label = "average", set = { "mechanism.name" = "fedavg" } }, { label = "feduca", set = {} }]

[[axes]]
name = "lr"
values = [
    { label = "0.01", set = { "local.lr" = 0.01 } },
    { label = "0.1", set = { "local.lr" = 0.1 } },
    { label = "0.3", set = { "local.lr" = 0.3 } },
]
"""


def test_a_study_that_sweeps_a_number_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rates.toml").write_text(SWEEP)
    code, _, err = feduca("reproduce", "rates.toml", capsys=capsys)
    assert code == 0, err
    assert "drawn in results/rates.svg" in err
    svg = (tmp_path / "results/rates.svg").read_text()
    ET.fromstring(svg)
    assert svg.count('fill-opacity="0.2"') == 2  # a band for each method
    assert ">average<" in svg
    assert ">feduca<" in svg
    assert "lr 0.01" in svg
    curves = re.findall(r'd="M([^"Z]*)" fill="none"', svg)
    assert [curve.count("L") + 1 for curve in curves] == [3, 3]
    summary = json.loads((tmp_path / "results/rates.json").read_text())
    assert drawn(summary[:2]) is None  # too few values


@pytest.mark.parametrize("labels", [("a", "b", "c"), ("1", "2", "two")])
def test_what_is_no_number_is_no_sweep(labels):
    entry = {"accuracies": [0.5], "mechanism": "fedavg"}
    assert drawn([{**entry, "labels": {"x": label}} for label in labels]) is None
