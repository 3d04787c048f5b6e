"""From plain settings to a task."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from feduca.core.rng import stream
from feduca.errors import ConfigError, DataError, FeducaError, shown
from feduca.recipes.folders import checksum
from feduca.tasks import models
from feduca.tasks.data import Dataset, load
from feduca.tasks.data.given import read_given
from feduca.tasks.data.natural import deal, load_natural
from feduca.tasks.data.partition import Partition, split, table
from feduca.tasks.data.pool import Pool
from feduca.tasks.data.silos import SiloFiles, read_folder
from feduca.tasks.engines import logits
from feduca.tasks.metrics import Criterion, Score, auc, check, criterion
from feduca.tasks.task import Settings, Silo, TorchTask

log = logging.getLogger("feduca")

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
    weights: str | None = None,
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
    `hidden` sets the sizes of the hidden layers of mlp and cnn, `weights` is a file that a resnet18 starts from.
    `max_examples` bounds training and test examples used.
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
    make, origin = _factory(model, hidden, train_pool, source, data_dir, weights)
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
            "weights": origin,
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
    weights: str | None = None,
) -> TorchTask:
    """A task over a user's own silos: a folder of files (see datasets.silos). Each silo keeps its own parts and size.

    `model` and `hidden` are as in `build_task`. `target` names the column of a table to predict. `metric` is accuracy or auc
    (classes), r2 (values), or a function of numpy arrays, outputs `[n, outputs]` and targets `[n]`, that returns a number,
    higher is better. `loss` is cross-entropy or squared-error (by default what goes with the metric), or a function of torch
    tensors, outputs and targets alike, that returns a loss per example. Where both are functions, targets that are whole
    numbers are classes for the models with a name, and a module may give any number of outputs.
    """
    if not isinstance(folder, str | Path):
        raise DataError(
            f"build_own_task is given {shown(folder, 60)}: give the path of a folder; for data in memory there is feduca.own_task"
        )
    settings = Settings(engine, device, precision, chunk, threads)
    settings.check()
    judge = criterion(metric, loss)
    about = {"data": str(folder), "files": checksum(folder)}
    return _silos_task(read_folder(folder, target), about, judge, settings, model, hidden, data_dir, weights)


def own_task(
    silos: Mapping[str, Sequence[Any]],
    *,
    classes: int | None = None,
    test: tuple[Any, Any] | None = None,
    model: Model = "mlp",
    hidden: Sequence[int] | None = None,
    metric: str | Score = "accuracy",
    loss: str | Callable | None = None,
    engine: str = "stacked",
    device: str = "cpu",
    precision: str = "fp32",
    chunk: int = 10_000,
    threads: int | None = None,
) -> TorchTask:
    """A task over data in memory: `{"north": (x, y, x_validation, y_validation), ...}`, arrays of numpy or torch.

    A silo may bring `x_test, y_test` as fifth and sixth, which no decision sees; `test` is such a pair for everybody. Classes are
    numbered 0, 1, ..., or 1 to `classes`, or they are words, numbered in alphabetical order; `classes` says how many there are
    where not every one occurs. Everything else is as in `build_own_task`.
    """
    settings = Settings(engine, device, precision, chunk, threads)
    settings.check()
    judge = criterion(metric, loss)
    files, called = read_given(silos, test, classes, values=judge.targets == "values")
    about = {"data": "in memory"} | ({} if called is None else {"labels": list(called)})
    return _silos_task(files, about, judge, settings, model, hidden, classes=classes)


def _silos_task(
    files: SiloFiles,
    about: dict[str, Any],
    judge: Criterion,
    settings: Settings,
    model: Model,
    hidden: Sequence[int] | None,
    data_dir: str | None = None,
    weights: str | None = None,
    classes: int | None = None,
) -> TorchTask:
    """A task over silos' own parts; `about` says where they come from."""
    folder, device = about["data"], settings.device
    parts = [(name, part, x, y) for name, by_part in files.silos.items() for part, (x, y) in by_part.items()]
    everything = [(f"silo {name} ({part})", y) for name, part, _, y in parts]
    if files.test is not None:
        everything.append(("the global test set", files.test[1]))
    outputs, kind = _targets(folder, judge, everything, classes)
    names = [name for name, *_ in parts]
    starts = np.cumsum([0, *(len(y) for *_, y in parts)])
    rows: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    for (name, part, _, y), start in zip(parts, starts):
        rows[name][part] = np.arange(start, start + len(y))
    members = tuple(Silo(name, by_part, client=k) for k, (name, by_part) in enumerate(rows.items()))
    x_all = np.concatenate([x for _, _, x, _ in parts])
    words = _reads_words(model, x_all)
    pool = Pool.of(_inputs(x_all, model, words), np.concatenate([y for *_, y in parts]).astype(kind), device=device)
    test = None
    if files.test is not None:
        test = Pool.of(_inputs(files.test[0], model, words), files.test[1].astype(kind), device=device)
    source = Dataset(folder, *(np.empty(0),) * 4, classes=outputs, labels=())
    make, origin = _factory(model, hidden, pool, source, data_dir, weights)
    outputs = _check_output(make, pool, outputs, exactly=judge.targets is not None or isinstance(model, str))
    scored = {f"silo {name} ({part})": y.astype(kind) for name, part, _, y in parts if part != "train"}
    if files.test is not None:
        scored["the global test set"] = files.test[1].astype(kind)
    check(judge, outputs, scored)
    about = {
        **about,
        "classes": outputs,
        "model": _model_name(model),
        "weights": origin,
        "hidden": None if hidden is None else list(hidden),
        "metric": judge.name,
        "loss": judge.loss_name,
    }
    for line in _odd(files, kind):
        log.warning("%s", line)
    return TorchTask(make, members, pool, test, judge, settings, about)


def _odd(files: SiloFiles, kind: type) -> list[str]:
    """What is no mistake but will surprise, a line each."""
    found, silos = [], files.silos
    for name, parts in silos.items() if kind is np.int64 else ():
        seen = {int(y) for part in ("train", "validation") if part in parts for y in np.unique(parts[part][1])}
        if len(seen) == 1:
            found.append(
                f"silo {name} has class {min(seen)} alone, to train on and to decide by: a model that always says"
                f" {min(seen)} is perfect there, and no offer can beat it"
            )
    tested = [name for name, parts in silos.items() if "test" in parts and len(parts["test"][1])]
    lacking = [name for name in silos if name not in tested]
    if tested and lacking:
        named = ", ".join(lacking[:5]) + " ..." * (len(lacking) > 5)
        found.append(
            f"no untouched test part: {named}, unlike {len(tested)} other silo{'s' * (len(tested) > 1)}; nobody can say whether"
            " these are better off than alone"
        )
    return found


def build_natural_task(
    data: str,
    *,
    validation_share: float = 0.5,
    test_share: float = 0.5,
    pooled: bool = False,
    model: Model = "logistic",
    hidden: Sequence[int] | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    weights: str | None = None,
    engine: str = "stacked",
    device: str = "cpu",
    precision: str = "fp32",
    chunk: int = 10_000,
    threads: int | None = None,
) -> TorchTask:
    """A task over a data set whose silos nature dealt (datasets.natural), split by `seed`; by default 50 / 25 / 25.

    The global test set is all silos' untouched parts together. With `pooled` every silo learns from everybody's training part:
    a reference that no federation can have.
    """
    settings = Settings(engine, device, precision, chunk, threads)
    settings.check()
    records = load_natural(data, data_dir)
    dealt = deal(records, seed, validation_share, test_share, pooled)
    pool = Pool.of(dealt.x, dealt.y, device=device)
    untouched = np.sort(np.concatenate([rows["test"] for rows in dealt.rows.values()]))
    test = Pool.of(dealt.x[untouched], dealt.y[untouched], device=device) if len(untouched) else None
    members = tuple(Silo(name, rows, client=k) for k, (name, rows) in enumerate(dealt.rows.items()))
    source = Dataset(data, *(np.empty(0),) * 4, classes=len(records.labels), labels=records.labels)
    make, origin = _factory(model, hidden, pool, source, data_dir, weights)
    _check_output(make, pool, source.classes)
    about = {
        "data": data,
        "classes": source.classes,
        "labels": list(records.labels),
        "features": list(records.features),
        "model": _model_name(model),
        "weights": origin,
        "hidden": None if hidden is None else list(hidden),
    }
    return TorchTask(make, members, pool, test, criterion(), settings, about)


def _targets(
    folder: str, judge: Criterion, parts: Sequence[tuple[str, np.ndarray]], declared: int | None = None
) -> tuple[int, type]:
    """How many outputs a model needs for these targets (of classes so many where that is declared), and their type."""
    whole = all(y.dtype.kind == "i" and y.min(initial=0) >= 0 for _, y in parts)
    if judge.targets == "values" or (judge.targets is None and not whole):
        return 1, np.float32
    if not whole:
        where, y = next((where, y) for where, y in parts if y.dtype.kind != "i" or y.min(initial=0) < 0)
        odd = next(value for value in y.tolist() if value < 0 or value != round(value))
        raise DataError(
            f"{folder}: targets such as {odd} ({where}) are not classes 0, 1, ...: number the classes, or, for values, use "
            'metric="r2", or your own metric with loss="squared-error"'
        )
    silos = [(where, y) for where, y in parts if where != "the global test set"]
    largest = max(silos, key=lambda item: item[1].max(initial=0))
    classes, examples = max(2, int(largest[1].max()) + 1), sum(len(y) for _, y in silos)
    if declared is not None and classes > declared:
        raise DataError(
            f"{folder}: {largest[0]} has label {classes - 1}, and classes is {declared}, labels 0 to {declared - 1}: check the"
            " labels, or declare more classes"
        )
    if declared is None and classes > max(2, examples):
        raise DataError(
            f"{folder}: the largest label is {classes - 1} ({largest[0]}), which would be {classes} classes for {examples} "
            "examples: number the classes 0, 1, ... without gaps"
        )
    classes = declared or classes
    for where, y in parts[len(silos) :]:
        if int(y.max()) >= classes:
            raise DataError(f"{folder}: {where} has class {int(y.max())}, which no silo has: check the labels")
    if judge.score is auc and classes > 2:
        raise DataError(
            f"{folder}: auc is for two classes, 0 and 1, and {largest[0]} has class {classes - 1}: use accuracy, or a metric of "
            "your own"
        )
    return classes, np.int64


def _reads_words(model: Model, x: np.ndarray) -> bool:
    """Whether inputs are numbers of words: whole numbers for a module that looks them up."""
    if x.dtype != np.int64 or isinstance(model, str):
        return False
    with torch.random.fork_rng(devices=[]):
        module = model if isinstance(model, nn.Module) else _made(model)
    return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())


def _inputs(x: np.ndarray, model: Model, words: bool) -> np.ndarray:
    """Inputs as the pool takes them: whole numbers that are not words are numbers like any other; a grey image has 1 channel."""
    if x.dtype == np.int64 and not words:
        x = x.astype(np.float32)
    return x[..., None] if isinstance(model, str) and model in models.IMAGES and x.ndim == 3 else x


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
    model: Model,
    hidden: Sequence[int] | None,
    pool: Pool,
    source: Dataset,
    data_dir: str | None,
    weights: str | None,
) -> tuple[Callable[[], nn.Module], str]:
    if not isinstance(model, str) and hidden is not None:
        raise ConfigError(
            f"hidden is {list(hidden)} beside a model of your own: set its layers there, and leave hidden out"
        )
    if weights is not None and model != "resnet18":
        raise ConfigError(f"weights is {weights!r}, and only resnet18 starts from a file; leave it out")
    if isinstance(model, nn.Module):
        return _whole(lambda: model, pool), "the module's own"
    if callable(model):
        return _whole(model, pool), "as the function makes them"
    if not isinstance(model, str):
        raise ConfigError(f"model is {model!r}: give a name, a torch.nn.Module or a function that makes one")
    return models.factory(
        model,
        pool.example_shape,
        source.classes,
        hidden=hidden,
        vocabulary=source.vocabulary,
        data_dir=data_dir,
        weights=weights,
    )


def _model_name(model: Model) -> str:
    if isinstance(model, str):
        return model
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "a function")


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    try:
        module = make()
    except FeducaError:
        raise
    except Exception as error:  # whatever a function of the user's may raise
        name, why = getattr(make, "__name__", "a function"), (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"model is {name}, which makes no model when it is called without arguments ({type(error).__name__}: {why}): give a"
            " module, or a function such as lambda: nn.Linear(inputs, classes) with your numbers"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"the function that makes the model returns {type(module).__name__}: it must be a torch.nn.Module"
        )
    return module


def _check_output(make: Callable[[], nn.Module], pool: Pool, outputs: int, exactly: bool = True) -> int:
    """A model must give `outputs` numbers per example, or (not `exactly`) any number of them; how many it gives."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = _made(make).to("cpu").eval()
        try:
            made = logits(module(_sample(pool)))
        except Exception as error:  # whatever a module of the user's may raise
            why = (str(error).splitlines() or [""])[0] or type(error).__name__
            raise ConfigError(f"the model does not take examples of shape {pool.example_shape}: {why}") from error
    if not isinstance(made, torch.Tensor):
        raise ConfigError(
            f"the model returns a {type(made).__name__}: it must return one tensor, [examples, {outputs}], or something whose"
            " .logits is one"
        )
    shape = tuple(made.shape)
    if shape != (2, outputs) and (exactly or len(shape) != 2 or shape[0] != 2):
        raise ConfigError(
            f"the model turns 2 examples into shape {shape}: it must be (2, {outputs}), one output per class "
            "(a single one for values)"
        )
    return shape[1]


def _sample(pool: Pool) -> torch.Tensor:
    """Two examples as a model sees them."""
    return Pool(pool.x[:2].cpu(), pool.y[:2].cpu(), _cpu(pool.mean), _cpu(pool.std)).examples(torch.arange(2))


def _whole(make: Callable[[], nn.Module], pool: Pool) -> Callable[[], nn.Module]:
    """`make`, whose lazy layers have seen examples: only then are their parameters there."""

    @functools.wraps(make)
    def made() -> nn.Module:
        module = make()
        if isinstance(module, nn.Module) and any(isinstance(p, UninitializedParameter) for p in module.parameters()):
            training = module.training
            with torch.no_grad():
                module.cpu().eval()(_sample(pool))
            module.train(training)
        return module

    return made


def _cpu(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.cpu()
