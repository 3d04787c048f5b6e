"""A run that goes back is one that never went on: simulated ones to the bit, deployed ones with silos that start again."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app as feduca_app
from feduca.errors import CheckpointError, InputError
from feduca.flower import client_app
from feduca.flower.server import Settings, serve
from feduca.recipes.schema import load
from feduca.runs import checkpoint
from feduca.runs.directory import state_of
from feduca.runs.locks import locked
from feduca.runs.rollback import roll_back
from local_grid import LocalGrid, Node
from numpy_task import NumpyTask
from same_run import without_clocks

SETTINGS = {"checkpoint.history": 4, "checkpoint.every_s": 0, "rounds": 6, "task.clients": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of six rounds with the last four checkpoints."""
    return feduca.run("quickstart", SETTINGS, out=tmp_path_factory.mktemp("runs")).run_dir


@pytest.fixture
def again(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / finished.parent.name / finished.name)


def rollback(path, round):
    return CliRunner().invoke(feduca_app, ["rollback", str(path), str(round)], catch_exceptions=False)


def test_as_many_checkpoints_are_kept_as_asked_for(finished):
    assert sorted(checkpoint.numbered(finished / "checkpoint")) == [3, 4, 5, 6]


def test_goes_on_as_if_it_had_never_been_further(finished, again):
    done = rollback(again, 3)
    assert "back at round 3; go on with `feduca resume" in done.output
    assert state_of(again) == "interrupted"
    assert sorted(checkpoint.numbered(again / "checkpoint")) == [3]
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (finished / name).read_bytes().startswith((again / name).read_bytes())
        assert (again / name).read_bytes().count(b"\n") == 3
    feduca.resume(again)
    assert state_of(again) == "finished"
    assert without_clocks(again) == without_clocks(finished)


def test_what_is_not_there_is_not_touched(finished, again):
    before = {path: path.read_bytes() for path in again.rglob("*.json*")}
    run = finished.name
    with pytest.raises(InputError, match=r"no checkpoint of round 2, only of 3, 4, 5, 6; .*checkpoint\.history"):
        roll_back(again, run, 2)
    with pytest.raises(CheckpointError, match=r"belongs to run .*, not to 0123-s0; choose another round"):
        roll_back(again, "0123-s0", 4)
    lock = locked(again)
    try:
        with pytest.raises(InputError, match="another process is writing"):
            roll_back(again, run, 4)
    finally:
        lock.release()
    assert before == {path: path.read_bytes() for path in again.rglob("*.json*")}
    (again / "rounds.jsonl").write_bytes(b"{}\n" * 6)
    with pytest.raises(CheckpointError, match=r"rounds\.jsonl is not what round-00000004 knew it to be"):
        roll_back(again, run, 4)
    assert state_of(again) == "finished"


class App:
    recipe = load(
        {"name": "t", "rounds": 5, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}},
        {"mechanism.name": "fedavg", "participation.rule": "accuracy"},
    )

    def server(self, config):
        return NumpyTask(3)

    def silo(self, name, index, config):
        return NumpyTask(3)


def test_a_deployment_goes_back_and_its_silos_start_again(tmp_path):
    flower, settings = client_app(App()), Settings(silos=3, out=str(tmp_path / "runs"))

    def play():
        nodes = {k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)}
        return serve(App(), LocalGrid(nodes), settings)

    path = play()
    records = (path / "clients.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(checkpoint.numbered(path / "checkpoint")) == [1, 2, 3, 4, 5]
    done = rollback(path, 2)
    assert "silos do not go back" in done.output
    assert play() == path
    after = (path / "clients.jsonl").read_text(encoding="utf-8").splitlines()
    assert state_of(path) == "finished"
    assert after[:2] == records[:2]
    told = [json.loads(line) for line in after]
    assert len(told) == 5
    assert told[2]["status"] == ["joined"] * 3  # in the first round of its own a silo has no model to compare
    assert not {"absent", "refused"} & {word for record in told for word in record["status"]}
    assert '"event": "rolled back"' in (path / "events.jsonl").read_text(encoding="utf-8")
