"""`feduca reproduce`: what its small versions print and where they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import feduca

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_small_version_refuses_in_one_line_too(capsys):
    code, _, err = feduca("reproduce", "cost", "--smoke", "--only", "method=fedvg", capsys=capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("feduca: --only method=fedvg: the axis has fedavg | ")


def test_the_splits_study_draws_and_does_not_train(capsys):
    code, out, err = feduca("reproduce", "splits", "--smoke", "--only", "data=fmnist", capsys=capsys)
    assert code == 0
    assert "smoke: small stand-in data (digits), figures are not comparable with the paper's" in err
    assert not list(Path("runs").rglob("rounds.jsonl"))
    summary = json.loads(Path("runs/smoke/results/splits.json").read_text())
    assert [cell["labels"]["split"] for cell in summary] == ["0.5,1.0", "1.0,1.0"]
    for cell in summary:
        assert len(cell["train"]) == len(cell["silos"]) == 10
        for name in cell["files"]:
            assert (Path("runs/smoke/results") / name).stat().st_size > 0
            assert name in out


def test_a_smoke_table_has_no_paper_columns(capsys):
    code, out, _ = feduca("reproduce", "concavity", "--smoke", "--only", "data=cifar10", capsys=capsys)
    assert code == 0
    assert "accuracy %" in out
    assert "paper" not in out


def test_a_smoke_summary_goes_where_it_is_told(capsys):
    there = ("--smoke", "--only", "data=cifar10", "--results", "elsewhere")
    assert feduca("reproduce", "concavity", *there, capsys=capsys)[0] == 0
    assert Path("elsewhere/concavity.json").is_file()
    assert not Path("runs/smoke/results").exists()


def test_a_misspelt_study_gets_a_suggestion(capsys):
    code, _, err = feduca("reproduce", "dleta", capsys=capsys)
    assert code == 2
    assert err.strip() == "feduca: there is no study 'dleta'; did you mean 'delta'?"


def test_reproduce_names_the_rows_without_which_nobody_is_better_off(capsys):
    only = ["--only", "study=main", "--only", "data=fmnist", "--only", "split=1.0,1.0"]
    mine = "method=best-mixture, from consensus"
    _, out, err = feduca("reproduce", "offers", "--smoke", *only, "--only", mine, capsys=capsys)
    assert "mean concession  deployed %" in out.splitlines()[0]
    assert "better off" not in out
    assert "come from other rows; add them to --only method=...: forced | local" in err
    _, out, err = feduca("reproduce", "offers", "--smoke", *only, "--only", f"{mine}|forced|local", capsys=capsys)
    assert "alone %  better off %  worst gain" in out.splitlines()[0]
    assert "other rows" not in err
    elsewhere = ["--only", "study=ablation", "--only", "method=strict"]  # whose rows of this kind are in another part
    assert "other rows" not in feduca("reproduce", "offers", "--smoke", *elsewhere, capsys=capsys)[2]
