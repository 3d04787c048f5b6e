"""What pages say of privacy stands in committed summaries; and the attack behind one of them can find what is hidden badly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import dp, membership, secure_aggregation

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("of", [dp, membership, secure_aggregation], ids=lambda of: of.__name__.split(".")[1])
def test_tables_are_the_committed_figures(of):
    page = of.PAGE.read_text(encoding="utf-8")
    for name, table in of.tables().items():
        assert f"<!-- table: {name} -->\n{table}\n<!-- end -->" in page, name


def test_no_attack_that_was_measured_breaks_a_promise():
    found = json.loads(membership.RESULT.read_text(encoding="utf-8"))
    for one in found["canary"]:
        if one["epsilon"] is not None:
            assert one["advantage"] - one["error"] <= one["most"] == membership.most(one["epsilon"], one["delta"])
            assert one["shown"] <= one["epsilon"]
    plain, *private = (one["advantage"] for one in found["canary"])
    assert plain > max(private) > 0


def test_bounds_by_hand():
    assert membership.most(0.0, 0.0) == 0.0
    assert membership.most(np.log(3), 0.0) == pytest.approx(0.5)  # rates of 3 to 1: 3/4 and 1/4
    assert membership.most(0.0, 0.1) == pytest.approx(0.1)
    rates = {"right": 0.9, "false": 0.1}
    assert 1.5 < membership.shown(rates, 1000, 0.0) < np.log(9)
    assert membership.shown(rates, 10, 0.0) < membership.shown(rates, 1000, 0.0)
    assert membership.shown({"right": 0.5, "false": 0.5}, 1000, 0.0) == 0.0


def test_the_canary_is_found_without_noise_and_hides_in_it(monkeypatch):
    """And where silos add less noise than they account for, the attack proves more than they promise."""
    plain, private = (membership.by_canary(budget, 100, 10) for budget in (None, 1.0))
    assert plain["advantage"] > 0.6
    assert private["advantage"] - private["error"] < private["most"] < 0.5
    assert private["shown"] <= 1.0
    noises = membership.Privacy.noises
    monkeypatch.setattr(membership.Privacy, "noises", lambda self, *of: noises(self, *of) / 50)
    broken = membership.by_canary(1.0, 100, 10)
    assert broken["advantage"] - broken["error"] > broken["most"]
    assert broken["shown"] > 1.0
