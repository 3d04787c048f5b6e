"""The summary of a cell of two seeds, made by hand: every figure follows from the records, all seeds and the right rounds."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from feduca.recipes import schema as config
from feduca.runs.directory import RunResult
from feduca.runs.directory import summarise as figures
from feduca.studies.cells import Cell
from feduca.studies.summarise import summarise

ROUNDS = 60
RECIPE = config.load("quickstart", {"task.clients": 2, "rounds": ROUNDS})


def gap(t: int, seed: int) -> float:
    """Out of order over the rounds: 1 to 60 in a permutation, ten times that for the second seed."""
    return (7 * t % 61) * (1 if seed == 0 else 10)


def run(seed: int) -> RunResult:
    """Two silos: the second one joins in odd rounds; round 30 of the second seed is empty, five rounds had a fallback."""
    rounds, clients = [], []
    for t in range(1, ROUNDS + 1):
        joined = 0 if (seed, t) == (1, 30) else 1 + (t % 2) if seed == 0 else 1
        rounds.append(
            {
                "round": t, "accuracy": 0.01 * t + 0.1 * seed, "participation": joined / 2, "joined": joined,
                "satisfied": 1, "fallback": "tilt" if t > 55 and seed == 0 else None, "jensen": gap(t, seed),
                "discrepancy": 0.1 * (seed + 1), "discrepancy_bound_expected": None, "r2": None, "concession": 0.0,
                "promise_kept": 0.0, "smallest_cohort": joined, "members": 2, "seconds": {"round": 1.0, "allocate": 0.25},
            }
        )  # fmt: skip
        large = gap(t, 0) > ROUNDS - 25
        clients.append(
            {
                "round": t, "status": ["joined", "declined"], "eq1": [True, False], "promise_kept": [0.04, -0.02],
                "slack": [0.1, 0.2] if large else [0.1, 0.0], "zeta": [None, None], "r2": [None, None],
                "capped": [False, False], "test_deployed": [0.01 * t, 0.5], "test_own": [0.0, 0.0],
                "test_global": [1.0, 1.0], "test_alone": None, "own_accuracy": [0.5, 0.5],
            }
        )  # fmt: skip
    plain = RECIPE.plain() | {"seeds": [seed]}
    return RunResult("made", plain, seed, rounds, clients, figures(rounds, clients))


def test_a_summary_of_two_seeds():
    (cell,) = [Cell({"method": "feduca"}, RECIPE)]
    found = summarise(cell, [run(0), run(1)])

    last = [statistics.fmean(0.01 * t + 0.1 * seed for t in range(51, 61)) for seed in (0, 1)]
    assert found["seeds"] == [0, 1]
    assert found["accuracies"] == pytest.approx(last)
    assert found["accuracy_mean"] == pytest.approx(statistics.fmean(last))
    assert found["accuracy_std"] == pytest.approx(statistics.stdev(last))
    assert found["participations"] == pytest.approx([0.75, 59 / 120])
    assert found["participation_mean"] == pytest.approx((0.75 + 59 / 120) / 2)
    assert found["joined_least"] == 0  # of one seed, in one round: no mean over seeds shows it

    assert found["accuracy_by_round"][9] == pytest.approx(0.15)  # .10 and .20
    assert found["participation_by_round"][28:30] == [0.75, 0.25]
    assert found["discrepancy"] == pytest.approx([0.15] * ROUNDS)
    assert found["discrepancy_bound_expected"] is None
    assert found["fallbacks"] == 2.5  # 5 and 0

    largest = {"mean": 30.5, "top50": statistics.fmean(range(11, 61)), "top25": statistics.fmean(range(36, 61))}
    assert found["jensen"] == pytest.approx({key: 5.5 * value for key, value in largest.items()})
    assert found["jensen_short"] == {"top25": 1.0, "rest": 0.5}
    assert found["short_share"] == pytest.approx((25 * 1.0 + 35 * 0.5) / 60)
    assert found["promise_kept"] == 0.0
    assert found["promise_error"] == pytest.approx(0.03)  # its sign does not help it

    assert found["deployed_test"] == [pytest.approx([0.555, 0.5])] * 2  # the last ten rounds
    assert found["deployed_test_mean"] == pytest.approx(0.5275)
    assert found["members_share"] == 1.0
    assert found["seconds_allocate"] == pytest.approx(15.0)


def test_a_summary_says_what_the_model_started_from(tmp_path):
    (tmp_path / "env.json").write_text('{"task": {"model": "resnet18", "weights": "ImageNet (torchvision)"}}')
    cell = Cell({"method": "feduca"}, RECIPE)
    found = summarise(cell, [replace(run(0), run_dir=tmp_path)])
    assert (found["model"], found["weights"]) == ("resnet18", "ImageNet (torchvision)")
    assert summarise(cell, [run(0)])["weights"] is None  # kept nowhere


def test_without_a_program_nothing_is_short():
    bare = run(0)
    bare = replace(bare, clients=[{**record, "slack": None} for record in bare.clients])
    found = summarise(Cell({"method": "fedavg"}, RECIPE), [bare])
    assert (found["short_share"], found["jensen_short"], found["accuracy_std"]) == (None, None, None)
