"""A run on a GPU is the run on a CPU, as far as fp32 goes; skipped without a GPU."""

import pytest
import torch

from feduca import api

ROUNDS = 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("settings", [{}, {"mechanism.name": "fedavg", "participation.rule": "accuracy"}])
def test_a_small_task_makes_the_same_decisions_on_both(settings):
    cpu, gpu = (
        api.run("quickstart", {**settings, "engine.precision": "fp32", "engine.device": device}, rounds=ROUNDS, seed=0)
        for device in ("cpu", "cuda")
    )
    decisions = [[record["status"] for record in result.clients] for result in (cpu, gpu)]
    assert decisions[0] == decisions[1]
    assert len(decisions[0]) == ROUNDS
    assert len({tuple(one) for one in decisions[0]}) > 1  # there was something to decide
    for one, other in zip(gpu.rounds, cpu.rounds):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.006)  # two of 359
