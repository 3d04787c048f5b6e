"""Exported models are the run's, come back as they were written, and are checked when read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli import app
from feduca.errors import InputError
from feduca.export import load_exported
from feduca.federation import InProcess
from numpy_task import NumpyTask


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> feduca.RunResult:
    return feduca.run("quickstart", {"participation.rule": "accuracy"}, rounds=4, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(result: feduca.RunResult, tmp_path_factory: pytest.TempPathFactory) -> feduca.Exported:
    assert result.run_dir
    return feduca.export_models(result.run_dir, tmp_path_factory.mktemp("out"))


def flat(exported: feduca.Exported, name: str) -> np.ndarray:
    """One model as a vector, in the order of the module's own parameters."""
    order = [key for key, _ in exported.module(name).named_parameters()]
    return np.concatenate([exported.models[name][key].ravel() for key in order])


def test_the_shared_model_is_the_runs_last(result: feduca.RunResult, exported: feduca.Exported) -> None:
    assert result.theta is not None
    np.testing.assert_array_equal(flat(exported, "global"), result.theta.numpy())
    again = feduca.load(str(result.run_dir))
    np.testing.assert_array_equal(again.theta.numpy(), result.theta.numpy())  # type: ignore[union-attr]


def test_a_silo_deploys_what_its_rule_takes(result: feduca.RunResult, exported: feduca.Exported) -> None:
    """Eq. 1 with the paper's offer: the shared model exactly where it beats the own one, the own one elsewhere."""
    from feduca.api import recorded
    from feduca.checkpoint import existing, read
    from feduca.experiment import build

    chosen, directory = recorded(str(result.run_dir))
    point = read(existing(directory.checkpoints)[0])
    task = build(chosen, 0).task
    everyone = np.arange(10)
    own = task.evaluate(point.clients["own"], everyone, "validation").accuracy
    shared = task.evaluate(point.state.theta.expand(10, -1), everyone, "validation").accuracy
    assert 0 < (shared > own).sum() < 10  # both happen
    for k in range(10):
        expected = point.state.theta if shared[k] > own[k] else point.clients["own"][k]
        np.testing.assert_array_equal(flat(exported, f"silo-{k}"), expected.numpy())
        assert exported.card["scores"]["own_model"][k] == (not shared[k] > own[k])
        assert exported.card["scores"]["validation"]["accuracy"][k] == pytest.approx(max(shared[k], own[k]))


def test_a_model_comes_back_as_a_module(result: feduca.RunResult, exported: feduca.Exported) -> None:
    import torch
    from sklearn.datasets import load_digits

    module = exported.module("global")
    inputs = torch.tensor(load_digits().data[:50] / 16, dtype=torch.float32)
    assert module(inputs).shape == (50, 10)
    assert not module.training
    with pytest.raises(InputError, match="no model 'nobody'"):
        exported.module("nobody")


def test_the_card_says_what_it_is(result: feduca.RunResult, exported: feduca.Exported) -> None:
    card = (exported.path / "README.md").read_text()
    assert exported.card["config_hash"] in card
    assert f"{100 * result.summary['participation']:.1f} %" in card
    assert card.count("| silo-") == 10
    assert exported.card["config"]["participation"]["rule"] == "accuracy"


def test_damage_and_escapes_are_refused(exported: feduca.Exported, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(exported.path, copy)
    (copy / "global.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="checksum"):
        load_exported(copy)
    card = json.loads((copy / "card.json").read_text())
    card["files"]["global"]["file"] = "../../secret"
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="outside the folder"):
        load_exported(copy)
    (copy / "card.json").write_text("[]")
    with pytest.raises(InputError, match="not an exported folder"):
        load_exported(copy)


def test_a_task_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    task = NumpyTask()
    run = feduca.run({"task": {"clients": 4}}, rounds=3, out=tmp_path / "runs", task=task)
    assert run.run_dir
    with pytest.raises(InputError, match="task of its own"):
        feduca.export_models(run.run_dir, tmp_path / "out")
    exported = feduca.export_models(run.run_dir, tmp_path / "out", task=NumpyTask())
    assert set(exported.models) == {"global", *task.silos}
    np.testing.assert_array_equal(exported.models["global"]["theta"], run.theta)


def test_silos_that_keep_their_models_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcess, "snapshot", lambda self: {})  # as in a deployment
    run = feduca.run({"task": {"clients": 4}}, rounds=2, out=tmp_path / "runs", task=NumpyTask())
    assert run.run_dir
    exported = feduca.export_models(run.run_dir, tmp_path / "out", task=NumpyTask())
    assert list(exported.models) == ["global"]
    assert "Silos keep their own models" in (exported.path / "README.md").read_text()


def test_the_command(result: feduca.RunResult, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(result.run_dir), "-o", str(tmp_path / "models")])
    assert done.exit_code == 0, done.output
    assert "11 models" in done.output
    missing = CliRunner().invoke(app, ["export", str(tmp_path), "-o", str(tmp_path / "models")])
    assert isinstance(missing.exception, InputError)
