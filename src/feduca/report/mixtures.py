"""Silos that deploy a mixture of several models' outputs: one module that holds them, or one network trained to answer alike.

In a file of such a silo the entries of each model stand under the model's name (`private/0.weight`); the weights are in the card.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from feduca.client.offers import Mixture
from feduca.core.rng import stream
from feduca.tasks import TorchTask
from feduca.types import Array

STEPS = 1000  # of the training that matches a mixture, for each silo
BATCH = 64  # examples of a step
RATE = 1e-3  # Adam's


class Mixed(nn.Module):
    """Several networks that answer together: the logarithm of the weighted mean of their class probabilities.

    The softmax of these outputs is the mixture's probabilities, their cross-entropy its log-loss.
    """

    def __init__(self, parts: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.weights = dict(weights)

    def forward(self, inputs: Tensor) -> Tensor:
        said = [self.weights[name] * part(inputs).double().softmax(-1) for name, part in self.parts.items()]
        return torch.stack(said).sum(0).clamp_min(torch.finfo(torch.float64).tiny).log()


def mixed(weights: Mapping[str, float], states: Mapping[str, np.ndarray], blank: nn.Module) -> Mixed:
    """The module of a silo's file: a copy of `blank` for each of its models."""
    parts = {}
    for name in weights:
        parts[name] = copy.deepcopy(blank)
        mine = {key.removeprefix(f"{name}/"): value for key, value in states.items() if key.partition("/")[0] == name}
        parts[name].load_state_dict({key: torch.from_numpy(value.copy()) for key, value in mine.items()})
    return Mixed(parts, weights)


def used(mixture: Mixture, k: int) -> dict[str, float]:
    """The models that silo `k` deploys, by name, with their weights."""
    return {name: float(w) for name, w in zip(mixture.models, mixture.weights[k]) if w > 0}


def distilled(task: TorchTask, mixture: Mixture, k: int, seed: int) -> Array:
    """One model for silo `k` whose class probabilities match its mixture's on the silo's own training examples.

    It starts as the model of the largest weight and is trained in evaluation mode: statistics of norms stay as they are, nothing
    is dropped.
    """
    weights, who = used(mixture, k), np.array([k])
    said = [
        w * task.predict(mixture.models[name][k : k + 1], who, "train").probabilities[0] for name, w in weights.items()
    ]
    device = torch.device(task.settings.device)
    targets = torch.as_tensor(np.sum(said, 0), dtype=torch.float32, device=device)
    rows = torch.as_tensor(task.members[k].rows["train"], device=device)
    module = task.make().to(device).eval()
    module.load_state_dict(task.layout.unpack(mixture.models[max(weights, key=lambda name: weights[name])][k]))
    optimiser = torch.optim.Adam(module.parameters(), lr=RATE)
    batches = stream(seed, "distil", k)
    for _ in range(STEPS):
        index = torch.as_tensor(batches.integers(len(rows), size=min(BATCH, len(rows))), device=device)
        loss = nn.functional.cross_entropy(module(task.pool.examples(rows[index])), targets[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    entries = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return task.layout.pack({name: value.detach() for name, value in entries.items()})
