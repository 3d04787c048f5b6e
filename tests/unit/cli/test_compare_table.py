"""`feduca compare cross`: everything but the axes is equal, and the outcome is shown whole."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli import compare_table as cross
from feduca.cli.main import app
from feduca.mechanisms import registry
from feduca.recipes.build import build, make_task
from feduca.runs.directory import deployed_accuracy, summarise
from feduca.studies.cells import cells
from numpy_task import NumpyTask

CELLS = cells(feduca.recipe("cross"))
SMALL = {
    "rounds": 2,
    "task": {"clients": 3, "max_examples": 300},
    "local": {"epochs": 1},
    "diagnostics": True,
    "compare": [{"label": "ceiling", "set": {"mechanism.name": "fedavg", "participation.rule": "always"}}],
    "axes": [
        {"name": "method", "values": [{"label": m, "set": {"mechanism.name": m}} for m in ("fedavg", "feduca")]},
        {"name": "rule", "values": [{"label": r, "set": {"participation.rule": r}} for r in ("accuracy", "utility")]},
    ],
}


def test_the_cross_holds_every_method_offer_rule_and_threshold():
    inside = [cell for cell in CELLS if len(cell.labels) == 3]
    assert len(inside) == 14 * 3 * 6
    names = {cell.recipe.mechanism["name"] for cell in inside}
    assert names == set(registry) - {
        "uniform",
        "mifa",
        *("finetune", "feddyn", "scaffold", "fedrep"),  # which the recipe `expected` compares
        "softmax-loss",
    }  # both are fedavg here: same weights, same memory
    assert {cell.recipe.offer.kind for cell in inside} == {"global", "least-concession", "best-mixture"}
    rules = {
        (p.rule, p.threshold, p.check) for p in (cell.recipe.participation for cell in inside) if p.ties == "strict"
    }
    assert rules == {
        ("accuracy", "previous-weight", "fitted"),
        *(("utility", threshold, "fitted") for threshold in ("previous-weight", "local-baseline", "own-accuracy")),
        ("utility", "previous-weight", "realised"),
    }
    beside = [cell for cell in CELLS if len(cell.labels) < 3]
    assert [cell.label for cell in beside[:2]] == ["FedAvg, everybody forced in", "FedAvg-WS, Eq. 1"]
    assert [cell.recipe.reporting.decliners for cell in beside] == [
        "all",
        "all",
        "silent",
        "silent",
        "all",
        "all",
        "all",
    ]


def test_everything_but_the_axes_is_equal():
    """Cells differ in mechanism, offer, rule, ties and threshold, and in nothing else: memory and task above all.

    Rows beside the table may have silent decliners.
    """
    free = {"mechanism", "offer", "participation", "reporting"}
    assert {cell.recipe.reporting for cell in CELLS if len(cell.labels) == 3} == {CELLS[0].recipe.reporting}
    rest = [{k: v for k, v in cell.recipe.plain().items() if k not in free} for cell in CELLS]
    assert all(one == rest[0] for one in rest)
    assert rest[0]["memory"] == {"kind": "update"}


def test_every_combination_has_the_same_data_and_the_same_initial_model():
    first = make_task(CELLS[0].recipe, 0)
    theta = build(CELLS[0].recipe, 0, first).theta
    for cell in CELLS[
        :: len(CELLS) // 12
    ]:  # built from scratch from its own recipe; the recipes' equality is tested above
        experiment = build(cell.recipe, cell.recipe.seeds[0])
        assert np.array_equal(experiment.theta, theta)
        for a, b in zip(experiment.task.members, first.members, strict=True):
            for split in ("train", "validation"):
                assert np.array_equal(a.rows[split], b.rows[split])
        assert np.array_equal(experiment.task.pool.x, first.pool.x)


def test_every_combination_runs_from_the_same_start():
    """All of them, on a small task: in round 1 all silos see the same model and train it on the same mini-batches."""
    task = NumpyTask()
    seen = set()
    for cell in CELLS:
        result = feduca.run(cell.recipe, {"rounds": 2, "task.clients": 4, "local.epochs": 1}, task=task)
        first = result.clients[0]
        assert result.rounds[0]["joined"] == 4
        seen.add(json.dumps([result.seed, first["global_accuracy"]]))
        assert set(result.summary) >= set(cross.COLUMNS)
    assert len(seen) == 1


def test_fixed_weights_see_the_same_updates_whatever_the_rule():
    task = NumpyTask()
    plain = [c for c in CELLS if len(c.labels) == 3 and c.labels["method"] in ("FedAvg (uniform)", "random", "TERM")]
    norms = {
        json.dumps(feduca.run(c.recipe, {"rounds": 1, "task.clients": 4}, task=task).clients[0]["update_norm"])
        for c in plain
    }
    assert len(norms) == 1


def test_the_command_prints_one_table_and_draws_one_map(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "small.toml").write_text(toml(SMALL))
    args = ["compare", str(tmp_path / "small.toml"), "--out", str(tmp_path / "runs")]
    shown = CliRunner().invoke(app, args, catch_exceptions=False)
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["participation", "accuracy", "worst", "promise"]
    assert lines[1].split() == ["method", "rule", "%", "%", "client", "%", "kept,", "points"]
    assert [line.split()[0] for line in lines[2:]] == ["ceiling", "fedavg", "fedavg", "feduca", "feduca"]
    picture = tmp_path / "runs" / "small.png"  # beside the runs: `report runs/small/*` takes runs alone
    assert f"heat map written to {picture}" in shown.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False).stdout)
    assert [row["axes"] for row in rows[:2]] == [{"method": "ceiling"}, {"method": "fedavg", "rule": "accuracy"}]
    assert all(0 <= row["worst_client"] <= row["deployed"] <= 1 for row in rows)


def test_without_matplotlib_one_line_says_how_to_get_the_map(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    line = cross.heat_map(feduca.recipe(SMALL), [], tmp_path / "map.png")
    assert "pip install 'feduca[plots]'" in line
    assert not (tmp_path / "map.png").exists()


def test_deployed_accuracy_by_hand():
    record = {
        "status": ["joined", "declined"],
        "offered_accuracy": [0.5, 0.9],
        "own_accuracy": [0.4, 0.7],
        "test_deployed": None,
    }
    later = {**record, "status": ["declined", "declined"]}
    assert deployed_accuracy([record, later]) == pytest.approx([0.45, 0.7])
    assert deployed_accuracy([{**record, "test_deployed": [0.1, 0.2]}]) == pytest.approx([0.1, 0.2])
    silent = {**record, "status": ["joined", "absent"], "offered_accuracy": [0.5, None], "own_accuracy": [0.4, None]}
    assert deployed_accuracy([silent]) == pytest.approx([0.5, np.nan], nan_ok=True)  # unknown is not 0 %
    run = feduca.run({}, {"rounds": 2, "task.clients": 4, "local.epochs": 1}, task=NumpyTask())
    gone = [{**r, "status": ["absent", *r["status"][1:]]} for r in run.clients]
    known = deployed_accuracy(run.clients)[1:]
    assert summarise(run.rounds, gone)["deployed"] == pytest.approx(np.mean(known))
    assert summarise(run.rounds, gone)["worst_client"] == pytest.approx(min(known))
    nobody = summarise(run.rounds, [{**r, "status": ["absent"] * 4} for r in run.clients])
    assert (nobody["deployed"], nobody["worst_client"]) == (None, None)


def toml(tree) -> str:
    import tomlkit

    return tomlkit.dumps(tree)
