"""What methods cost: time over FedAvg's, and memory."""

from __future__ import annotations

from typing import Any

from paper import printed as paper
from paper.figures.drawing import Drawing
from paper.figures.style import PAPER, bars, diamonds, key_below, method_of, numbers, panels
from paper.tables import Cells


def cost(cells: Cells) -> list[Drawing]:
    """Nothing without FedAvg: absolute seconds of two machines cannot be compared."""
    base = next((c["seconds"] for c in cells if method_of(c) == "fedavg"), None)
    if base is None:
        return []
    memory = any(c["peak_mb"] is not None for c in cells)

    def draw(figure: Any) -> None:
        axes = panels(figure, 2 if memory else 1)
        bars(axes[0], cells, [c["seconds"] / base for c in cells])
        printed = numbers([paper.COST.get(method_of(c), (None,))[0] for c in cells])
        diamonds(axes[0], printed / paper.COST["fedavg"][0], range(len(cells)))
        axes[0].set_xlabel("time of a run, FedAvg = 1")
        if memory:
            bars(axes[1], cells, numbers([c["peak_mb"] for c in cells]))
            axes[1].set_xlabel("peak memory on the GPU, MB")
        key_below(figure, {"marker": "s", "label": "ours"}, PAPER)

    caption = "Time relative to FedAvg and peak memory; diamonds: the paper's relative time."
    return [Drawing("cost", caption, 1.0 + 0.24 * len(cells), draw)]
