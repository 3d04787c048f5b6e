"""Data sets by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from feduca.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Dataset:
    """A pool of examples to deal to silos, and a global test set.

    Images are 8-bit `[n, rows, columns, channels]` with the channels' `mean` and `std` on the 0..1 scale; other
    examples are float features `[n, features]` or word numbers `[n, words]`.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    labels: tuple[str, ...]
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    vocabulary: int = 0  # of text: how many word numbers there are


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


LOADERS: dict[str, Callable[[str | None], Dataset]] = {"digits": digits}


@functools.lru_cache(maxsize=4)
def load(name: str, data_dir: str | None = None) -> Dataset:
    """The data set called `name`, read from `data_dir`, else the folder named by FEDUCA_DATA, else ./data."""
    if name not in LOADERS:
        raise ConfigError(f"task.data is {name!r}: choose one of {', '.join(LOADERS)}, or a folder of silos' files")
    return LOADERS[name](data_dir)
