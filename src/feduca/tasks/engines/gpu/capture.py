"""Steps of training as a CUDA graph: recorded once, replayed from then on without a word from the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WARM = 2  # steps before the recording: they compile the kernels and let libraries take their workspaces


def captured(step: Callable[[], None], step_number: Tensor, unroll: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of `unroll` steps. `step` works on fixed buffers and counts in `step_number`, which the caller sets anew."""
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step_number.zero_()
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(unroll):
            step()
    return graph


@cache
def _side() -> torch.cuda.Stream:
    """The stream of every recording: cuBLAS keeps a workspace (32 MiB on Hopper) for each stream it has ever seen."""
    return torch.cuda.Stream()
