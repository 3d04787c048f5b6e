"""Trackers get every round; a missing or unknown one is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app
from feduca.errors import ConfigError, InputError
from feduca.report.sinks import Sinks, make, scalars
from numpy_task import NumpyTask


class Kept:
    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.closed = 0

    def on_round(self, record: object, clients: object) -> None:
        self.rounds.append(record.round)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.closed += 1


def test_sinks_follow_a_run() -> None:
    one, two = Kept(), Kept()
    with Sinks([one, two]) as sinks:
        feduca.run({"task": {"clients": 4}}, rounds=3, task=NumpyTask(), watch=sinks)
    assert one.rounds == two.rounds == [1, 2, 3]
    assert one.closed == two.closed == 1


def test_scalars_leave_out_what_is_undefined() -> None:
    records = []
    settings = {"mechanism.name": "fedavg", "participation.rule": "accuracy"}
    feduca.run({"task": {"clients": 4}}, settings, rounds=1, task=NumpyTask(), watch=lambda r, c: records.append(r))
    named = dict(scalars(records[0]))
    assert named["model/accuracy"] == records[0].accuracy
    assert "program/gap" not in named
    assert named["seconds/round"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TensorBoard's own
def test_tensorboard_reads_what_was_tracked(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--rounds", "3", "--out", str(tmp_path), "--track", "tensorboard"])
    assert done.exit_code == 0, done.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    (run_dir,) = (tmp_path / "quickstart").iterdir()
    written = [r["accuracy"] for r in feduca.load(run_dir).rounds]  # type: ignore[union-attr]
    assert [e.value for e in events.Scalars("model/accuracy")] == pytest.approx(written, rel=1e-6)
    assert [e.step for e in events.Scalars("silos/0/joined")] == [1, 2, 3]


def test_a_tracker_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"needs mlflow.*feduca\[tracking\]"):
        make(["mlflow"], "run", tmp_path, {})
    with pytest.raises(ConfigError, match="no tracker 'wandb'"):
        make(["wandb"], "run", tmp_path, {})
    done = CliRunner().invoke(app, ["run", "--out", str(tmp_path), "--track", "wandb"])
    assert isinstance(done.exception, ConfigError)
    assert not any(tmp_path.iterdir())
