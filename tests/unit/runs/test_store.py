"""Silos' models on the disk: the same run to the bit, resumed, rolled back and extended, and one line where the disk fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.core.rounds import Server
from feduca.errors import CheckpointError, ConfigError, FeducaError, InputError, RunError
from feduca.runs import checkpoint, files
from feduca.runs.rollback import roll_back
from feduca.runs.store import FOLDER, OnDisk
from numpy_task import NumpyTask

SMALL = {"local.epochs": 1, "utility.check_every": 0, "checkpoint.every_s": 0, "cohort.size": 3}
DISK = {**SMALL, "cohort.store": "disk"}
METHODS = {
    "feduca": {"participation.rule": "utility"},
    "fedavg": {"mechanism.name": "fedavg", "memory.kind": "update", "participation.rule": "accuracy"},
    "models": {"mechanism.name": "fedavg", "memory.kind": "model", "participation.rule": "accuracy"},
    "forgetful": {"mechanism.name": "fedavg", "memory.kind": "none"},
    "fedvarp": {"mechanism.name": "fedvarp", "participation.rule": "always"},
    "scaffold": {"mechanism.name": "scaffold", "memory.kind": "none"},
    "feddyn": {"mechanism.name": "feddyn", "participation.rule": "accuracy"},
    "qfedavg": {"mechanism.name": "qfedavg", "participation.rule": "accuracy"},
    "offers": {
        "mechanism.name": "fedavg",
        "participation.rule": "accuracy",
        "participation.against": "outside",
        "offer.kind": "least-concession",
    },
    "quits": {"participation.rule": "accuracy", "participation.against": "outside", "participation.quits": 1},
}
ROUNDS = 8  # of ten silos, so that most are asked twice


def same(one, other):
    def without_clocks(result):
        return [{key: value for key, value in line.items() if key != "seconds"} for line in result.rounds]

    return (
        np.array_equal(np.asarray(one.theta), np.asarray(other.theta))
        and without_clocks(one) == without_clocks(other)
        and list(one.clients) == list(other.clients)
    )


def full_disk(path):
    return Path("/dev/full").open("r+b", buffering=0)


def stopping(round):
    def stop(record, clients):
        if record.round == round:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("name", METHODS)
def test_with_and_without_files_and_with_arrays_of_all_silos(monkeypatch, name):
    settings = {**SMALL, **METHODS[name]}
    memory, disk = (
        api.run("quickstart", {**settings, "cohort.store": store}, rounds=ROUNDS) for store in ("memory", "disk")
    )
    assert same(memory, disk)
    monkeypatch.setattr(Server, "few", lambda self, silos: False)  # as it is where everybody is asked
    arrays = api.run("quickstart", settings, rounds=ROUNDS)
    assert [line["status"] for line in arrays.clients] == [line["status"] for line in memory.clients]
    np.testing.assert_allclose(np.asarray(memory.theta), np.asarray(arrays.theta), atol=2e-5)
    assert len({tuple(line["status"]) for line in memory.clients}) > 3


@pytest.mark.parametrize("kind", ["median", "trimmed"])
def test_a_median_of_what_is_remembered(monkeypatch, kind):
    settings = {**SMALL, "mechanism.name": "fedavg", "memory.kind": "update", "aggregation.kind": kind}
    rows = api.run("quickstart", settings, rounds=ROUNDS)
    monkeypatch.setattr(Server, "few", lambda self, silos: False)
    arrays = api.run("quickstart", settings, rounds=ROUNDS)
    np.testing.assert_allclose(np.asarray(rows.theta), np.asarray(arrays.theta), atol=2e-5)


@pytest.mark.parametrize("name", ["feduca", "fedavg", "models", "fedvarp", "offers"])
@pytest.mark.parametrize("every", [0, 1000])
def test_a_run_that_is_cut_off_goes_on_as_if_it_had_not_been(tmp_path, name, every):
    settings = {**DISK, **METHODS[name], "checkpoint.every_s": every}  # 1000 s: the first round's and no other
    whole = api.run("quickstart", settings, rounds=ROUNDS, out=tmp_path / "whole")
    for round in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            api.run("quickstart", settings, rounds=ROUNDS, out=tmp_path / "cut", watch=stopping(round))
    cut = api.run("quickstart", settings, rounds=ROUNDS, out=tmp_path / "cut")
    assert same(whole, cut)
    assert list((whole.run_dir / "checkpoint" / FOLDER).iterdir())


def test_the_checkpoint_before_the_last_is_whole_too(tmp_path):
    whole = api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "whole")
    for _ in range(2):  # the second time it was resumed: what it goes on from is not overwritten either
        with pytest.raises(KeyboardInterrupt):
            api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "cut", watch=stopping(5))
        folder = next((tmp_path / "cut").glob("*/*-s0"))
        newest = checkpoint.existing(folder / "checkpoint")[0]
        (newest / "state.json").write_text("{}")
    cut = api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "cut")
    assert same(whole, cut)


def test_more_rounds_back_again_and_anew(tmp_path):
    whole = api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "whole")
    short = api.run("quickstart", DISK, rounds=4, out=tmp_path / "short")
    longer = api.resume(short.run_dir, rounds=ROUNDS)
    assert same(whole, longer)
    shutil.rmtree(short.run_dir)  # the longer one has files of its own
    run = longer.run_dir.name
    assert not roll_back(longer.run_dir, run, ROUNDS - 1)
    assert same(whole, api.resume(longer.run_dir))
    again = api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "whole", again=True)
    assert same(whole, again)


def test_a_backup_by_hard_links_stays_as_it_was(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path, watch=stopping(4))
    (folder,) = tmp_path.glob("*/*-s0")
    shutil.copytree(folder / "checkpoint", tmp_path / "backup", copy_function=lambda a, b: files.os.link(a, b))
    before = {path.name: path.read_bytes() for path in (tmp_path / "backup" / FOLDER).iterdir()}
    api.resume(folder)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "backup" / FOLDER).iterdir()}


def test_rows_that_are_not_what_was_written_are_one_line(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path, watch=stopping(5))
    (folder,) = tmp_path.glob("*/*-s0")
    path = folder / "checkpoint" / FOLDER / "own.rows"
    content = bytearray(path.read_bytes())
    content[: len(content)] = bytes(byte ^ 1 for byte in content)
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"own.rows is not what the run wrote there \(checksum\); go back"
    ) as told:
        api.resume(folder)
    assert "\n" not in str(told.value)
    path.write_bytes(content[:7])
    with pytest.raises(CheckpointError, match="is not what the run wrote"):
        api.resume(folder)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(FeducaError, match="link"):
        api.resume(folder)


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path, monkeypatch):
    whole = api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path / "cut", watch=stopping(3))
    (folder,) = (tmp_path / "cut").glob("*/*-s0")
    with monkeypatch.context() as full:
        full.setattr(files, "changing", full_disk)
        with pytest.raises(RunError, match="No space left on device; free some space, then go on") as told:
            api.resume(folder)
    assert "\n" not in str(told.value)
    assert feduca.load(folder).rounds
    assert same(whole, api.resume(folder))


def test_a_disk_without_room_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(InputError, match=r"takes about .* GiB on the disk, and .* has .* GiB free; free some space"):
        api.run("quickstart", DISK, rounds=ROUNDS, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_large_lies_on_the_disk_by_itself(monkeypatch):
    def where(settings):
        recipe = feduca.recipe("quickstart", settings)
        return type(api.build(recipe, 0).store).__name__

    assert where({}) == "NoneType"
    assert where({"cohort.size": 10}) == "NoneType"
    assert where({"cohort.size": 3}) == "Store"
    monkeypatch.setattr("feduca.recipes.build.memory", lambda: 1 << 16)
    assert where({"cohort.size": 3}) == "OnDisk"
    assert where({"cohort.size": 3, "cohort.store": "memory"}) == "Store"
    assert where({"cohort.size": 3, "aggregation.kind": "median", "memory.kind": "update"}) == "Store"


def test_where_models_lie_does_not_change_what_a_run_is_called():
    plain, disk = (feduca.recipe("quickstart", settings).hash() for settings in (SMALL, DISK))
    assert plain == disk


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cohort.store": "disk"}, "give cohort.size"),
        ({"cohort.size": 3, "cohort.store": "tape"}, "cohort.store"),
        ({**DISK, "aggregation.kind": "median", "memory.kind": "update"}, "use memory.kind = 'none'"),
        ({**DISK, "privacy.secure_aggregation": True, "mechanism.name": "fedavg"}, "cohort.store = 'memory'"),
    ],
)
def test_what_cannot_lie_on_the_disk_is_refused(settings, said):
    with pytest.raises(ConfigError) as refused:
        feduca.recipe("quickstart", settings).single()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_that_talks_nonsense_about_rows_is_refused(tmp_path):
    rows = OnDisk(tmp_path / FOLDER).rows("own", np.zeros(3), 4).put(np.array([1, 2]), np.ones((2, 3)))
    path = checkpoint.write(tmp_path, 1, {"own": rows, "few": [rows]})
    back = checkpoint.read(path)
    assert np.array_equal(np.asarray(back["own"]), np.asarray(rows))
    arrays = {"a": np.arange(4), "b": np.zeros(4, np.uint32), "c": np.zeros((0, 3)), "d": np.zeros((2, 3))}
    whole = {"$rows": {"silos": 4, "file": "own"}, "slots": "a", "sums": "b", "empty": "c"}
    memory = {"$rows": {"silos": 4}, "who": "a", "rows": "d"}

    def decoded(node):
        named = {
            key: {"$array": value, "kind": "numpy"} if isinstance(value, str) else value for key, value in node.items()
        }
        return checkpoint._decode(named, arrays, None, OnDisk(tmp_path / FOLDER))

    assert len(decoded(whole)) == 4
    for wrong in (
        {**whole, "$rows": {"silos": 5, "file": "own"}},
        {**whole, "$rows": {"silos": 4, "file": "../own"}},
        {**whole, "$rows": {"silos": 10**30, "file": "own"}},
        {**whole, "sums": "a"},
        {**whole, "empty": "d"},
        memory,
    ):
        with pytest.raises(ValueError, match="rows"):
            decoded(wrong)


def test_silos_of_a_user_s_own_task(tmp_path):
    settings = {"cohort.size": 2, "local.epochs": 1, "checkpoint.every_s": 0}
    plain = api.run("quickstart", {**settings, "cohort.store": "memory"}, rounds=5, task=NumpyTask(6))
    disk = api.run("quickstart", {**settings, "cohort.store": "disk"}, rounds=5, task=NumpyTask(6), out=tmp_path)
    assert np.array_equal(plain.theta, disk.theta)
