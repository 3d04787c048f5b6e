"""A run that is killed, however often and whenever, and resumed equals the undisturbed one, bit for bit on CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feduca
from feduca.core.rows import rows_in
from feduca.runs import checkpoint
from same_run import without_clocks

DRIVER = Path(__file__).with_name("kill_driver.py")
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = {"numpy": True, "rounds": 20, "task.clients": 4, "local.epochs": 1, "utility.check": 4}
DIGITS = {
    "rounds": 20,
    "task.hidden": [16],
    "task.max_examples": 500,
    "task.validation_share": 0.3,
    "local.epochs": 1,
    "engine.threads": 1,
}
METHODS = {
    "feduca": {},
    "lagged": {"mechanism.schedule": "lagged", "mechanism.aggregation": "sampled"},
    "offers": {
        "mechanism.name": "fedavg",
        "participation.rule": "accuracy",
        "offer.kind": "least-concession",
        "memory.kind": "model",
    },
}


def drive(out: Path, mode: str, settings: dict, seed: int = 0) -> tuple[Path, int]:
    command = [sys.executable, str(DRIVER), str(out), mode, str(seed), json.dumps(settings)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    return Path(answer["run"]), answer["kills"]


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_every_round(tmp_path: Path, method: str) -> None:
    settings = {**SMALL, **METHODS[method]}
    whole, none = drive(tmp_path / "whole", "never", settings)
    torn, kills = drive(tmp_path / "torn", "every-round", settings)
    assert none == 0
    assert kills >= 15  # a child may get through its last rounds before it is seen
    assert without_clocks(torn) == without_clocks(whole)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    whole, _ = drive(tmp_path / "whole", "never", SMALL)
    torn, kills = drive(tmp_path / "torn", "random", SMALL, seed)
    assert kills >= 5
    assert without_clocks(torn) == without_clocks(whole)


@pytest.mark.parametrize("mode", ["every-round", "random"])
def test_killed_with_silos_models_in_files(tmp_path: Path, mode: str) -> None:
    settings = {**SMALL, "cohort.size": 2, "cohort.store": "disk", "participation.against": "outside"}
    whole, _ = drive(tmp_path / "whole", "never", settings)
    torn, kills = drive(tmp_path / "torn", mode, settings)
    assert kills >= 5
    assert content(torn) == content(whole)


def content(path: Path) -> tuple[list, list, str]:
    """The records without clocks, and every number that the last checkpoint knows, wherever it lies."""
    found = feduca.load(path)
    point = checkpoint.read(checkpoint.existing(path / "checkpoint")[0])
    assert len(rows_in(point)) == 4  # own, sent, the outside option; what the server remembers
    arrays = {**vars(point.state), **point.clients}
    rounds = [{key: value for key, value in line.items() if key != "seconds"} for line in found.rounds]
    numbers = {key: np.asarray(x).tolist() for key, x in arrays.items() if hasattr(x, "shape")}
    return rounds, list(found.clients), json.dumps(numbers)


@pytest.mark.slow
def test_digits_killed_at_every_round(tmp_path: Path) -> None:
    whole, _ = drive(tmp_path / "whole", "never", DIGITS)
    torn, kills = drive(tmp_path / "torn", "every-round", DIGITS)
    assert kills >= 15
    assert without_clocks(torn) == without_clocks(whole)


@pytest.mark.slow
def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    """`compare`, killed in its middle and started again, prints the table of an undisturbed one; so does `resume` of a run."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        """
        name = "small"
        rounds = 12
        [task]
        hidden = [16]
        max_examples = 500
        validation_share = 0.3
        [local]
        epochs = 1
        [[compare]]
        label = "FedUCA"
        [[compare]]
        label = "FedAvg"
        set = { "mechanism.name" = "fedavg", "participation.rule" = "accuracy" }
        """
    )

    def command(verb: str, *rest: str) -> list[str]:
        return [sys.executable, "-m", "feduca", verb, *rest, "--json"]

    def compare(out: str) -> list[dict]:
        words = command("compare", str(recipe), "--out", str(tmp_path / out))
        done = subprocess.run(words, env=ENV, capture_output=True, check=True)
        return [{k: v for k, v in row.items() if k not in ("seconds", "run_dir")} for row in json.loads(done.stdout)]

    torn = tmp_path / "torn"
    process = subprocess.Popen(command("compare", str(recipe), "--out", str(torn)), env=ENV, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (files := list(torn.glob("small/*/rounds.jsonl"))) or files[0].read_bytes().count(b"\n") < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = files[0].parent
    assert json.loads((first / "status.json").read_text())["state"] == "running"
    resumed = subprocess.run(command("resume", str(first)), env=ENV, capture_output=True, check=True)
    assert json.loads(resumed.stdout)["rounds"] == 12
    assert compare("torn") == compare("whole")
    for run in (tmp_path / "whole" / "small").iterdir():
        assert without_clocks(torn / "small" / run.name) == without_clocks(run)
