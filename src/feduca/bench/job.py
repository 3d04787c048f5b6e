"""The work that every contestant of `feduca bench cpu` does, and how it hands in its result.

A job is a folder: `x.npy` [silos, examples, pixels] and `y.npy`, normalised; the first weights of a multilayer perceptron as
PyTorch shapes them (`first.npz`); `spec.json`. A contestant trains all silos from the global model and averages, round after
round, and leaves `NAME.npz` (the last global model), `NAME.json` (seconds of each round) and `NAME-cpu.json` (of the processor,
in that process).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Job:
    """What to do; everything is read before the clock starts."""

    folder: Path
    spec: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", json.loads((self.folder / "spec.json").read_text(encoding="utf-8")))

    @cached_property
    def data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.silo(k) for k in range(self.spec["silos"])]

    def silo(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = np.load(self.folder / "x.npy", mmap_mode="r"), np.load(self.folder / "y.npy")
        return torch.from_numpy(np.array(x[k])), torch.from_numpy(y[k])

    def model(self) -> nn.Sequential:
        """The network with its first weights."""
        first = np.load(self.folder / "first.npz")
        model = network([first[name].shape[::-1] for name in first.files if name.endswith("weight")])
        model.load_state_dict({name: torch.from_numpy(first[name]) for name in first.files})
        return model

    def epochs(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> None:
        """One silo's local training, as everybody writes it."""
        spec = self.spec
        optimiser = torch.optim.SGD(model.parameters(), lr=spec["lr"], weight_decay=spec["weight_decay"])
        for _ in range(spec["epochs"]):
            for batch in torch.randperm(len(y), generator=generator).split(spec["batch_size"]):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                if spec["clip"]:
                    nn.utils.clip_grad_norm_(model.parameters(), spec["clip"])
                optimiser.step()


def network(shapes: list[tuple[int, int]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in shapes:
        layers += [nn.ReLU()] if layers else []
        layers += [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


class Clock:
    """Seconds of each round: `tick` when one ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.last = time.perf_counter(), time.process_time()

    def tick(self) -> None:
        now = time.perf_counter(), time.process_time()
        self.seconds.append(now[0] - self.last[0])
        self.cpu.append(now[1] - self.last[1])
        self.last = now


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    arrays: dict[str, Any] = {key: np.asarray(value) for key, value in state.items()}
    np.savez(path, **arrays)


def hand_in(job: Job, name: str, clock: Clock, state: Mapping[str, Any]) -> None:
    save_state(job.folder / f"{name}.npz", state)
    (job.folder / f"{name}.json").write_text(json.dumps(clock.seconds), encoding="utf-8")
    (job.folder / f"{name}-cpu.json").write_text(json.dumps(clock.cpu), encoding="utf-8")
