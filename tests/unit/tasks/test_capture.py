"""Steps become CUDA graphs on one stream: on a GPU by its memory, without one by what torch was asked for."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from feduca.tasks.data.batches import Plan
from feduca.tasks.engines.gpu import capture


@pytest.fixture
def asked(monkeypatch):
    """torch.cuda played by a diary: which streams were made, and where each step ran."""
    diary = {"streams": 0, "steps": [], "where": "main", "pools": [], "replayed": []}

    class Stream:
        def __init__(self):
            diary["streams"] += 1

        def wait_stream(self, other):
            assert other is not self

    main = object.__new__(Stream)

    @contextmanager
    def inside(name):
        before, diary["where"] = diary["where"], name
        yield
        diary["where"] = before

    class Graph:
        def pool(self):
            return id(self)

        def replay(self):
            diary["replayed"].append(self)

    def graph(recorded, stream, pool=None):
        assert stream is capture._side()
        diary["pools"].append(pool)
        return inside("graph")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: inside("side"))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    capture._side.cache_clear()
    yield diary
    capture._side.cache_clear()


def test_steps_are_warmed_from_zero_and_then_recorded(asked):
    number = torch.full((1,), 7)

    def step():
        asked["steps"].append((asked["where"], int(number)))
        number.add_(1)

    capture.captured(step, number, unroll=3)
    assert asked["steps"] == [("side", 0)] * capture.WARM + [("graph", 1), ("graph", 2), ("graph", 3)]


def test_every_recording_is_made_on_the_same_stream(asked):
    for _ in range(3):
        capture.captured(lambda: None, torch.zeros(1))
    assert asked["streams"] == 1


def test_few_numbers_of_clients_are_recorded():
    assert [capture.width(n, 100) for n in (1, 4, 5, 6, 7, 12, 13, 24, 25, 48, 49, 64, 65, 96, 97, 100)] == [
        4, 4, 6, 6, 8, 12, 16, 24, 32, 48, 64, 64, 96, 96, 100, 100,
    ]  # fmt: skip
    assert [capture.width(n, 5) for n in (1, 4, 5)] == [4, 4, 5]
    assert capture.width(1, 2) == 2
    assert len({capture.width(n, 1000) for n in range(1, 1001)}) == 17


def test_clients_that_are_done_leave_the_graphs(asked):
    """Nine clients: five of them have more than two steps, two more than four."""
    own = np.array([12, 10, 4, 4, 4, 2, 2, 2, 2])
    sizes = np.where(np.arange(12)[:, None] < own, 5, 0)
    batches = Plan(np.zeros((12, 9, 5), int), sizes, None)

    class OnDevice:  # the number of the step
        is_cuda = True

        def zero_(self):
            pass

    seen = []
    number: Any = OnDevice()
    graphs = capture.Graphs(seen.append, number, unroll=2)
    wanted = graphs.prepare(batches)
    assert wanted == [9, 6, 4, 4, 4, 4]
    assert seen == [9] * 4 + [6] * 4 + [4] * 4  # each warmed and recorded once
    assert asked["pools"] == [None, graphs.made[9].pool(), graphs.made[9].pool()]
    graphs.replay(wanted)
    assert asked["replayed"] == [graphs.made[n] for n in wanted]
    assert graphs.prepare(batches) == wanted
    assert len(seen) == 12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_recordings_leave_nothing_behind():
    a, number = torch.randn(256, 256, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    held = []
    for _ in range(4):
        graph = capture.captured(lambda: torch.mm(a, a), number)
        graph.replay()
        torch.cuda.synchronize()
        del graph
        held.append(torch.cuda.memory_allocated())
    assert len(set(held)) == 1
