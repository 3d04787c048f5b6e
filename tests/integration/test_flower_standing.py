"""Standing over real SuperNodes: one withholds its work, is found and is sent nothing new; the server is killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feduca.cli.main import app
from feduca.core import rounds as loop
from feduca.federation import InProcess
from feduca.flower import deploy
from feduca.recipes.build import behaviour_of, build
from feduca.recipes.schema import load
from feduca.runs import checkpoint
from flower_world import World, events, reasons, statuses, wait_for
from numpy_task import NumpyTask

pytestmark = pytest.mark.slow

ROUNDS, SHIRKER = 8, 1
SETTINGS = {
    "rounds": ROUNDS,
    "mechanism.name": "fedavg",
    "participation.rule": "always",
    "standing.kind": "work",
    "standing.patience": 2,
    "checkpoint.every_s": 0,
}


def simulated(path: Path):
    """The same in one process, never disturbed: the records and the last state."""
    recipe = load(path / "config.toml").with_settings({"conduct.kind": "withhold", "conduct.clients": [SHIRKER]})
    task, rows = NumpyTask(3), []
    one = build(recipe, 0, task)
    federation = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=True)
    loops = loop.rounds(one.server, one.theta, task.examples, on_round=lambda r, each, _: rows.append(each))
    return rows, loop.play(loops, federation)


def test_a_supernode_that_withholds_is_found_and_sent_nothing_new_even_if_the_server_is_killed(tmp_path):
    world = World(tmp_path)
    try:
        world.start()
        path = world.recipe(SETTINGS)
        world.mischief(f"silo-{SHIRKER}", {str(t): "withhold" for t in range(1, ROUNDS + 1)})
        honest = world.mischief("silo-0", {"5": "slow"})
        world.mischief("silo-2", {})
        deploy.submit(world.server)
        wait_for(lambda: (honest / "busy-5").exists(), 400, "silo-0 to train in round 5")
        world.kill_server_app()
        number = deploy.submit(world.server)  # goes on after round 4, when the silo had no standing already
        deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=1200)
        sent = {
            k: json.loads((world.place / "silos" / f"silo-{k}" / "state" / "sent.json").read_text()) for k in range(3)
        }
    finally:
        world.stop()
    assert "going on after round 4" in events(path)

    # Found in the second round, and from the third on sent the two models it had, by turns; the others always the new one.
    assert [row[SHIRKER] for row in statuses(path)] == ["joined"] * 2 + ["refused"] * 6
    assert reasons(path)[-1][SHIRKER] == "refused: without standing: sent nothing new for 8 rounds"
    told = [sent[SHIRKER][str(t)] for t in range(1, ROUNDS + 1)]
    assert told[2:] == told[:2] * 3
    for k in (0, 2):
        assert [row[k] for row in statuses(path)] == ["joined"] * ROUNDS
        assert len({sent[k][str(t)] for t in range(1, ROUNDS + 1)}) == ROUNDS
    assert sent[0] == sent[2]

    # Killed and resumed or not, deployed or simulated: the same to the bit.
    rows, final = simulated(path)
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [line["standing"] for line in clients] == [list(each.standing) for each in rows]
    assert [line["standing"][SHIRKER] for line in clients] == [0.75, 0.5, 0.25, 0, 0, 0, 0, 0]
    state = checkpoint.read(checkpoint.existing(path / "checkpoint")[0]).state
    assert np.array_equal(state.theta, final.theta)
    assert sorted(state.past) == sorted(final.past)
    assert all(np.array_equal(state.history[name], final.history[name]) for name in final.history if "work" in name)

    # Everybody who looks is told.
    shown = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "report.html")])
    assert shown.exit_code == 0, shown.output
    assert "silo-1 has no standing" in (tmp_path / "report.html").read_text()
