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
from feduca.tasks.datasets.silos import read_folder
from feduca.tasks.metrics import Score, criterion, cross_entropy
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
        # Drawn, not cut off: test examples may lie class by class.
        some = np.sort(stream(seed, "max-test-examples").permutation(len(test_pool.y))[:max_examples])
        test_pool = Pool(test_pool.x[some], test_pool.y[some], test_pool.mean, test_pool.std)
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
            "model": _model_name(model),
            "weights": weights,
            "hidden": None if hidden is None else list(hidden),
            "vocabulary": source.vocabulary,
        },
    )


def build_own_task(
    folder: str,
    *,
    model: Model = "mlp",
    hidden: Sequence[int] | None = None,
    target: str = "label",
    metric: str | Score = "accuracy",
    loss: str | Callable | None = None,
    engine: str = "stacked",
    device: str = "cpu",
    precision: str = "fp32",
    chunk: int = 10_000,
    threads: int | None = None,
    data_dir: str | None = None,
) -> TorchTask:
    """A task over a user's own silos: a folder of files (see datasets.silos). Each silo keeps its own parts and size.

    `metric` is accuracy or auc (classes), r2 (values), or a function of outputs `[n, outputs]` and targets `[n]`;
    `loss` is cross-entropy or squared-error (by default what goes with the metric), or a function that returns a loss
    per example.
    """
    settings = Settings(engine, device, precision, chunk, threads)
    settings.check()
    files = read_folder(folder, target)
    judge = criterion(metric, loss)
    parts = [(name, part, x, y) for name, by_part in files.silos.items() for part, (x, y) in by_part.items()]
    y_all = np.concatenate([y for *_, y in parts])
    if judge.loss is cross_entropy:
        if not np.issubdtype(y_all.dtype, np.integer) or y_all.min() < 0:
            odd = next((y for y in y_all.tolist() if y < 0 or y != round(y)), y_all[0])
            raise DataError(
                f"{folder}: targets such as {odd} are not classes 0, 1, ...: number the classes, or use the metric r2"
            )
        outputs = max(2, int(y_all.max()) + 1)
    else:
        outputs, y_all = 1, y_all.astype(np.float32)
    starts = np.cumsum([0, *(len(y) for *_, y in parts)])
    rows: dict[str, dict[str, np.ndarray]] = {name: {} for name in files.silos}
    for (name, part, _, y), start in zip(parts, starts):
        rows[name][part] = np.arange(start, start + len(y))
    members = tuple(Silo(name, by_part, client=k) for k, (name, by_part) in enumerate(rows.items()))
    pool = Pool.of(np.concatenate([x for _, _, x, _ in parts]), y_all, device=device)
    test = None if files.test is None else Pool.of(files.test[0], files.test[1].astype(y_all.dtype), device=device)
    if test is not None and judge.loss is cross_entropy and int(test.y.max()) >= outputs:
        raise DataError(
            f"{folder}: the global test set has class {int(test.y.max())}, which no silo has: check the labels"
        )
    source = Dataset(folder, *(np.empty(0),) * 4, classes=outputs, labels=())
    make, weights = _factory(model, hidden, pool, source, data_dir)
    _check_output(make, pool, outputs)
    about = {"data": folder, "classes": outputs, "model": _model_name(model), "weights": weights, "metric": judge.name}
    return TorchTask(make, members, pool, test, judge, settings, about)


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
    return models.factory(
        model, pool.example_shape, source.classes, hidden=hidden, vocabulary=source.vocabulary, data_dir=data_dir
    )


def _model_name(model: Model) -> str:
    if isinstance(model, str):
        return model
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
            f"the model turns 2 examples into shape {shape}: it must be (2, {outputs}), one output per class "
            "(a single one for values)"
        )


def _cpu(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.cpu()
