"""Steps of training as CUDA graphs: recorded once, replayed from then on without a word from the host.

Silos of unequal size end one after another. A graph is of a fixed number of clients, so there are a few of them: for all clients,
and for the first so many (`width`), of which somebody still has steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from feduca.tasks.data.batches import Plan

FEW = 4  # clients that are trained together, at least: fewer would hardly be faster
WARM = 2  # steps before the recording: they compile the kernels and let libraries take their workspaces


def width(clients: int, of: int) -> int:
    """How many clients are trained where only so many have steps left: 4, 6, 8, 12, 16, 24 ... or all."""
    power = 1 << (max(clients, FEW) - 1).bit_length()
    return min(of, power if 4 * clients > 3 * power or power == FEW else 3 * power // 4)


def widths(plan: Plan, unroll: int) -> list[int]:
    """The same for every `unroll` steps of a plan."""
    reach = [clients for first, last, clients in plan.stretches() for _ in range(first, last)]
    return [width(clients, plan.sizes.shape[1]) for clients in reach[::unroll]]


class Graphs:
    """The recordings of one training: `unroll` steps of the first so many clients. `step(clients)` works on fixed buffers."""

    def __init__(self, step: Callable[[int], None], step_number: Tensor, unroll: int = 1):
        self.step, self.step_number, self.unroll = step, step_number, unroll
        self.made: dict[int, torch.cuda.CUDAGraph] = {}

    def prepare(self, plan: Plan) -> list[int]:
        """Record what the plan needs and is not there, all clients first; what to `replay`. The buffers are garbage then."""
        wanted = widths(plan, self.unroll)
        for clients in dict.fromkeys(wanted) if self.step_number.is_cuda else ():
            if clients not in self.made:
                pool = next((graph.pool() for graph in self.made.values()), None)  # they never run at the same time
                self.made[clients] = captured(partial(self.step, clients), self.step_number, self.unroll, pool)
        return wanted

    def replay(self, wanted: list[int]) -> None:
        """The steps of the plan, from the first."""
        self.step_number.zero_()
        for clients in wanted:
            if self.step_number.is_cuda:
                self.made[clients].replay()
            else:
                for _ in range(self.unroll):
                    self.step(clients)


def captured(
    step: Callable[[], object],
    step_number: Tensor,
    unroll: int = 1,
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """A graph of `unroll` steps. `step` works on fixed buffers and counts in `step_number`, which the caller sets anew.

    Its own memory is that of other graphs where their `pool` is given.
    """
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step_number.zero_()
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        for _ in range(unroll):
            step()
    return graph


class Branch:
    """Kernels beside those of the current stream: a branch of the graph that is being recorded, until `join`."""

    def __init__(self, on_gpu: bool):
        self.stream = _beside() if on_gpu else None
        self.held: list[object] = []

    @contextmanager
    def __call__(self, *read: object) -> Iterator[None]:
        """What is launched here starts after all that was launched before. `read` is what it reads: kept, or the current
        stream would write into that memory as soon as nobody else refers to it."""
        if self.stream is not None:
            self.held += read
            self.stream.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """What the current stream is given from here on starts after the branch."""
        if self.stream is not None and self.held:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.held.clear()


@cache
def _beside() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@cache
def _side() -> torch.cuda.Stream:
    """The stream of every recording: cuBLAS keeps a workspace (32 MiB on Hopper) for each stream it has ever seen."""
    return torch.cuda.Stream()
