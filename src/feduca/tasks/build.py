"""From plain settings to a task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from feduca.errors import ConfigError, DataError
from feduca.rng import stream
from feduca.tasks import models
from feduca.tasks.datasets import Dataset, load
from feduca.tasks.metrics import Score, criterion
from feduca.tasks.partition import Partition, split, table
from feduca.tasks.pool import Pool
from feduca.tasks.task import Settings, Silo, TorchTask

Model = str | nn.Module | Callable[[], nn.Module]


def build_task(
    *,
    data: str | Dataset = "digits",
    clients: int = 10,
    classes_per_client: int = 5,
    train_concentration: float = 0.5,
    validation_concentration: float = 1.0,
    validation_share: float = 0.2,
    test_share: float = 0.0,
    model: Model = "mlp",
    hidden: Sequence[int] | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    engine: str = "stacked",
    device: str = "cpu",
    precision: str = "fp32",
    chunk: int = 10_000,
    threads: int | None = None,
    max_examples: int | None = None,
    metric: str | Score = "accuracy",
) -> TorchTask:
    """A task: a data set dealt to `clients` silos (partition.split), a model and an engine.

    `data` is the name of a data set or a Dataset. `model` is a name (models.NAMES), a function that makes a module
    (called with PyTorch seeded, once per initial model), or a module, whose weights are then every run's initial model.
    `hidden` sets the sizes of the hidden layers of mlp and cnn. `max_examples` bounds training and test examples used.
    """
    settings = Settings(engine, device, precision, chunk, threads)
    settings.check()
    source = data if isinstance(data, Dataset) else load(data, data_dir)
    train_pool, test_pool = _pools(source, device)
    labels, kept = source.y_train, None
    if max_examples is not None:
        if max_examples < 1:
            raise ConfigError(f"task.max_examples is {max_examples}: use at least 1 example")
        kept = np.sort(stream(seed, "max-examples").permutation(len(labels))[:max_examples])
        labels = labels[kept]
        test_pool = Pool(test_pool.x[:max_examples], test_pool.y[:max_examples], test_pool.mean, test_pool.std)
    partition = split(
        labels,
        classes=source.classes,
        clients=clients,
        classes_per_client=classes_per_client,
        train_concentration=train_concentration,
        validation_concentration=validation_concentration,
        validation_share=validation_share,
        test_share=test_share,
        seed=seed,
    )
    make, weights = _factory(model, hidden, train_pool, source, data_dir)
    _check_output(make, train_pool, source.classes)
    return TorchTask(
        make=make,
        members=_members(partition, kept),
        pool=train_pool,
        test_pool=test_pool,
        criterion=criterion(metric),
        settings=settings,
        about={
            "data": source.name,
            "classes": source.classes,
            "groups": [group.tolist() for group in partition.groups],
            "classes_per_silo": (table(partition.train, labels, source.classes) > 0).sum(1).tolist(),
            "partition": partition.checksum,
            "model": model if isinstance(model, str) else _name(model),
            "weights": weights,
        },
    )


def _members(partition: Partition, kept: np.ndarray | None) -> tuple[Silo, ...]:
    def rows(index: np.ndarray) -> np.ndarray:
        return index if kept is None else kept[index]

    return tuple(
        Silo(f"silo-{k}", {s: rows(partition.of(s)[k]) for s in ("train", "validation", "test")}, client=k)
        for k in range(len(partition.train))
    )


@functools.lru_cache(maxsize=4)
def _pools(source: Dataset, device: str) -> tuple[Pool, Pool]:
    """The examples on the device, once: tasks over the same data set share them."""
    for part, y in (("training", source.y_train), ("test", source.y_test)):
        if len(y) and not (y.min() >= 0 and y.max() < source.classes):
            raise DataError(
                f"{source.name}: {part} labels run from {y.min()} to {y.max()}, but there are {source.classes} classes "
                f"(0 to {source.classes - 1}): check the files"
            )
    train = Pool.of(source.x_train, source.y_train, mean=source.mean, std=source.std, device=device)
    test = Pool.of(source.x_test, source.y_test, mean=source.mean, std=source.std, device=device)
    return train, test


def _factory(
    model: Model, hidden: Sequence[int] | None, pool: Pool, source: Dataset, data_dir: str | None
) -> tuple[Callable[[], nn.Module], str]:
    if isinstance(model, nn.Module):
        return lambda: model, "the module's own"
    if callable(model):
        return model, "as the function makes them"
    return models.factory(model, pool.example_shape, source.classes, hidden=hidden)


def _name(model: nn.Module | Callable[[], nn.Module]) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "a function")


def _check_output(make: Callable[[], nn.Module], pool: Pool, outputs: int) -> None:
    """A model must give `outputs` numbers per example."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = make().to("cpu").eval()
        sample = Pool(pool.x[:2].cpu(), pool.y[:2].cpu(), _cpu(pool.mean), _cpu(pool.std))
        try:
            shape = tuple(module(sample.examples(torch.arange(2))).shape)
        except RuntimeError as error:
            raise ConfigError(
                f"the model does not take examples of shape {pool.example_shape}: {str(error).splitlines()[0]}"
            ) from error
    if shape != (2, outputs):
        raise ConfigError(
            f"the model turns 2 examples into shape {shape}: it must be (2, {outputs}), one output per class"
        )


def _cpu(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.cpu()
