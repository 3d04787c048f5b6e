"""What the command line refuses, in one line with what to do, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import FAST, feduca

pytestmark = pytest.mark.usefixtures("own_folder")


BAD = {
    "unknown recipe": (["run", "quickstrat"], r"quickstrat.*did you mean 'quickstart'"),
    "unknown key": (["run", "--set", "mechanism.delat=1"], r"unknown key 'mechanism.delat'; did you mean 'delta'"),
    "unknown table": (["run", "--set", "mecanism.delta=1"], r"unknown key 'mecanism'; did you mean 'mechanism'"),
    "unknown task key": (["run", "--set", "task.client=3"], r"unknown key 'task.client'; did you mean 'clients'"),
    "wrong type": (["run", "--set", "mechanism.delta=lots"], r"mechanism.delta is 'lots'"),
    "wrong choice": (["run", "--set", "participation.rule=maybe"], r"participation.rule is 'maybe'"),
    "unknown mechanism": (["run", "--set", "mechanism.name=fedavvg"], r"'fedavvg'; did you mean 'fedavg'"),
    "delta zero": (["run", "--set", "mechanism.delta=0"], r"mechanism.delta must be a number above 0, got 0"),
    "no strategies": (["run", "--set", "mechanism.n_s=0"], r"mechanism.n_s must be at least 1, got 0"),
    "zero clients": (["run", "--set", "task.clients=0"], r"task.clients is 0"),
    "zero rounds": (["run", "--rounds", "0"], r"rounds is 0"),
    "too many classes": (["run", "--set", "task.classes_per_client=11"], r"11"),
    "not key=value": (["run", "--set", "delta"], r"--set needs key=value, got 'delta'"),
    "a value where a table was": (["run", "--set", "rounds.x=1"], r"rounds"),
    "no such silo": (["run", "--set", "reporting.clients=[12]"], r"silo 12; this federation has silos 0 to 9"),
    "toml syntax": (["run", "broken.toml"], r"broken.toml is not TOML"),
    "a folder": (["run", "."], r"there is no recipe or TOML file"),
    "bad row": (["compare", "bad-row.toml"], r"delat"),
    "unwritable": (["run", "--out", "file/below"], r"cannot write results to file/below"),
    "negative seed": (["run", "--seed", "-1"], r"seeds"),
    "a seed twice": (
        ["compare", "quickstart", "--set", "seeds=[0,1,0]"],
        r"seeds is \[0, 1, 0\]: a seed is listed twice; list each once",
    ),
    "unknown device": (["run", "--device", "tpu"], r"engine.device is 'tpu'"),
    "unknown family": (["run", "--set", "utility.family=cubic"], r"cubic"),
    "unknown data": (["run", "--set", "task.data=mnits"], r"mnits"),
    "unknown model": (["run", "--set", "task.model=transformer"], r"transformer"),
    "unlike any recipe": (["run", "nosuch"], r"no recipe or TOML file 'nosuch'; `feduca list` names the recipes$"),
    "neither true nor false": (
        ["run", "--set", "diagnostics=maybe"],
        r"diagnostics is 'maybe': it should be true or f",
    ),
    "not boolean": (["run", "--set", "local.augment=2"], r"local.augment is 2: it should be true or false$"),
    "a search of nothing": (["run", "--set", "offer.points=6"], r"offer.points is 6 with offer.kind 'global', which"),
    "train from": (["run", "--set", "offer.train_from=consensus"], r"offer.train_from is 'consensus' with offer.kind"),
    "all rows global": (["compare", "sampled", "--set", "offer.budget=3"], r"offer.budget is 3 with offer.kind 'glob"),
    "no such run": (["export", "nope", "-o", "x"], r"feduca: nope is not a run directory \(no status.json\); give one"),
    "too many deviators": (["audit", "--deviators", "11"], r"--deviators is 11; choose 1 to 10, the silos of this rec"),
    "fixed layers": (
        ["compare", "quickstart", "--set", "task.model=logistic", "--set", "task.hidden=[8]"],
        r"task.hidden is \[8\] with task.model 'logistic', whose layers are fixed; leave",
    ),
    "no such data directory": (
        ["run", "--set", "task.data=fmnist", "--set", "task.data_dir=nowhere"],
        r"no Fashion-MNIST in task.data_dir nowhere, which is no folder: put the four idx files .* leave data_dir unset",
    ),
    "too few examples": (
        ["run", "--set", "task.max_examples=5"],
        r"from 5 examples: raise task.max_examples if it is s",
    ),
    "unknown option": (["run", "--nope"], r"no such option '--nope'; `feduca run --help` has the options"),
    "unknown command": (["rn"], r"no such command 'rn'. Did you mean 'run'\?; `feduca --help`"),
    "no lockstep": (
        ["reproduce", "table1", "--lockstep", "0"],
        r"'--lockstep': 0 is not in the range x>=1; `feduca rep",
    ),
    "nothing to reproduce": (["reproduce"], r"missing argument 'NAME'; `feduca reproduce --help`"),
    "not a number": (["run", "--rounds", "many"], r"'--rounds': 'many' is not a valid integer"),
    "no deviators": (["audit", "--deviators", "0"], r"--deviators is 0; choose 1 to 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(case, capsys):
    args, expected = BAD[case]
    Path("broken.toml").write_text("rounds = = 3")
    Path("bad-row.toml").write_text('rounds = 2\n[[compare]]\nlabel = "x"\nset = { "mechanism.delat" = 1 }\n')
    Path("file").write_text("")
    before = set(Path().rglob("*"))
    code, out, err = feduca(*args, capsys=capsys)
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert out == ""
    assert len(lines) == 1, err
    assert lines[0].startswith("feduca: ")
    assert re.search(expected, lines[0]), lines[0]
    assert set(Path().rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere, so there is no unwritable folder to try")
def test_a_folder_without_write_permission(capsys, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, _, err = feduca("run", "--out", str(locked / "runs"), capsys=capsys)
    assert code == 2
    assert "is not writable" in err


def test_debug_shows_the_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "feduca", "--debug", "run", "nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_several_seeds_are_for_compare(capsys):
    _, _, err = feduca("run", *FAST, "--set", "seeds=[3, 4]", capsys=capsys)
    assert "the recipe has seeds 3, 4: `run` takes the first, `compare` runs them all" in err


def test_an_option_of_another_mechanism_says_whose_it_is(capsys):
    code, _, err = feduca(
        "run", "quickstart", "--set", "mechanism.name=fedavg", "--set", "mechanism.delta=1", capsys=capsys
    )
    assert code == 2
    assert "mechanism.delta is an option of feduca, not of fedavg, which has beta" in err


def test_options_that_a_best_mixture_has_no_use_for(capsys):
    told = ["run", *FAST, "--set", "offer.kind=best-mixture", "--set", "offer.margin=0.1"]
    code, _, err = feduca(*told, capsys=capsys)
    assert code == 2
    assert "offer.margin is 0.1 with offer.kind 'best-mixture', which takes the best of its points" in err


def test_bench_gpu_needs_one(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = feduca("bench", "gpu", capsys=capsys)
    assert code == 2
    assert err.strip() == "feduca: bench gpu needs a CUDA device; try `feduca bench cpu`"
