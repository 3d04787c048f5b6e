"""Exported models are the run's, come back as they were written, and are checked when read."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca import report
from feduca.cli.main import app
from feduca.errors import InputError
from feduca.federation import InProcess
from feduca.report.export import load_exported
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
    from feduca.recipes.build import build
    from feduca.runs.checkpoint import existing, read

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
    with pytest.raises(InputError, match=r"card.json is not what SHA256SUMS says"):
        load_exported(copy)
    (copy / "SHA256SUMS").unlink()  # an export of before there were such sums
    with pytest.raises(InputError, match="outside the folder"):
        load_exported(copy)
    (copy / "card.json").write_text("[]")
    with pytest.raises(InputError, match="not an exported folder"):
        load_exported(copy)


def test_every_file_has_a_checksum(exported: feduca.Exported, tmp_path: Path) -> None:
    import hashlib
    import shutil

    lines = (exported.path / "SHA256SUMS").read_text().splitlines()
    sums = {file: said for said, file in (line.split("  ") for line in lines)}
    there = {path.relative_to(exported.path).as_posix() for path in exported.path.rglob("*") if path.is_file()}
    assert there == {*sums, "SHA256SUMS"}
    assert all(hashlib.sha256((exported.path / file).read_bytes()).hexdigest() == said for file, said in sums.items())
    for name, old, new in (("card.json", '"seed": 0', '"seed": 1'), ("README.md", "seed 0", "seed 1")):
        copy = shutil.copytree(exported.path, tmp_path / name)
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new))
        with pytest.raises(InputError, match=r"is not what SHA256SUMS says.*export the run again"):
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


def test_two_exports_of_a_run_are_the_same_bytes(result: feduca.RunResult, exported: feduca.Exported) -> None:
    assert result.run_dir
    again = feduca.export_models(result.run_dir, exported.path.with_name("again"))
    files = sorted(path.relative_to(exported.path) for path in exported.path.rglob("*") if path.is_file())
    assert len(files) == 14
    assert [path.relative_to(again.path) for path in sorted(again.path.rglob("*")) if path.is_file()] == files
    assert all((again.path / file).read_bytes() == (exported.path / file).read_bytes() for file in files)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    run = feduca.run({}, {**SMALL, "rounds": 4}, out=tmp_path / "runs", task=NumpyTask())
    assert run.run_dir
    return run.run_dir


SMALL = {"task.clients": 4, "local.epochs": 1, "utility.check": 4}


def test_a_damaged_last_checkpoint_is_told(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Round 3's models stand under round 3's figures, and everybody hears why."""
    rounds = feduca.load(small).rounds  # type: ignore[union-attr]
    (small / "checkpoint" / "round-00000004" / "arrays.safetensors").write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING, "feduca"):
        exported = feduca.export_models(small, tmp_path / "models", task=NumpyTask())
    why = "the models of .* are those after round 3 of 4: .*does not match its checksum"
    assert re.search(why, caplog.text)
    assert re.search(why, exported.card["note"])
    assert "Beware: the models of" in (exported.path / "README.md").read_text()
    assert exported.card["rounds"] == 3
    assert exported.card["summary"]["final_accuracy"] == rounds[2]["accuracy"]
    caplog.clear()
    assert feduca.load(small).theta is None  # type: ignore[union-attr]
    assert re.search(f"{why}; it is left out", caplog.text.replace("\n", " "))


@pytest.mark.parametrize("other", [{"local.lr": 0.2}, {"mechanism.name": "fedavg"}, {"rounds": 5}, {"seeds": [1]}])
def test_another_runs_checkpoint_is_refused(small: Path, tmp_path: Path, other: dict) -> None:
    there = feduca.run({}, {**SMALL, "rounds": 4, **other}, out=tmp_path / "other", task=NumpyTask()).run_dir
    assert there
    shutil.rmtree(small / "checkpoint")
    shutil.copytree(there / "checkpoint", small / "checkpoint")
    with pytest.raises(InputError, match=r"belongs to run .*; repeat the run with --again"):
        feduca.export_models(small, tmp_path / "models", task=NumpyTask())
    assert feduca.load(small).theta is None  # type: ignore[union-attr]
    assert not (tmp_path / "models").exists()


def test_silos_of_any_name_keep_their_models(tmp_path: Path) -> None:
    class Named(NumpyTask):
        def __init__(self) -> None:
            super().__init__()
            self.silos = ("global", "silo global", "a/b", "a_b")

    run = feduca.run({}, {**SMALL, "rounds": 2}, out=tmp_path, task=Named())
    assert run.run_dir
    exported = feduca.export_models(run.run_dir, tmp_path / "models", task=Named())
    assert list(exported.models) == ["global", "silo silo global", "silo global", "a/b", "a_b"]
    assert len(list((tmp_path / "models" / "silos").iterdir())) == 4
    np.testing.assert_array_equal(exported.models["global"]["theta"], run.theta)


def test_a_full_disk_leaves_nothing_half_written(
    small: Path, result: feduca.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = feduca.export_models(small, tmp_path / "models", task=NumpyTask())
    write, count = Path.write_bytes, [0]

    def full(self: Path, content: bytes) -> int:
        count[0] += 1
        if count[0] == 3:
            write(self, content[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, content)

    for out in (tmp_path / "new" / "models", tmp_path / "models"):
        count[0] = 0
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(InputError, match=r"models: No space left on device; choose"):
            feduca.export_models(small, out, task=NumpyTask())
        monkeypatch.undo()
    assert not (tmp_path / "new").exists()
    assert load_exported(tmp_path / "models").card == before.card
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "README.md", "SHA256SUMS", "card.json", "global.safetensors", "silos",
    ]  # fmt: skip
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(InputError, match=r"cannot write .*page.html: No space left"):
        report.write([str(result.run_dir)], tmp_path / "page.html")
    assert not list(tmp_path.glob("*page*"))


def test_an_export_goes_into_a_folder_of_its_own(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "models"
    (out / "silos").mkdir(parents=True)
    (out / "README.md").write_text("my thesis")
    with pytest.raises(InputError, match="is not empty and holds no earlier export"):
        feduca.export_models(small, out, task=NumpyTask())
    assert (out / "README.md").read_text() == "my thesis"
    (out / "README.md").unlink()
    (out / "silos").rmdir()
    feduca.export_models(small, out, task=NumpyTask())
    (out / "silos" / "silo-0.safetensors").write_bytes(b"damaged")
    (out / "notes").write_text("mine")
    assert set(feduca.export_models(small, out, task=NumpyTask()).models) == {"global", *NumpyTask().silos}
    assert (out / "notes").read_text() == "mine"
