"""`feduca bench cpu`: the contestants do the same job, and what is missing is said."""

from __future__ import annotations

import json
import re

import pytest

from command_line import feduca
from feduca import bench
from feduca.errors import InputError


def test_the_engine_and_the_plain_loop_end_at_the_same_loss(tmp_path):
    said: list[str] = []
    found = bench.run("cpu", tmp_path, said.append, 4, {"task.data": "digits", "local.batch_size": 10})
    assert found == json.loads((tmp_path / "cpu.json").read_text())
    assert found["vs_sequential"] > 0
    assert len(found["seconds_a_round"]["ours"]["1 threads"]) == 3  # the first round does not count
    assert found["final_loss"]["ours"] == pytest.approx(found["final_loss"]["plain"], rel=0.03)
    assert found["final_loss"]["ours"] < 2.2  # it learns
    assert said[0].endswith(" 4 rounds:")
    assert said[1].startswith("  ours, 1 thread: ")
    for name, ratio, package in (("pfl", "vs_pfl", "pfl"), ("flower", "vs_flower_simulation", "ray")):
        if found["versions"][package] is None:
            assert found[ratio] is None
            (line,) = (line.strip() for line in said if line.strip().startswith(f"{name}: left out, "))
            assert f"{package} not installed (pip install" in line
        else:
            assert found[ratio] > 0


def test_what_is_printed_and_where_it_is_saved(tmp_path, monkeypatch, capsys):
    """A stand-in for the contest: the command's own output."""
    from feduca.bench import cpu

    asked = []

    def contest(recipe, rounds, about, say, save):
        asked.append((recipe.task.data, recipe.task.max_examples, rounds))
        every = {"ours": {"1 threads": [0.2, 0.1]}, "plain": {"1 threads": [0.3]}}
        found = {"data": recipe.task.data, "examples_per_silo": recipe.task.max_examples or 4800}
        return found | {"seconds_a_round": every, **cpu.ratios(every)}

    monkeypatch.setattr(cpu, "_contest", contest)
    code, out, err = feduca("bench", "--out", str(tmp_path), capsys=capsys)
    assert code == 0
    table = [[word for word in re.split(r" {2,}", line) if word] for line in out.splitlines()]
    assert table == [
        ["fmnist", "2500 examples a silo", "6000 examples a silo", "4800 examples a silo"],
        ["a round, ours", "0.100 s", "0.100 s", "0.100 s"],
        ["plain PyTorch loop", "3.0 x ours", "3.0 x ours", "3.0 x ours"],
        ["pfl", "-", "-", "-"],
        ["Flower, simulation on Ray", "-", "-", "-"],
    ]
    assert err == f"saved in {tmp_path}/cpu.json\n"
    kept = (tmp_path / "cpu.json").read_text()
    code, out, err = feduca("bench", "--smoke", "--json", "--out", str(tmp_path), capsys=capsys)
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert (tmp_path / "cpu.json").read_text() == kept  # the real one stays
    assert asked == [("fmnist", 2500, 16), ("fmnist", 6000, 16), ("fmnist", None, 5), ("digits", None, 4)]
    assert "needs Fashion-MNIST" in " ".join(feduca("bench", "--help", capsys=capsys)[1].split())


def test_bad_questions_get_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no benchmark"):
        bench.run("tpu", tmp_path, print, None, {})
    with pytest.raises(InputError, match="asked for 1 round: the first only warms up"):
        bench.run("cpu", tmp_path, print, 1, {})
    with pytest.raises(InputError, match="asked for 0 rounds: the first"):
        bench.run("cpu", tmp_path, print, 0, {})
    with pytest.raises(InputError, match=r"compares multilayer perceptrons; task\.model is .logistic."):
        bench.run("cpu", tmp_path, print, 2, {"task.data": "digits", "task.model": "logistic"})


def test_the_gpu_benchmark_goes_through_and_saves_on_the_way(tmp_path, monkeypatch):
    """Its whole course on small data and the CPU: what is timed on a GPU must not fail after minutes."""
    from feduca.bench import gpu

    monkeypatch.setattr(gpu, "_cuda", lambda: True)
    monkeypatch.setattr("feduca.tasks.engines.gpu.peak.megabytes", lambda device: 1.0)
    monkeypatch.setattr("feduca.studies.execute._check_settings", lambda *told: None)  # digits in place of CIFAR-10
    both = gpu.agreement
    monkeypatch.setattr(gpu, "agreement", lambda say: both(say, 2, ("cpu", "cpu")))
    saved: list[dict] = []
    small = {
        "engine.device": "cpu", "task.data": "digits", "task.model": "mlp", "task.hidden": [8],
        "local.augment": False, "local.epochs": 1, "engine.threads": 1,
    }  # fmt: skip
    found = gpu.run(
        tmp_path, lambda line: None, lambda part: saved.append(dict(part)), rounds=3, short=2, settings=small
    )
    wanted = {"cifar10_feduca_s", "cifar10_fedavg_s", "overhead", "fmnist_feduca_s", "peak_mb", "agreement"}
    assert wanted <= set(saved[0])
    assert {"lockstep_speedup", "lockstep_21_runs_s", "device", "versions", "commit"} <= set(found)
    shown = gpu.text(found)
    assert "CIFAR-10, FedUCA" in shown
    assert f"{found['lockstep_21_runs_s']:.1f} s" in shown
    assert found["agreement"]["rounds_with_the_same_decisions"] == 2
    assert found["lockstep_speedup"] > 0
    table = json.loads((tmp_path / "table1.json").read_text())
    assert sorted(cell["method"] for cell in table) == sorted(gpu.METHODS)
    assert all(cell["seeds"] == [0, 1, 2] for cell in table)
    assert found["lockstep_accuracies"] == {cell["method"]: cell["accuracies"] for cell in table}
