"""Checkpoints: what goes in comes out, bit for bit; a full disk, a damaged file or another run never leads astray."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app
from feduca.errors import CheckpointError, InputError, RunError
from feduca.mechanisms import registry
from feduca.report.reading import read
from feduca.report.verdict import verdict
from feduca.runs import checkpoint, directory, environment
from feduca.runs import directory as runs
from feduca.runs.directory import RunDirectory
from feduca.types import Allocation, Certificate, ServerState
from needed import needed
from numpy_task import NumpyTask
from same_run import without_clocks

SMALL = {"rounds": 4, "task.clients": 4, "local.epochs": 1, "utility.check": 4}


def test_a_tree_comes_back_as_it_was(tmp_path):
    allocation = Allocation(np.array([0.25, 0.75]), "optimal", certificate=Certificate(1.0, 0.5, 0.5, 1.0, 7))
    tree = {
        "none": None,
        "yes": True,
        "count": 2**70,
        "third": 1 / 3,
        "odd": [float("nan"), float("inf"), -float("inf"), -0.0],
        "word": "Grüße \x00",
        "deep": {"list": [1, [2.5, {"x": None}]]},
        "numpy": np.array([[1e-308, np.nan], [np.inf, -0.0]]),
        "scalar": np.float32(0.1),
        "flags": np.array([True, False]),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "zero-d": np.array(3.5),
        "empty": np.zeros((0, 4), np.float32),
        "tensor": torch.tensor([[0.1, 0.2]], dtype=torch.float32),
        "half": torch.tensor([0.1, 3.0], dtype=torch.bfloat16),
        "whole": torch.tensor([1, 2**40]),
        "allocation": allocation,
    }
    back = checkpoint.read(checkpoint.write(tmp_path, 3, tree), like=torch.zeros(1))
    assert back.keys() == tree.keys()
    for name, value in tree.items():
        seen = back[name]
        if isinstance(value, np.ndarray):
            assert seen.dtype == value.dtype
            assert seen.shape == value.shape
            assert seen.tobytes() == value.tobytes()
            assert seen.flags.writeable
        elif isinstance(value, torch.Tensor):
            assert seen.dtype == value.dtype
            assert torch.equal(seen, value)
        elif name not in ("odd", "allocation"):
            assert seen == value
    assert json.dumps(back["odd"]) == json.dumps(tree["odd"])
    assert back["allocation"].certificate == allocation.certificate
    assert np.array_equal(back["allocation"].alpha, allocation.alpha)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"f": print}, "cannot hold a builtin_function"),
        ({"o": np.array([None])}, "array of object"),
        ({3: 1}, "the key 3"),
        ({"$array": 1}, "the key '\\$array'"),
        ({"s": {1, 2}}, "cannot hold a set"),
    ],
)
def test_what_cannot_be_kept_is_said(tmp_path, tree, message):
    with pytest.raises(CheckpointError, match=message):
        checkpoint.write(tmp_path, 1, tree)
    assert checkpoint.existing(tmp_path) == []


def test_the_last_two_are_kept_and_leftovers_removed(tmp_path):
    (tmp_path / ".round-00000005.part").mkdir()
    (tmp_path / "notes").mkdir()
    for number in range(1, 6):
        checkpoint.write(tmp_path, number, {"n": number})
    assert [path.name for path in checkpoint.existing(tmp_path)] == ["round-00000005", "round-00000004"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "round-00000004", "round-00000005"]


def test_a_checkpoint_under_another_number_is_refused(tmp_path):
    path = checkpoint.write(tmp_path, 1, {"n": 1})
    moved = path.rename(tmp_path / "round-00000009")
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.read(moved)


def test_every_byte_is_covered(tmp_path):
    """No single flipped bit, anywhere, goes unnoticed (or changes what is read)."""
    tree = {"x": np.arange(5.0), "y": [1.5, "word"]}
    path = checkpoint.write(tmp_path, 1, tree)
    unnoticed = 0
    for file in path.iterdir():
        content = file.read_bytes()
        for at in range(len(content)):
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            try:
                back = checkpoint.read(path)
            except CheckpointError:
                continue
            else:
                unnoticed += 1
                assert np.array_equal(back["x"], tree["x"])
                assert back["y"] == tree["y"]
        file.write_bytes(content)
    assert unnoticed < 5  # white space


def test_schedule(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    path = checkpoint.write(tmp_path, 1, {"x": np.zeros(8)})
    for every, wants in ((0, [True, True, True]), (10, [True, False, True]), (None, [True, True, True])):
        schedule = checkpoint.Schedule(every)
        seen = []
        for moment in (0, 5, 15):
            now[0] = moment
            seen.append(schedule.due())
            if seen[-1]:
                schedule.wrote(path)
        assert seen == wants
    monkeypatch.setattr(checkpoint, "SMALL", 4)
    schedule = checkpoint.Schedule(None)
    schedule.wrote(path)
    assert not schedule.due()  # large: every five minutes


# Run directories


@pytest.fixture
def interrupted(tmp_path):
    """A run that stopped after round 2 of 4, and the undisturbed one."""
    whole = feduca.run({}, SMALL, out=tmp_path / "whole", task=NumpyTask()).run_dir

    def stop(record, clients):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduca.run({}, SMALL, out=tmp_path / "torn", task=NumpyTask(), watch=stop)
    return next((tmp_path / "torn").glob("*/*")), whole


def test_an_interrupted_run_says_so_and_goes_on(interrupted):
    torn, whole = interrupted
    assert json.loads((torn / "status.json").read_text())["state"] == "interrupted"
    with (torn / "rounds.jsonl").open("a") as file:
        file.write('{"half a li')  # what a killed process leaves
    result = feduca.resume(torn, task=NumpyTask())
    assert len(result.rounds) == 4
    assert without_clocks(torn) == without_clocks(whole)
    again = feduca.resume(torn, task=NumpyTask())  # finished: read back
    assert again.summary == result.summary


def test_ctrl_c_that_compiled_code_turned_into_a_system_error_is_an_interruption(tmp_path, monkeypatch):
    """What CPython makes of a KeyboardInterrupt inside a helper that a numba kernel calls."""

    def stopped(name, cause):
        def follow(*_):
            raise SystemError("returned a result with an exception set") from cause

        monkeypatch.setattr("feduca.program.kernel.follow", follow)
        feduca.run({}, SMALL, out=tmp_path / name, task=NumpyTask())

    with pytest.raises(KeyboardInterrupt):
        stopped("torn", KeyboardInterrupt())
    with pytest.raises(SystemError):
        stopped("broken", ValueError("x"))
    states = {name: runs.state_of(next((tmp_path / name).glob("*/*"))) for name in ("torn", "broken")}
    assert states == {"torn": "interrupted", "broken": "failed"}


@pytest.mark.parametrize("mechanism", sorted(registry))
def test_every_mechanism_goes_on(tmp_path, mechanism):
    """Whatever a mechanism and its clients keep between rounds goes into the checkpoint and comes back."""
    settings = {**SMALL, **needed(mechanism), "mechanism.name": mechanism, "participation.rule": "accuracy"}
    whole = feduca.run({}, settings, out=tmp_path / "whole", task=NumpyTask()).run_dir

    def stop(record, clients):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduca.run({}, settings, out=tmp_path / "torn", task=NumpyTask(), watch=stop)
    torn = next((tmp_path / "torn").glob("*/*"))
    feduca.resume(torn, task=NumpyTask())
    assert without_clocks(torn) == without_clocks(whole)


def test_a_damaged_checkpoint_means_the_previous_one(interrupted, caplog):
    torn, whole = interrupted
    newest = checkpoint.existing(torn / "checkpoint")[0]
    (newest / "arrays.safetensors").write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING, "feduca"):
        feduca.resume(torn, task=NumpyTask())
    assert "does not match its checksum; the checkpoint of round 1 is used instead" in caplog.text
    assert without_clocks(torn) == without_clocks(whole)


def test_no_usable_checkpoint_is_an_error_that_says_what_to_do(interrupted):
    torn, _ = interrupted
    for point in checkpoint.existing(torn / "checkpoint"):
        (point / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* can be used: .*; repeat the run with --again"):
        feduca.resume(torn, task=NumpyTask())


def test_another_runs_checkpoint_is_not_used(interrupted, tmp_path):
    torn, _ = interrupted
    other = feduca.run({}, {**SMALL, "local.lr": 0.2}, out=tmp_path / "other", task=NumpyTask()).run_dir
    for point in checkpoint.existing(torn / "checkpoint"):
        for file in point.iterdir():
            file.unlink()
        point.rmdir()
    for point in checkpoint.existing(other / "checkpoint"):
        point.rename(torn / "checkpoint" / point.name)
    with pytest.raises(CheckpointError, match="belongs to run"):
        feduca.resume(torn, task=NumpyTask())


def test_another_task_is_noticed(interrupted):
    with pytest.raises(InputError, match="not the one this run was made with"):
        feduca.resume(interrupted[0], task=NumpyTask(5))


def test_a_changed_config_is_noticed(interrupted):
    torn, _ = interrupted
    text = (torn / "config.toml").read_text()
    (torn / "config.toml").write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(InputError, match=r"describes run .*: it was changed"):
        feduca.resume(torn, task=NumpyTask())


def test_checkpoints_do_not_change_what_a_run_is():
    one, other = feduca.recipe({}, {"checkpoint.every_s": 0}), feduca.recipe({}, {"checkpoint.every_s": 60})
    assert one.hash() == other.hash()


def test_a_run_may_do_without(tmp_path):
    settings = {"rounds": 2, "local.epochs": 1, "task.max_examples": 400}
    kept = feduca.run("quickstart", settings, out=tmp_path / "kept")
    bare = feduca.run("quickstart", {**settings, "checkpoint.keep": False}, out=tmp_path / "bare")
    assert kept.run_dir.name == bare.run_dir.name
    assert list(checkpoint.existing(kept.run_dir / "checkpoint"))
    assert not (bare.run_dir / "checkpoint").exists()
    assert [r["accuracy"] for r in kept.rounds] == [r["accuracy"] for r in bare.rounds]
    again = feduca.run("quickstart", {**settings, "checkpoint.keep": False}, out=tmp_path / "bare")  # is read back
    assert again.summary == bare.summary
    with pytest.raises(InputError, match=r"kept no models \(checkpoint.keep = false\)") as refused:
        feduca.export_models(bare.run_dir, tmp_path / "models")
    remedy = re.findall(r"`feduca (.*)`", str(refused.value))[0].split()
    done = CliRunner().invoke(app, remedy)
    assert done.exit_code == 0, done.output
    assert "global" in feduca.export_models(bare.run_dir, tmp_path / "models").models


def test_a_run_that_kept_nothing_starts_anew_and_says_so(tmp_path, caplog):
    def stop(record, clients):
        if record.round == 2:
            raise KeyboardInterrupt

    settings = {**SMALL, "checkpoint.keep": False}
    with pytest.raises(KeyboardInterrupt):
        feduca.run({}, settings, out=tmp_path, task=NumpyTask(), watch=stop)
    torn = next(tmp_path.glob("*/*"))
    assert runs.nothing_kept(torn) == "no checkpoint was kept (checkpoint.keep = false)"
    assert "The run was interrupted after round 2; `feduca resume` starts anew: no checkpoint was kept." in verdict(
        read(torn)
    )
    assert not caplog.messages
    seen = []
    feduca.resume(torn, task=NumpyTask(), watch=lambda record, clients: seen.append(record.round))
    assert seen == [1, 2, 3, 4]
    assert caplog.messages == [f"{torn} starts from round 1: no checkpoint was kept (checkpoint.keep = false)"]


def test_a_first_run_and_one_that_goes_on_say_nothing(interrupted, caplog):
    torn, _ = interrupted
    assert runs.nothing_kept(torn) is None
    assert "`feduca resume` goes on from there." in " ".join(verdict(read(torn)))
    feduca.resume(torn, task=NumpyTask())
    assert not caplog.messages


def test_one_process_at_a_time(interrupted):
    torn, _ = interrupted
    config_hash, _, seed = torn.name.rpartition("-s")
    task = NumpyTask()
    with RunDirectory(torn.parent.parent, torn.parent.name, config_hash, int(seed)) as holder:
        assert holder.resume(task.init(0), task.silos) is not None
        with pytest.raises(InputError, match="another process is writing"):
            feduca.resume(torn, task=task)
    feduca.resume(torn, task=task)


def test_a_full_disk_costs_a_checkpoint_not_the_run(tmp_path, monkeypatch, caplog):
    calls = [0]
    write = checkpoint.write

    def full(folder, number, tree, keep=2):
        calls[0] += 1
        if number == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(folder, number, tree, keep)

    monkeypatch.setattr(runs.checkpoint, "write", full)
    with caplog.at_level(logging.WARNING, "feduca"):
        result = feduca.run({}, SMALL, out=tmp_path, task=NumpyTask())
    assert "checkpoint of round 2 not written (No space left on device); round-00000001 stays in use" in caplog.text
    assert calls[0] == 4
    assert len(result.rounds) == 4


def test_a_really_full_disk(tmp_path, monkeypatch):
    """Records that cannot be written end the run with one line that says how to go on; the checkpoint before it is intact."""
    append = RunDirectory.append

    def fill(self, record, clients):
        if record["round"] == 3:
            monkeypatch.setattr(directory.files, "appending", lambda path: open("/dev/full", "ab"))  # noqa: SIM115
        append(self, record, clients)

    monkeypatch.setattr(RunDirectory, "append", fill)
    with pytest.raises(
        RunError, match=r"No space left on device; free some space, then go on with `feduca resume .*`$"
    ):
        feduca.run({}, SMALL, out=tmp_path, task=NumpyTask())
    monkeypatch.undo()
    path = next(tmp_path.glob("*/*"))
    assert json.loads((path / "status.json").read_text())["state"] == "failed"
    whole = feduca.run({}, SMALL, out=tmp_path / "whole", task=NumpyTask()).run_dir
    feduca.resume(path, task=NumpyTask())
    assert without_clocks(path) == without_clocks(whole)


def test_a_crash_while_writing_leaves_the_old_ones(tmp_path, monkeypatch):
    checkpoint.write(tmp_path, 1, {"n": 1})
    for where in ("_sync", "_file_digest"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, where, lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            with pytest.raises(OSError, match="broken"):
                checkpoint.write(tmp_path, 2, {"n": 2})
        assert [path.name for path in checkpoint.existing(tmp_path)] == ["round-00000001"]
        assert checkpoint.read(tmp_path / "round-00000001") == {"n": 1}


def test_checkpoints_of_before_it_was_kept_who_has_left_still_load(interrupted, tmp_path):
    torn, whole = interrupted
    for point in checkpoint.existing(torn / "checkpoint"):
        said = json.loads((point / "state.json").read_text())
        assert said["body"]["tree"]["state"].pop("left", 0) is None
        said["sha256"] = checkpoint._digest(said["body"])
        (point / "state.json").write_text(json.dumps(said))
    feduca.resume(torn, task=NumpyTask())
    assert without_clocks(torn) == without_clocks(whole)
    known = {f.name: None for f in fields(ServerState)}
    for names in ({**known, "unheard_of": 1}, {name: None for name in known if name != "gamma"}):
        with pytest.raises(CheckpointError, match="a ServerState of another version of feduca"):
            checkpoint._decode({"$type": "ServerState", **names}, {}, None)


def test_who_has_left_is_known_after_an_interruption(tmp_path):
    settings = {**SMALL, "rounds": 6, "participation.rule": "accuracy", "participation.quits": 1}
    seen = [state for _, _, state in feduca.iterate({}, settings, task=NumpyTask())]
    assert seen[-1].left.any()
    back = checkpoint.read(checkpoint.write(tmp_path, 6, seen[-1]))
    assert back.left.dtype == bool
    assert back.left.tolist() == seen[-1].left.tolist()


def test_other_versions_are_pointed_out(interrupted, caplog, monkeypatch):
    torn, _ = interrupted
    then = environment.environment()
    monkeypatch.setattr(environment, "environment", lambda: {**then, "packages": {**then["packages"], "numpy": "9.9"}})
    with caplog.at_level(logging.WARNING, "feduca"):
        feduca.resume(torn, task=NumpyTask())
    assert "-> 9.9): figures may differ" in caplog.text
