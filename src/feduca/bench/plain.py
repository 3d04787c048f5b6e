"""The loop that everybody writes: nn.Linear, torch.optim, one silo after the other, then the mean."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from feduca.bench.job import Clock, Job, hand_in


def main(folder: str) -> None:
    job = Job(Path(folder))
    silos, model, generator = job.data, job.model(), torch.Generator().manual_seed(0)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    clock = Clock()
    for _ in range(job.spec["rounds"]):
        total = {name: torch.zeros_like(value) for name, value in state.items()}
        for x, y in silos:
            model.load_state_dict(state)
            job.epochs(model, x, y, generator)
            for name, value in model.state_dict().items():
                total[name] += value / len(silos)
        state = total
        clock.tick()
    hand_in(job, "plain", clock, state)


if __name__ == "__main__":
    main(sys.argv[1])
