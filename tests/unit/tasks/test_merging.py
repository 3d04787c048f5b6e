"""Several federations in the same calls: each gets what it has alone, or it is said why not."""

import numpy as np
import pytest
import torch
from torch import nn

from feduca.errors import ConfigError
from feduca.tasks import build_task, merge
from feduca.types import LocalSpec

SPEC = LocalSpec(epochs=2, batch_size=10, lr=0.1)


def test_lockstep_gives_each_federation_what_it_has_alone():
    tasks = [build_task(seed=s) for s in (1, 2)]
    assert tasks[0].pool.x is tasks[1].pool.x
    merged = merge(tasks)
    assert len(merged.silos) == 20
    theta = torch.stack([t.init(s) for t, s in zip(tasks, (1, 2))]).repeat_interleave(10, 0)
    out = merged.train(theta, np.arange(20), SPEC, 4, np.repeat([1, 2], 10))
    for f, task in enumerate(tasks):
        alone = task.train(theta[10 * f : 10 * f + 10], np.arange(10), SPEC, 4, f + 1)
        torch.testing.assert_close(out[10 * f : 10 * f + 10], alone, rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="same data, model and engine"):
        merge([tasks[0], build_task(model="logistic")])


class TwoLayers(nn.Sequential):
    def __init__(self, between):
        super().__init__(nn.Linear(64, 5), between, nn.Linear(5, 10))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metric": lambda outputs, targets: 0.5}, "same loss and metric: here are accuracy and <lambda>"),
        ({"model": lambda: TwoLayers(nn.Tanh())}, "same model: here are TwoLayers and TwoLayers, which differ"),
        ({"model": lambda: nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))}, "here are TwoLayers and Seq"),
    ],
)
def test_what_must_not_be_merged(changes, says):
    def make():
        return TwoLayers(nn.ReLU())

    merge([build_task(model=make), build_task(model=make)])
    with pytest.raises(ConfigError, match=says) as caught:
        merge([build_task(model=make), build_task(**{"model": make, **changes})])
    assert "\n" not in str(caught.value)
