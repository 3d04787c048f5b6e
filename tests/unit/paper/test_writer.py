"""`python -m paper.page` and the others that write from summaries: real arguments, bad ones in one line."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from paper import headline, writer

ROOT = Path(__file__).parents[3]
MODULES = ("page", "figures", "headline", "offers_page")


def called(module, *args, monkeypatch, capsys):
    """Exit code, stdout, stderr of `python -m paper.MODULE`."""
    monkeypatch.setattr(sys, "argv", [module, *args])
    full = f"paper.{module}"
    main = importlib.import_module(f"{full}.__main__" if module == "figures" else full)
    code = 0
    try:
        runpy.run_path(str(main.__file__), run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder with one summary: a small version, on data that the paper does not have, of full length."""
    monkeypatch.chdir(tmp_path)
    Path("some").mkdir()
    committed = json.loads((ROOT / "results/table1.json").read_text())
    labels = {"data": "cifar10", "split": "0.5,1.0", "method": "feduca"}
    (real,) = (cell for cell in committed if cell["labels"] == labels)
    Path("some/table1.json").write_text(json.dumps([real | {"data": "digits", "participation_by_round": [0.5] * 100}]))
    return "some"


@pytest.mark.parametrize("module", MODULES)
def test_help_writes_nothing(module, results, monkeypatch, capsys):
    code, out, _ = called(module, "--help", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert out.startswith(f"usage: python -m paper.{module} [-h] [RESULTS] [TARGET ...]\n")
    assert os.listdir() == ["some"]


@pytest.mark.parametrize("module", MODULES)
def test_results_that_are_none_are_refused(module, results, monkeypatch, capsys):
    Path("empty").mkdir()
    for folder, says in (("nowhere", "there is no folder nowhere; "), ("empty", "empty holds no summary of a study ")):
        code, out, err = called(module, folder, "written", monkeypatch=monkeypatch, capsys=capsys)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"feduca: {says}")
    assert sorted(os.listdir()) == ["empty", "some"]


def test_the_page_of_a_small_version_is_written(results, monkeypatch, capsys):
    Path("docs/paper").mkdir(parents=True)
    Path("docs/paper/of-no-study.md").write_text("old")
    code, out, _ = called("page", results, "docs", monkeypatch=monkeypatch, capsys=capsys)
    written = sorted(path.name for path in Path("docs").rglob("*.md"))
    assert (code, out) == (0, f"{len(written)} pages written to docs\n")
    assert "of-no-study.md" not in written
    text = "".join(path.read_text() for path in Path("docs").rglob("*.md"))
    assert "rounds 71-100 minus 11-40, in points: CIFAR-10 (0.5,1.0) +0.0" in text


def test_figures_are_drawn_into_the_folder_named(results, monkeypatch, capsys):
    code, out, _ = called("figures", results, "drawn", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {str(path) for path in Path("drawn").glob("*.svg")}
    assert out


@pytest.mark.parametrize("module", ["headline", "offers_page"])
def test_a_page_to_be_filled_must_be_there(module, results, monkeypatch, capsys):
    code, _, err = called(module, results, "none.md", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, err) == (2, "feduca: none.md: No such file or directory; give another TARGET\n")
    Path("none.md").write_text("before\n<!-- table offers -->\nold\n<!-- end -->\nafter\n")
    assert called(module, results, "none.md", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    text = Path("none.md").read_text()
    assert re.fullmatch(r"before\n<!-- table offers -->\n.*<!-- end -->\nafter\n", text, re.DOTALL)
    assert "old" not in text


def test_a_page_in_no_folder_is_refused(results, capsys):
    with pytest.raises(SystemExit) as stop:
        writer.main("headline", "", [], headline.write, [results, "no/such/page.md"])
    assert (stop.value.code, capsys.readouterr().err.count("\n")) == (2, 1)
