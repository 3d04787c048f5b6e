"""Secure aggregation on real SuperNodes: the model of a simulation, a silo that drops out, and what crossed the wire."""

from __future__ import annotations

import json

import numpy as np
import pytest

from feduca.core import rounds as loop
from feduca.federation import InProcess
from feduca.flower import deploy
from feduca.recipes.build import behaviour_of, make_server, masked
from feduca.recipes.schema import load
from feduca.runs.lines import Lines
from flower_world import BASE, World
from numpy_task import NumpyTask

N = 4
SETTINGS = {
    "privacy.secure_aggregation": True,
    "task.clients": N,
    "rounds": 3,
    "mechanism.name": "fedavg",
    "participation.rule": "always",
}


class DropsOutInRoundTwo:
    """What `mischief.json` makes of silo-3."""

    def __call__(self, round: int, client: int) -> str | None:
        return "masking" if (round, client) == (2, 3) else None


@pytest.mark.slow
def test_real_supernodes_give_the_sum_and_nothing_else(tmp_path):
    world = World(tmp_path, silos=N)
    try:
        path = world.recipe(SETTINGS, silos=N)
        world.mischief("silo-3", {"2": "gone before mask"})
        world.start()
        world.wait_online()
        deploy.run(world.server, seconds=600)
    finally:
        world.stop()
    recipe, task = load({**BASE, "name": "deployed"}, SETTINGS), NumpyTask(N)
    inner = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=True)
    federation = masked(recipe, inner, task.parameters, drops=DropsOutInRoundTwo())
    wanted = loop.play(loop.rounds(make_server(recipe, 0, task), task.init(0), task.examples), federation)
    from safetensors.numpy import load_file

    seen = load_file(sorted((path / "checkpoint").iterdir())[-1] / "arrays.safetensors")
    assert np.array_equal(seen["state.theta"], wanted.theta)
    assert np.array_equal(seen["state.contributed"], wanted.contributed)
    assert "dropped out" in Lines.of(path / "clients.jsonl")[1]["advice"][3]
    rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert [record["joined"] for record in rounds] == [N] * 3
    assert "seconds" in rounds[0]
