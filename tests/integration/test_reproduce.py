"""Every study of the paper runs in its small version, is summarised, and is not repeated when asked again."""

from __future__ import annotations

import json

import pytest

from feduca.errors import ConfigError
from feduca.reproduce import STUDIES, reproduce
from feduca.reproduce.claims import CLAIMS
from feduca.reproduce.page import page, read

TRAINED = [name for name in STUDIES if name != "splits"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_smoke(name, tmp_path):
    told = []
    cells = reproduce(
        name, smoke=True, out=tmp_path, results=tmp_path / "results", watch=lambda done, total, label: told.append(done)
    )
    assert cells
    assert told[0] == 0
    for cell in cells:
        assert {"data", "split", "method", "schedule", "rule", "offer", "memory", "seeds", "config_hash"} <= set(cell)
        assert 0 <= cell["participation_mean"] <= 1
    assert json.loads((tmp_path / "results" / f"{name}.json").read_text())
    seconds = [cell["seconds"] for cell in cells]
    again = reproduce(name, smoke=True, out=tmp_path, results=tmp_path / "results")
    assert [cell["seconds"] for cell in again] == seconds  # read back, not repeated


def test_the_page_speaks_of_every_claim(tmp_path):
    reproduce("delta", smoke=True, out=tmp_path, results=tmp_path / "results")
    text = page(read(tmp_path / "results"))
    assert "## delta" in text
    for claim in CLAIMS:
        assert claim.text in text
    assert "not testable here" in text


def test_only_restricts_an_axis_and_says_what_there_is(tmp_path):
    cells = reproduce("delta", smoke=True, keep={"delta": ["1"]}, out=tmp_path, results=tmp_path / "results")
    assert [cell["labels"]["delta"] for cell in cells] == ["1"]
    with pytest.raises(ConfigError, match=r"delta has 0\.01, 0\.5"):
        reproduce("delta", smoke=True, keep={"delta": ["7"]}, out=tmp_path, results=tmp_path / "results")


def test_fill_runs_only_what_the_summary_lacks(tmp_path):
    results = tmp_path / "results"
    one = reproduce("delta", smoke=True, keep={"delta": ["1"]}, out=tmp_path / "gone", results=results)
    told: list[int] = []
    both = reproduce(
        "delta", smoke=True, keep={"delta": ["1", "10"]}, out=tmp_path / "here", results=results, fill=True,
        watch=lambda done, total, label: told.append(total),
    )  # fmt: skip
    assert told[-1] == 1
    assert [cell["labels"]["delta"] for cell in both] == ["1", "10"]
    assert both[0] == one[0]
    changed = {"delta": ["1"]}
    reproduce(
        "delta", smoke=True, settings={"rounds": 2}, keep=changed, out=tmp_path / "here", results=results, fill=True
    )
    assert (
        json.loads((results / "delta.json").read_text())[0]["rounds"] == 2
    )  # another configuration is not the same cell
    with pytest.raises(ConfigError, match="--again and --fill contradict each other"):
        reproduce("delta", smoke=True, out=tmp_path, results=results, fill=True, again=True)
