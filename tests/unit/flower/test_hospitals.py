"""examples/hospitals as it is: its data, its app, its recipe, through the codec."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feduca.errors import DataError
from feduca.flower.server import Settings, serve
from local_grid import LocalGrid, Node

EXAMPLE = Path(__file__).parents[3] / "examples" / "hospitals"
NAMES = ("north", "south", "east")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    shutil.copytree(EXAMPLE / "app", folder / "app")
    shutil.copy(EXAMPLE / "recipe.toml", folder / "app" / "recipe.toml")  # as `deploy init` does
    subprocess.run([sys.executable, EXAMPLE / "prepare.py", folder / "data"], check=True, capture_output=True)
    return folder


@pytest.fixture
def app(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place / "app"))
    import deployed

    yield deployed
    for name in ("deployed", "logistic"):
        sys.modules.pop(name, None)


def test_hospitals_have_unequal_data_of_their_own(place):
    rows = {name: (place / "data" / f"{name}.csv").read_text().splitlines()[1:] for name in (*NAMES, "test")}
    assert [len(lines) for lines in rows.values()] == [270, 120, 65, 114]
    assert len(set().union(*rows.values())) == 569  # nobody shares a patient


def test_the_federation_learns_and_hospitals_decline(place, app, tmp_path):
    nodes = {
        k: Node(
            app.client,
            {"silo": name, "folder": str(tmp_path / name), "data": str(place / "data" / f"{name}.csv")},
            name=name,
        )
        for k, name in enumerate(NAMES)
    }
    config = {"test": str(place / "data" / "test.csv")}
    path = serve(app.app, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")), config)
    rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert len(rounds) == 12
    assert rounds[-1]["accuracy"] > 0.93
    assert rounds[-1]["loss"] < rounds[0]["loss"]
    said = [word for record in clients for word in record["status"]]
    assert set(said) == {"joined", "declined"}
    assert (
        min(record["r2"] for record in rounds) > 0.99
    )  # the loss of a convex model is nearly a parabola along the path
    assert (tmp_path / "east" / "log.jsonl").read_text().count("\n") == 12


def test_a_file_that_is_none(app, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="it needs at least 6 rows of 31 columns"):
        app.app.silo("north", 0, {"data": str(tmp_path / "bad.csv")})
    with pytest.raises(DataError, match="cannot be read"):
        app.app.silo("north", 0, {"data": str(tmp_path / "none.csv")})


def test_gradient_of_the_task_is_right(place, app):
    """Against finite differences: one full-batch step of training."""
    from feduca.types import LocalSpec

    task = app.app.silo("east", 2, {"data": str(place / "data" / "east.csv")})
    theta = np.random.default_rng(0).normal(scale=0.1, size=(1, task.size))
    n = int(task.examples[0])
    moved = task.train(theta, np.array([2]), LocalSpec(epochs=1, batch_size=n, lr=1.0), 1, 0)
    slope = (theta - moved)[0]
    for j in (0, 7, 30):
        step = np.zeros_like(theta)
        step[0, j] = 1e-5
        up, down = (task.evaluate(theta + s * step, np.array([2]), "train").loss[0] for s in (1, -1))
        assert abs((up - down) / 2e-5 - slope[j]) < 1e-6
