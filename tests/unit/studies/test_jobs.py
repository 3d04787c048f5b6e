"""Jobs give what one process gives, to the last bit, wherever they are computed, and whichever of them is killed or fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feduca.cli.progress import Left
from feduca.errors import ConfigError
from feduca.studies.pools import Where, sbatch, slurm_options

STUDY = """
extends = "quickstart"
compare = []
rounds = 3
seeds = [0, 1]
local = { epochs = 1 }
utility = { check_every = 0 }
checkpoint = { every_s = 0 }

[[axes]]
name = "method"
values = [
    { label = "average", set = { "mechanism.name" = "fedavg" } },
    { label = "mine", set = { "mechanism.name" = "half" } },
    { label = "the average again", set = { "mechanism.name" = "fedavg" } },
]
"""
MINE = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from feduca import mechanisms
from feduca.mechanisms.fedavg import FedAvg

@dataclass(frozen=True)
class Half(FedAvg):
    "Averages by another name."

    def allocate(self, state, round, seed):
        if round.round == 2:
            once()
        return super().allocate(state, round, seed)

mechanisms.register("half", Half)
"""
FINE = MINE + "\ndef once():\n    pass\n"
KILLED = (
    MINE
    + """
def once():
    try:
        Path("killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
"""
)
FAILS = MINE + "\ndef once():\n    raise ArithmeticError('no half\\nof anything')\n"


def feduca(*words: str, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-m", "feduca", *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def table(path: Path) -> list[dict]:
    """A summary without what depends on a clock or a machine."""
    cells = json.loads(path.read_text())
    return [{k: v for k, v in cell.items() if not k.startswith("seconds") and k != "peak_mb"} for cell in cells]


def sweep(folder: Path, plugin: str, name: str, *words: str, code: int = 0, **more: str) -> tuple[str, list[dict]]:
    (folder / "own.toml").write_text(STUDY)
    (folder / f"{name}.py").write_text(plugin)
    here = ["--import", f"{name}.py", "--out", f"runs-{name}", "--results", name]
    done = feduca("reproduce", "own.toml", *here, *words, cwd=folder, code=code, **more)
    return done.stderr, table(folder / name / "own.json")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> list[dict]:
    """What one process computes."""
    said, cells = sweep(tmp_path_factory.mktemp("alone"), FINE, "alone")
    assert "6 of 6 runs done" in said
    return cells


def test_processes_one_of_which_is_killed_write_the_summary_of_one(alone, tmp_path):
    said, cells = sweep(tmp_path, KILLED, "jobs", "--jobs", "2")
    assert cells == alone
    assert (tmp_path / "killed").exists()
    assert "2 at work" in said
    assert "6 of 6 runs done" in said


def test_submitit_s_jobs_one_of_which_is_killed_write_it_too(alone, tmp_path):
    said, cells = sweep(tmp_path, KILLED, "local", "--on", "local", "--jobs", "2", "--lockstep", "2")
    assert cells == alone
    assert (tmp_path / "killed").exists()
    assert "2 at work" in said


def test_so_do_jobs_within_this_process(alone, tmp_path):
    assert sweep(tmp_path, FINE, "debug", "--on", "debug")[1] == alone


@pytest.mark.parametrize("where", [("--jobs", "2"), ("--on", "local", "--jobs", "2")])
def test_a_cell_that_fails_names_its_log_and_the_others_are_summarised(where, alone, tmp_path):
    said, cells = sweep(tmp_path, FAILS, "fails", *where, "--lockstep", "4", code=1)
    assert cells == [cell for cell in alone if cell["labels"]["method"] != "mine"]
    last = said.strip().splitlines()[-1]
    assert last.startswith(
        "feduca: 1 of 3 failed, the others are done: mine: ArithmeticError: no half\\nof anything (/"
    )
    log = Path(last.split("(")[1].split(")")[0])
    assert "Traceback" in log.read_text()
    assert "in once" in log.read_text()
    said, cells = sweep(tmp_path, FINE, "fails", *where)  # mended: only what failed is run
    assert "4 of 6 runs done" in said
    assert cells == alone


def test_a_comparison_shows_the_rows_that_did_not_fail(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "rows.toml").write_text(
        STUDY.split("[[axes]]")[0].replace("compare = []\n", "")
        + '[[compare]]\nlabel = "average"\nset = { "mechanism.name" = "fedavg" }\n'
        + '[[compare]]\nlabel = "mine"\nset = { "mechanism.name" = "half" }\n'
    )
    words = ["compare", "rows.toml", "--import", "fails.py", "--jobs", "2", "--json"]
    done = feduca(*words, cwd=tmp_path, code=1)
    (row,) = json.loads(done.stdout)
    assert row["method"] == "average"
    assert "2 of 4 failed" in done.stderr


def test_a_job_that_is_killed_every_time_is_told_in_a_line(tmp_path):
    (tmp_path / "dies.py").write_text(
        "import multiprocessing, os\nif multiprocessing.parent_process() is not None:\n    os._exit(9)\n" + FINE
    )
    words = ["compare", "clinics", "--rounds", "1", "--jobs", "2", "--import", "dies.py", "--set", "compare=[]"]
    said = feduca(*words, "--set", "seeds=[0,1]", cwd=tmp_path, code=1).stderr
    assert "was killed 3 times, perhaps for want of memory" in said.strip().splitlines()[-1]


def test_two_sweeps_over_one_folder_share_their_runs(alone, tmp_path):
    (tmp_path / "own.toml").write_text(STUDY)
    (tmp_path / "mine.py").write_text(FINE)
    command = [sys.executable, "-m", "feduca", "reproduce", "own.toml", "--import", "mine.py", "--results", "one"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen([*command, *words], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        for words in (["--jobs", "2"], ["--on", "local", "--jobs", "2"])
    ]
    said = [one.communicate(timeout=300)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert table(tmp_path / "one" / "own.json") == alone
    states = [json.loads(file.read_text())["state"] for file in (tmp_path / "runs" / "own").glob("*/status.json")]
    assert states == ["finished"] * 4


@pytest.mark.parametrize("where", [("--jobs", "2"), ("--on", "local", "--jobs", "2")])
def test_an_interruption_ends_the_jobs_and_the_same_command_goes_on(where, alone, tmp_path):
    slow = MINE + "\nimport time\ndef once():\n    time.sleep(2 if Path('go').exists() else 600)\n"
    (tmp_path / "own.toml").write_text(STUDY)
    (tmp_path / "slow.py").write_text(slow)
    words = ["reproduce", "own.toml", "--import", "slow.py", "--out", "runs-slow", "--results", "slow", *where]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "feduca", *words]
    sweeping = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not [f for f in (tmp_path / "runs-slow").glob("own/*/rounds.jsonl") if len(f.read_text().splitlines()) == 1]:
        assert time.monotonic() < until
        time.sleep(0.2)
    time.sleep(1)
    sweeping.terminate()  # as Ctrl-C
    said = sweeping.communicate(timeout=60)[1]
    assert sweeping.returncode == 130
    assert "Traceback" not in said
    assert said.strip().endswith("interrupted; the same command goes on where it stopped")
    states = [json.loads(f.read_text())["state"] for f in (tmp_path / "runs-slow").glob("own/*/status.json")]
    assert "interrupted" in states
    assert "running" not in states
    (tmp_path / "go").touch()
    assert sweep(tmp_path, slow, "slow", *where)[1] == alone


def test_options_for_slurm_are_read_or_refused_in_a_line(tmp_path):
    (tmp_path / "big.toml").write_text('partition = "gpu"\ntime = "1-2:30:10"\nsetup = ["module load cuda"]\n')
    found = slurm_options([str(tmp_path / "big.toml"), "gpus=1,cpus=8,mem=32G,reservation=ours"])
    script = sbatch(found, 7)
    assert script == {
        "job_name": "feduca",
        "partition": "gpu",
        "time": 26 * 60 + 31,
        "gpus_per_node": 1,
        "cpus_per_task": 8,
        "mem": "32G",
        "setup": ["module load cuda"],
        "array_parallelism": 7,
        "additional_parameters": {"reservation": "ours"},
    }
    for text, said in {
        "gpu": "--slurm wants key=value, got 'gpu'",
        "gpu=1": "--slurm gpu: there is no such entry; choose from partition",
        "gpus=two": "--slurm gpus=two: give a whole number",
        "time=soon": "--slurm time=soon: give minutes, or hours",
        "time=0": "--slurm time=0: give minutes",
        "setup=ls": "--slurm setup: give a list",
        "partition=a b": "--slurm partition=a b: give a plain word",
        "mem=1\n#SBATCH --x": "give a plain word",
        "none.toml": "--slurm none.toml: No such file",
    }.items():
        with pytest.raises(ConfigError) as refused:
            slurm_options([text])
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="--on 'ray': choose local, slurm or debug"):
        Where("ray")
    with pytest.raises(ConfigError, match="--slurm is about --on slurm"):
        Where("local", 1, {"gpus": 1})


def test_time_left_is_told_once_something_is_done(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("feduca.cli.progress.time.monotonic", lambda: now[0])
    left = Left()
    assert left.said(3, 10) == ""
    now[0] = 130.0
    assert left.said(5, 10) == ", about 75 s left"
    now[0] = 400.0
    assert left.said(6, 10) == ", about 7 min left"
    assert left.said(10, 10) == ""
