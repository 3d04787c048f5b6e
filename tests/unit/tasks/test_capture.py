"""Steps become CUDA graphs on one stream: on a GPU by its memory, without one by what torch was asked for."""

from contextlib import contextmanager

import pytest
import torch

from feduca.tasks.engines.gpu import capture


@pytest.fixture
def asked(monkeypatch):
    """torch.cuda played by a diary: which streams were made, and where each step ran."""
    diary = {"streams": 0, "steps": [], "where": "main"}

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

    def graph(recorded, stream):
        assert stream is capture._side()
        return inside("graph")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
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
