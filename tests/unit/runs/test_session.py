"""The one recorder of simulated and deployed runs: both say what their figures are."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field

import pytest

import feduca
from feduca.flower import client_app
from feduca.flower.server import Settings, serve
from feduca.recipes.schema import Recipe, load
from feduca.tasks import criterion
from local_grid import LocalGrid, Node
from numpy_task import NumpyTask


class Judged(NumpyTask):
    criterion = criterion("auc")


@dataclass
class App:
    task: type = NumpyTask
    settings: dict = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        base = {"name": "t", "rounds": 2, "local": {"epochs": 1, "batch_size": 5}, "task": {"clients": 3}}
        return load(base, self.settings)

    def server(self, config):
        return self.task(3)

    def silo(self, name, index, config):
        return self.task(3)


def deployed(app, tmp_path):
    flower = client_app(app)
    nodes = {k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)}
    return serve(app, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))


@pytest.mark.parametrize(
    ("app", "metric"),
    [
        (App(), None),
        (App(settings={"task.data": "the/silos/files", "task.metric": "auc"}), "auc"),  # a server without data
        (App(Judged), "auc"),
    ],
)
def test_a_deployed_run_says_what_its_figures_are(app, metric, tmp_path, caplog):
    caplog.set_level(logging.INFO, "feduca")
    path = deployed(app, tmp_path)
    assert json.loads((path / "status.json").read_text())["summary"].get("metric") == metric
    assert feduca.load(path).row().get("metric") == metric
    assert f"round 2 of 2: {metric or 'accuracy'} " in caplog.text


def test_a_simulated_run_says_it_too():
    assert feduca.run("quickstart", rounds=1, task=Judged(3)).summary["metric"] == "auc"
    assert "metric" not in feduca.run("quickstart", rounds=1, task=NumpyTask(3)).summary
