"""The library as its users hold it: public names, bit-equal repeats, the loop as a generator, run directories."""

from __future__ import annotations

import gc
import itertools
import json
import weakref

import numpy as np
import pytest

import feduca
from feduca.errors import InputError
from feduca.runs import directory as runs
from numpy_task import NumpyTask

FAST = {"rounds": 3, "local.epochs": 1}


def test_public_names_are_all_there():
    assert set(feduca.__all__) == set(dir(feduca))
    for name in feduca.__all__:
        assert getattr(feduca, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        feduca.train  # noqa: B018


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_the_same_seed_gives_the_same_run_bit_for_bit(engine, tmp_path):
    settings = {**FAST, "engine.kind": engine}
    a, b = (feduca.run("quickstart", settings, out=tmp_path / name) for name in "ab")
    assert (np.asarray(a.theta) == np.asarray(b.theta)).all()
    assert a.clients == b.clients
    without_clocks = [[{**record, "seconds": None} for record in result.rounds] for result in (a, b)]
    assert without_clocks[0] == without_clocks[1]
    clients = [(result.run_dir / "clients.jsonl").read_bytes() for result in (a, b)]
    assert clients[0] == clients[1]
    assert (a.run_dir / "config.toml").read_bytes() == (b.run_dir / "config.toml").read_bytes()


def test_another_seed_gives_another_run():
    a, b = (feduca.run("quickstart", FAST, seed=seed) for seed in (0, 1))
    assert not (np.asarray(a.theta) == np.asarray(b.theta)).all()


def test_iterate_can_be_stopped_and_agrees_with_run():
    whole = feduca.run("quickstart", FAST)
    part = list(itertools.islice(feduca.iterate("quickstart", FAST), 2))
    assert [record.accuracy for record, _, _ in part] == [r["accuracy"] for r in whole.rounds[:2]]
    assert part[-1][2].round == 3


def test_what_every_round_records():
    result = feduca.run("quickstart", {**FAST, "task.test_share": 0.3, "mechanism.schedule": "lagged"})
    record, clients = result.rounds[-1], result.clients[-1]
    never_null = ("accuracy", "slack", "jensen", "discrepancy", "discrepancy_bound", "discrepancy_bound_expected", "r2")
    assert all(record[key] is not None for key in never_null)
    assert record["discrepancy"] <= record["discrepancy_bound"] + 1e-9
    n = len(clients["status"])
    assert n == 10
    for key in ("alpha", "zeta", "gamma", "eq1", "eq2", "staleness", "promise_kept", "test_deployed", "test_own"):
        assert len(clients[key]) == n
        assert all(value is not None for value in clients[key])
    assert sum(clients["alpha"]) == pytest.approx(1)
    assert clients["promise_kept"] == pytest.approx(
        np.array(clients["global_accuracy"]) - np.array(clients["promised"])
    )
    assert set(record["seconds"]) == {"exchange", "allocate", "evaluate", "round"}


def test_diagnostics_give_everybody_a_curve():
    settings = {**FAST, "mechanism.name": "fedavg", "participation.rule": "accuracy"}
    plain = feduca.run("quickstart", settings)
    full = feduca.run("quickstart", {**settings, "diagnostics": True})
    assert all(value is None for value in plain.clients[-1]["eq2"])
    assert all(value is not None for value in full.clients[-1]["eq2"])
    assert (np.asarray(plain.theta) == np.asarray(full.theta)).all()  # looking does not change the run


def test_inflation_for_all_and_for_one():
    base = {**FAST, "reporting.kind": "inflate", "reporting.share": 0.5}
    everyone = feduca.run("quickstart", base)
    one = feduca.run("quickstart", {**base, "reporting.clients": [3]})
    truth = feduca.run("quickstart", FAST)
    gamma = [np.array(result.clients[0]["gamma"]) for result in (truth, one, everyone)]
    assert gamma[2] == pytest.approx(1.5 * gamma[0])
    assert gamma[1] == pytest.approx(np.where(np.arange(10) == 3, 1.5, 1.0) * gamma[0])


def test_decide_by_true_threshold_keeps_an_inflating_silo_willing():
    base = {**FAST, "mechanism.name": "uniform", "reporting.kind": "inflate", "reporting.share": 0.5}
    assert feduca.run("quickstart", {**base, "reporting.decide_by": "true"}).participation == 1
    assert feduca.run("quickstart", base).participation == pytest.approx(1 / 3)  # only the first round


def test_fixed_s_is_the_same_every_round_and_redrawn_is_not():
    fixed = feduca.run("quickstart", {**FAST, "mechanism.s": "fixed"})
    redrawn = feduca.run("quickstart", FAST)
    assert fixed.rounds[0]["s"] == fixed.rounds[2]["s"]
    assert redrawn.rounds[0]["s"] != redrawn.rounds[2]["s"]


def test_a_task_of_ones_own(tmp_path):
    task = NumpyTask(5)
    result = feduca.run({"name": "mine"}, {"rounds": 2, "task.clients": 5}, task=task, out=tmp_path)
    assert len(result.clients[0]["status"]) == 5
    assert result.run_dir is not None
    assert json.loads((result.run_dir / "env.json").read_text())["silos"] == list(task.silos)


def test_load_reads_a_run_back(tmp_path):
    result = feduca.run("quickstart", FAST, out=tmp_path)
    again = feduca.load(result.run_dir)
    assert again.rounds == result.rounds
    assert again.summary == result.summary
    assert again.accuracy == result.accuracy


def test_load_refuses_what_is_not_a_run(tmp_path):
    with pytest.raises(InputError, match="is not a run directory"):
        feduca.load(tmp_path)
    (tmp_path / "status.json").write_text("[]")
    with pytest.raises(InputError, match="is not a run directory"):
        feduca.load(tmp_path)


def test_a_run_that_fails_says_so_in_its_directory(tmp_path):
    class Breaks(NumpyTask):
        def train(self, theta, clients, spec, round, seed, anchor=None):
            if round == 2:
                raise OSError("the disk is on fire")
            return super().train(theta, clients, spec, round, seed, anchor)

    with pytest.raises(OSError, match="on fire"):
        feduca.run({"name": "mine"}, {"rounds": 3, "task.clients": 4}, task=Breaks(), out=tmp_path)
    (folder,) = (tmp_path / "mine").iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] == "failed"
    assert "on fire" in status["reason"]
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1


def test_summaries_average_the_last_ten_rounds():
    records = [
        {**dict.fromkeys(["satisfied", "jensen", "discrepancy", "r2", "concession", "promise_kept", "fallback"]),
         "accuracy": t / 100, "participation": 0.5, "smallest_cohort": 1, "seconds": {"round": 2.0}}
        for t in range(20)
    ]  # fmt: skip
    client = {"own_accuracy": [0.5, 0.5], "status": ["joined", "declined"], "test_deployed": [0.9, 0.6]}
    clients = [{**client, "round": 1, "eq1": [True, False]}, {**client, "round": 2, "eq1": [True, True]}]
    summary = runs.summarise(records, clients)
    assert summary["accuracy"] == pytest.approx(0.145)
    assert summary["seconds"] == 40
    assert summary["eq1_share"] == 1  # the first round has no own models to compare with
    assert (summary["still_in"], summary["left"]) == (1, {})


def test_a_silo_without_a_test_part_is_judged_by_its_validation_data():
    joined = {"status": ["joined", "joined"], "offered_accuracy": [0.1, 0.7], "own_accuracy": [0.2, 0.3]}
    assert runs.deployed_accuracy([{**joined, "test_deployed": [0.9, None]}]) == [0.9, 0.7]


def test_a_run_with_the_device_to_itself_says_what_memory_it_took(monkeypatch):
    asked = []
    monkeypatch.setattr(feduca.api.peak, "reset", asked.append)
    monkeypatch.setattr(feduca.api.peak, "megabytes", lambda device: 12.5)
    assert feduca.run("quickstart", rounds=1).summary["peak_mb"] == 12.5
    assert asked == ["cpu"]
    monkeypatch.undo()
    assert "peak_mb" not in feduca.run("quickstart", rounds=1).summary  # nobody counts on a CPU


def test_what_an_earlier_run_left_is_not_counted_as_the_next_ones(monkeypatch):
    class Held:
        pass

    import torch

    held = Held()
    held.itself, gone = held, weakref.ref(held)
    freed = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: freed.append(gone() is None))
    gc.disable()
    try:
        del held
        feduca.api.peak.reset("cuda")
    finally:
        gc.enable()
    assert freed == [True]
