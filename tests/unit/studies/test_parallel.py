"""Several processes give what one gives, to the last bit, and say how long they may take still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from feduca.cli.progress import Left

STUDY = """
extends = "quickstart"
compare = []
rounds = 2
seeds = [0, 1]
local = { epochs = 1 }
utility = { check_every = 0 }

[[axes]]
name = "method"
values = [
    { label = "average", set = { "mechanism.name" = "fedavg" } },
    { label = "mine", set = { "mechanism.name" = "half" } },
    { label = "the average again", set = { "mechanism.name" = "fedavg" } },
]
"""
MINE = """
from dataclasses import dataclass
from feduca import mechanisms
from feduca.mechanisms.fedavg import FedAvg

@dataclass(frozen=True)
class Half(FedAvg):
    "Averages by another name."

mechanisms.register("half", Half)
"""


def feduca(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "feduca", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=True)


def test_two_processes_write_the_summary_of_one(tmp_path):
    (tmp_path / "own.toml").write_text(STUDY)
    (tmp_path / "mine.py").write_text(MINE)
    tables = []
    for jobs in ("1", "2"):
        words = [
            "reproduce",
            "own.toml",
            "--import",
            "mine.py",
            "--out",
            f"runs-{jobs}",
            "--results",
            jobs,
            "--jobs",
            jobs,
        ]
        done = feduca(*words, cwd=tmp_path)
        cells = json.loads((tmp_path / jobs / "own.json").read_text())
        tables.append(
            [{k: v for k, v in cell.items() if not k.startswith("seconds") and k != "peak_mb"} for cell in cells]
        )
        assert "6 of 6 runs done" in done.stderr
    assert tables[0] == tables[1]
    assert "2 at a time" in done.stderr
    rows = []
    for jobs in ("1", "2"):
        words = ["compare", "clinics", "--rounds", "2", "--json", "--out", f"compared-{jobs}", "--jobs", jobs]
        done = feduca(*words, "--set", "seeds=[0,1]", cwd=tmp_path)
        assert ("round 2/2" in done.stderr) == (jobs == "1")  # rounds of other processes are not seen here
        table = json.loads(done.stdout)
        rows.append([{k: v for k, v in row.items() if k not in ("seconds", "run_dir", "run_dirs")} for row in table])
    assert rows[0] == rows[1]


def test_a_process_that_is_killed_is_told_in_a_line(tmp_path):
    (tmp_path / "dies.py").write_text(
        "import multiprocessing, os\nif multiprocessing.parent_process() is not None:\n    os._exit(9)\n" + MINE
    )
    command = [sys.executable, "-m", "feduca", "compare", "clinics", "--rounds", "1", "--jobs", "2"]
    done = subprocess.run(
        [*command, "--import", "dies.py", "--out", "runs"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("feduca: a process that computed runs was killed")
    assert "Traceback" not in done.stderr


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
