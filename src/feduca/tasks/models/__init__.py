"""Models by name."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from feduca.errors import ConfigError
from feduca.tasks.data.base import folder
from feduca.tasks.models.bilstm import BiLSTM
from feduca.tasks.models.networks import CNN, MLP, StackedModel
from feduca.tasks.models.resnet import FILES, ResNet18, chosen, published, take

__all__ = ["CNN", "MLP", "NAMES", "BiLSTM", "ResNet18", "StackedModel", "factory"]

ABOUT = {
    "mlp": "Multilayer perceptron; task.hidden, unset: one layer of 32 units, 200 and 100 from 256 inputs on.",
    "logistic": "Logistic regression: no hidden layer, a convex loss.",
    "cnn": "For images: two 5 x 5 convolutions of 64 channels with pooling, then task.hidden, unset: 394 and 192 units.",
    "resnet18": "For images: ResNet-18 with GroupNorm, from ImageNet weights where there are any.",
    "bilstm": "For text: embedding of 100, bidirectional LSTM of 128 units.",
}
NAMES = tuple(ABOUT)
LAYERED = ("mlp", "cnn")  # those whose hidden layers can be chosen
IMAGES = ("cnn", "resnet18")  # those that need images
SCRATCH = "from scratch"


def factory(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: Sequence[int] | None = None,
    vocabulary: int = 0,
    data_dir: str | None = None,
    weights: str | None = None,
) -> tuple[Callable[[], nn.Module], str]:
    """A function that makes the model called `name`, and where its weights come from.

    `shape` is that of one example as a model sees it, `vocabulary` how many word numbers there are where it is a text;
    `hidden` sets the hidden layers of mlp and cnn. A resnet18 starts from the file `weights`; unset, ImageNet's are looked for in
    the data directory.
    """
    inputs, is_image = math.prod(shape), len(shape) == 3
    if name not in NAMES:
        raise ConfigError(f"task.model is {name!r}: choose one of {', '.join(NAMES)}, or pass a torch.nn.Module")
    if hidden is not None and any(n < 1 for n in hidden):
        raise ConfigError(f"task.hidden is {list(hidden)}: a hidden layer has at least 1 unit")
    if hidden is not None and name not in LAYERED:
        raise ConfigError(
            f"task.hidden is {list(hidden)} with task.model {name}, whose layers are fixed: leave task.hidden unset, or "
            f"choose {' or '.join(LAYERED)}"
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
    return _resnet(shape[0], classes, data_dir, weights)


def _resnet(
    channels: int, classes: int, data_dir: str | None, weights: str | None
) -> tuple[Callable[[], nn.Module], str]:
    found = published(folder(data_dir)) if weights is None and channels == 3 else None
    found = found if weights is None else chosen(Path(weights))
    if found is None:
        why = f"no ImageNet weights: {FILES[0]} is not in {folder(data_dir)}, and torchvision has none"
        _tell(f"resnet18 starts {SCRATCH}: {why if channels == 3 else 'ImageNet weights are for colour images'}")
        return (lambda: ResNet18(classes, channels)), f"{SCRATCH} (no ImageNet weights found)"
    state, source = found

    def make() -> nn.Module:
        model = ResNet18(classes, channels)
        take(model, state, source)
        return model

    return make, source


@functools.cache
def _tell(line: str) -> None:
    """Say it once, not once for every run of a study."""
    logging.getLogger("feduca").warning(line)
