"""Two thousand tiny rounds with a checkpoint each, hostile silos included: neither memory nor open files grow."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import UtilityThreshold
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.records import plain
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.federation import Faulty, InProcess
from feduca.mechanisms import FedUCA
from feduca.runs.directory import RunDirectory
from feduca.trust.plausibility import Plausibility
from feduca.types import LocalSpec
from numpy_task import NumpyTask

ROUNDS = 2000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_two_thousand_rounds_leave_nothing_behind(tmp_path):
    task = NumpyTask(6, validation=10)
    server = Server(
        FedUCA(n_s=2), memories["update"], Quadratic(), LocalSpec(epochs=1), ROUNDS, 0, plausibility=Plausibility()
    )
    how = Behaviour(UtilityThreshold(), Global(), Quadratic(), 0, needs=server.mechanism.needs, check_every=0)
    federation = Faulty(InProcess(task, how), (1, 4), seed=0)
    samples = []
    with RunDirectory(tmp_path, "soak", "0", 0, every_s=0) as directory:
        directory.begin({"name": "soak"}, 0, task.silos, {})
        tracemalloc.start()
        try:
            steps = loop.steps(server, task.init(0), task.examples, federation, evaluate=task.test)
            for record, clients, state in steps:
                directory.append(plain(record), plain(clients))
                directory.save(state, federation.snapshot())
                if record.round % 200 == 0:
                    gc.collect()
                    samples.append((tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))))
        finally:
            tracemalloc.stop()
    assert len(samples) == ROUNDS // 200
    memory, files = zip(*samples)
    assert max(memory[5:]) < 1.05 * max(memory[:5]) + 50_000
    assert max(files[1:]) <= files[0]
    assert len(list((tmp_path / "soak" / "0-s0" / "checkpoint").iterdir())) == 2
