"""More rounds for a finished run, and run directories that were copied or renamed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app
from feduca.errors import InputError
from feduca.runs import checkpoint
from feduca.runs.directory import state_of
from same_run import without_clocks

SMALL = {"task.clients": 4, "local.epochs": 1, "local.lr_decay": 0.9, "utility.check_every": 0}


def test_more_rounds_give_what_so_many_at_once_would_have_given(tmp_path):
    short = feduca.run("quickstart", SMALL, rounds=3, out=tmp_path / "runs")
    whole = feduca.run("quickstart", SMALL, rounds=5, out=tmp_path / "whole")
    before = without_clocks(short.run_dir)
    longer = feduca.resume(short.run_dir, rounds=5)
    assert longer.run_dir == short.run_dir.parent / whole.run_dir.name  # its own name, beside the one it extends
    assert without_clocks(longer.run_dir) == without_clocks(whole.run_dir)
    np.testing.assert_array_equal(longer.theta, whole.theta)
    assert without_clocks(short.run_dir) == before
    assert feduca.resume(short.run_dir, rounds=5).rounds[-1]["round"] == 5  # found again
    assert feduca.resume(short.run_dir, rounds=3).rounds[-1]["round"] == 3  # what it has
    with pytest.raises(InputError, match=r"rounds is 2, and .* has 3: give more"):
        feduca.resume(short.run_dir, rounds=2)


def test_on_the_command_line(tmp_path):
    run = feduca.run("quickstart", SMALL, rounds=2, out=tmp_path).run_dir
    done = CliRunner().invoke(app, ["resume", str(run), "--rounds", "4"], catch_exceptions=False)
    assert "rounds 4" in done.output
    assert "See it: feduca report" in done.output


def test_a_run_without_checkpoints_says_so(tmp_path):
    run = feduca.run("quickstart", {**SMALL, "checkpoint.keep": False}, rounds=1, out=tmp_path).run_dir
    with pytest.raises(InputError, match=r"cannot go on: no checkpoint was kept .*; start the longer run"):
        feduca.resume(run, rounds=2)


def test_a_copy_under_any_name_exports_resumes_and_goes_back(tmp_path):
    whole = feduca.run("quickstart", {**SMALL, "checkpoint.history": 3}, rounds=4, out=tmp_path / "runs")
    copy = shutil.copytree(whole.run_dir, tmp_path / "on a stick" / "my run")
    assert feduca.load(copy).summary == whole.summary
    assert len(feduca.export_models(copy, tmp_path / "models").models) == 5
    assert CliRunner().invoke(app, ["rollback", str(copy), "2"], catch_exceptions=False).exit_code == 0
    assert state_of(copy) == "interrupted"
    again = shutil.copytree(copy, tmp_path / "elsewhere")  # in the middle of its run
    for place in (copy, again):
        assert feduca.resume(place).run_dir == place
        assert without_clocks(place) == without_clocks(whole.run_dir)
    assert checkpoint.run_of(checkpoint.existing(copy / "checkpoint")[0]) == whole.run_dir.name


def test_a_recipe_that_was_changed_is_still_noticed_in_a_copy(tmp_path):
    run = feduca.run("quickstart", {**SMALL, "checkpoint.history": 3}, rounds=3, out=tmp_path / "runs").run_dir
    copy = shutil.copytree(run, tmp_path / "copy")
    CliRunner().invoke(app, ["rollback", str(copy), "2"], catch_exceptions=False)
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("rounds = 3", "rounds = 4"))
    with pytest.raises(InputError, match="it was changed, or another version of feduca wrote it"):
        feduca.resume(copy)
