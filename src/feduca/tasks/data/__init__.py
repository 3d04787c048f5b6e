"""Data sets by name, read from their official files and verified."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feduca.errors import ConfigError
from feduca.tasks.data import natural
from feduca.tasks.data.base import Dataset, folder
from feduca.tasks.data.images import CIFAR_HOME, FMNIST_HOME, cifar10, cifar100, fmnist, fmnist_places
from feduca.tasks.data.news import HOME as NEWS_HOME
from feduca.tasks.data.news import newsgroups, newsgroups_whole

__all__ = ["FILES", "LOADERS", "Dataset", "available", "digits", "load"]


def digits(data_dir: str | None = None) -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8 x 8; a fixed fifth of them is the global test set."""
    from sklearn.datasets import load_digits

    pixels, target = load_digits(return_X_y=True)
    x = (np.asarray(pixels) / 16.0).astype(np.float32)
    y = np.asarray(target).astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    cut = len(y) // 5
    test, pool = order[:cut], order[cut:]
    return Dataset("digits", x[pool], y[pool], x[test], y[test], 10, tuple("0123456789"))


LOADERS: dict[str, Callable[[str | None], Dataset]] = {
    "digits": digits,
    "fmnist": fmnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "20news": newsgroups,
    "20news-whole": newsgroups_whole,
}

FILES = {  # where each one's files must lie (DIR: the data directory), and where they come from
    "digits": "part of scikit-learn",
    "fmnist": f"four idx files in DIR/fashion-mnist, from {FMNIST_HOME}; or Debian's package dataset-fashion-mnist",
    "cifar10": f"DIR/cifar-10-batches-bin, or cifar-10-batches-py: cifar-10-binary.tar.gz from {CIFAR_HOME}",
    "cifar100": f"DIR/cifar-100-binary, or cifar-100-python: cifar-100-binary.tar.gz from {CIFAR_HOME}",
    "20news": f"DIR/20news-bydate-train and DIR/20news-bydate-test: {NEWS_HOME}",
    "20news-whole": "20news's",
}


def load(name: str, data_dir: str | None = None) -> Dataset:
    """The data set called `name`, read from `data_dir`, else the folder named by FEDUCA_DATA, else ./data."""
    if name not in LOADERS:
        raise ConfigError(f"task.data is {name!r}: choose one of {', '.join(LOADERS)} (build_own_task reads a folder)")
    return _loaded(name, data_dir, str(folder(data_dir).absolute()))


@functools.lru_cache(maxsize=4)
def _loaded(name: str, data_dir: str | None, where: str) -> Dataset:
    """Read once from each folder. `where` is in the key because what `data_dir` means may change: the variable, ./data."""
    return LOADERS[name](data_dir)


def available(data_dir: str | None = None) -> dict[str, Path | None]:
    """Where each data set was found, None where it was not: a look at the folders, without reading or verifying."""
    import sklearn

    home = folder(data_dir)
    places = {
        "digits": [Path(sklearn.__file__).parent / "datasets" / "data"],
        "fmnist": fmnist_places(data_dir),
        "cifar10": [home / "cifar-10-batches-bin", home / "cifar-10-batches-py"],
        "cifar100": [home / "cifar-100-binary", home / "cifar-100-python"],
        "20news": [home / "20news-bydate-train"],
        "20news-whole": [home / "20news-bydate-train"],
    }
    probe = {"fmnist": "train-images-idx3-ubyte*"}
    dealt = {
        name: next((place for place in tried if next(place.glob(probe.get(name, "*")), None)), None)
        for name, tried in places.items()
    }
    return dealt | {name: natural.place(name, data_dir) for name in natural.SETS}
