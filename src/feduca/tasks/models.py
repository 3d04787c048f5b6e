"""Models by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from feduca.errors import ConfigError
from feduca.tasks.datasets.base import folder
from feduca.tasks.networks import CNN, MLP, StackedModel
from feduca.tasks.resnet import ResNet18, published, take
from feduca.tasks.text import BiLSTM

__all__ = ["CNN", "MLP", "NAMES", "BiLSTM", "ResNet18", "StackedModel", "factory"]

NAMES = ("mlp", "logistic", "cnn", "resnet18", "bilstm")
LAYERED = ("mlp", "cnn")  # models with a choice of hidden layers
IMAGES = ("cnn", "resnet18")  # models that need images
SCRATCH = "from scratch"


def factory(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: Sequence[int] | None = None,
    vocabulary: int = 0,
    data_dir: str | None = None,
) -> tuple[Callable[[], nn.Module], str]:
    """A function that makes the model called `name`, and where its weights come from.

    `shape` is that of one example as a model sees it, `vocabulary` how many word numbers there are where it is a text;
    `hidden` sets the hidden layers of mlp and cnn. ImageNet weights are looked for in the data directory.
    """
    inputs, is_image = math.prod(shape), len(shape) == 3
    if name not in NAMES:
        raise ConfigError(f"task.model is {name!r}: choose one of {', '.join(NAMES)}, or pass a torch.nn.Module")
    if hidden is not None and any(n < 1 for n in hidden):
        raise ConfigError(f"task.hidden is {list(hidden)}: a hidden layer has at least 1 unit")
    if hidden and name not in LAYERED:
        raise ConfigError(
            f"task.hidden is {list(hidden)}, but {name} has no hidden layers to choose: leave it out, or use mlp or cnn"
        )
    if name in IMAGES and not is_image:
        raise ConfigError(f"{name} needs images, not examples of shape {shape}: choose mlp or another data set")
    if (name == "bilstm") != bool(vocabulary):
        raise ConfigError(f"task.model {name} does not fit the data: text needs bilstm, and bilstm needs text")
    if name == "mlp":
        sizes = tuple(hidden) if hidden is not None else ((32,) if inputs < 256 else (200, 100))
        return (lambda: MLP(inputs, sizes, classes)), SCRATCH
    if name == "logistic":
        return (lambda: MLP(inputs, (), classes)), SCRATCH
    if name == "cnn":
        sizes = tuple(hidden) if hidden is not None else (394, 192)
        return (lambda: CNN(shape, sizes, classes)), SCRATCH
    if name == "bilstm":
        return (lambda: BiLSTM(vocabulary, classes)), SCRATCH
    return _resnet(shape[0], classes, data_dir)


def _resnet(channels: int, classes: int, data_dir: str | None) -> tuple[Callable[[], nn.Module], str]:
    found = published(folder(data_dir)) if channels == 3 else None
    if found is None:
        return (lambda: ResNet18(classes, channels)), f"{SCRATCH} (no ImageNet weights found)"
    state, source = found

    def make() -> nn.Module:
        model = ResNet18(classes, channels)
        take(model, state, source)
        return model

    return make, source
