"""A task with fewer training examples, always the same ones: what a silo's operator allows to be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feduca.core.rng import stream
from feduca.tasks.task import Silo, TorchTask


def limited(task: TorchTask, most: int) -> TorchTask:
    """At most so many training examples of every silo; validation and test data are as they were."""
    return replace(task, members=tuple(_fewer(silo, most) for silo in task.members))


def _fewer(silo: Silo, most: int) -> Silo:
    rows = silo.rows["train"]
    if len(rows) <= most:
        return silo
    chosen = stream(0, "quota", len(rows)).permutation(len(rows))[:most]  # of a smaller quota, a part of these
    return replace(silo, rows={**silo.rows, "train": np.sort(rows[chosen])})
