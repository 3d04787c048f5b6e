"""What a task is built of: its test sets, some of its examples, a metric and a module of one's own, and what cannot be."""

import numpy as np
import pytest
import torch
from torch import nn

from feduca.errors import ConfigError
from feduca.tasks import Dataset, build_task
from feduca.tasks.data.pool import Pool
from feduca.tasks.metrics import criterion
from feduca.tasks.task import Settings, Silo, TorchTask
from feduca.types import LocalSpec


def test_global_test_counts_correct_answers():
    task = build_task(model="logistic")
    theta = torch.zeros(task.size)
    theta[640 + 7] = 1.0  # always answers 7
    scores = task.test(theta)
    assert scores is not None
    assert task.test_pool is not None
    assert scores.accuracy == pytest.approx([(task.test_pool.y == 7).float().mean().item()])


def test_few_test_examples_are_not_those_of_the_first_classes():
    x, y = np.zeros((200, 4), np.float32), np.repeat(np.arange(4), 50)
    data = Dataset("class by class", x, y, x, y, 4, tuple("abcd"))
    task = build_task(data=data, clients=2, classes_per_client=4, model="logistic", max_examples=40)
    assert task.test_pool is not None
    assert len(task.test_pool.y) == 40
    assert set(task.test_pool.y.tolist()) == {0, 1, 2, 3}


def test_of_some_examples_silos_get_theirs():
    """Labels of the whole say which rows a silo holds: those of its classes, among those that were kept."""
    n = 400
    y = np.random.default_rng(1).permutation(np.arange(n) % 4)
    x = np.arange(n, dtype=np.float32)[:, None].repeat(2, 1)
    data = Dataset("numbered", x, y, x, y, 4, tuple("abcd"))
    task = build_task(data=data, clients=2, classes_per_client=2, model="logistic", max_examples=120)
    rows = [np.concatenate([silo.rows[part] for part in ("train", "validation")]) for silo in task.members]
    assert all(set(y[own]) <= set(group) for own, group in zip(rows, task.about["groups"]))
    together = np.concatenate(rows)
    assert len(set(together)) == len(together) <= 120
    assert together.max() >= 120  # drawn from all, not the first


def test_regression_by_r2_with_a_users_module():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5])).astype(np.float32)
    silos = tuple(
        Silo(str(k), {"train": np.arange(60 * k, 60 * k + 60), "validation": np.arange(180, 200)}, k) for k in range(3)
    )
    for kind in ("stacked", "sequential"):
        task = TorchTask(lambda: nn.Linear(3, 1), silos, Pool.of(x, y), None, criterion("r2"), Settings(kind=kind))
        theta = task.init(0).expand(3, -1)
        out = task.train(theta, np.arange(3), LocalSpec(epochs=20, batch_size=10, lr=0.05), 0, 0)
        assert task.evaluate(out, np.arange(3), "validation").accuracy.min() > 0.99
        assert task.test(out[0]) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": "fast"}, "engine.kind is 'fast'"),
        ({"device": "cuda"}, "sees no CUDA device"),
        ({"device": "tpu"}, "engine.device is 'tpu'"),
        ({"precision": "fp8"}, "engine.precision is 'fp8'"),
        ({"precision": "tf32"}, "tf32 is CUDA's"),
        ({"chunk": 0}, "engine.chunk is 0"),
        ({"model": "transformer"}, "task.model is 'transformer'"),
        ({"model": nn.Linear(64, 7)}, r"shape \(2, 7\): it must be \(2, 10\)"),
        ({"model": nn.Linear(63, 10)}, r"does not take examples of shape \(64,\)"),
        ({"data": "imagenet"}, "task.data is 'imagenet'"),
        ({"metric": "f1"}, "task.metric is 'f1'"),
        ({"max_examples": 0}, "task.max_examples is 0"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(changes, says):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match=says) as caught:
        build_task(**changes)
    assert "\n" not in str(caught.value)
