"""Data sets by name, read from their official files and verified."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from feduca.errors import ConfigError
from feduca.tasks.datasets.base import Dataset
from feduca.tasks.datasets.images import cifar10, cifar100, fmnist

__all__ = ["LOADERS", "Dataset", "digits", "load"]


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
}


@functools.lru_cache(maxsize=4)
def load(name: str, data_dir: str | None = None) -> Dataset:
    """The data set called `name`, read from `data_dir`, else the folder named by FEDUCA_DATA, else ./data."""
    if name not in LOADERS:
        raise ConfigError(f"task.data is {name!r}: choose one of {', '.join(LOADERS)}, or a folder of silos' files")
    return LOADERS[name](data_dir)
