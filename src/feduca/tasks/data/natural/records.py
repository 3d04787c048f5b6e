"""What a reader of a natural data set returns, and how columns of words become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Records:
    """Examples with the silo they belong to; those with one `group` are never on both sides of a split."""

    x: np.ndarray  # [n, features]
    y: np.ndarray  # [n]
    silo: np.ndarray  # [n], names
    group: np.ndarray  # [n], whole numbers
    features: tuple[str, ...]
    labels: tuple[str, ...]

    def where(self, rows: np.ndarray) -> Records:
        return replace(self, x=self.x[rows], y=self.y[rows], silo=self.silo[rows], group=self.group[rows])


def records(
    columns: Mapping[str, np.ndarray], y: np.ndarray, silo: Sequence[str], group: np.ndarray, labels: Sequence[str]
) -> Records:
    """Examples from columns of features, their classes, silos and groups (of any kind: equal ones are one group)."""
    x = np.stack([np.asarray(column, np.float32) for column in columns.values()], 1)
    together = np.unique(group, return_inverse=True)[1]
    return Records(x, np.asarray(y, np.int64), np.asarray(silo), together, tuple(columns), tuple(labels))


def one_hot(name: str, values: np.ndarray, least: int = 0) -> dict[str, np.ndarray]:
    """A column of words as a column of zeros and ones for each word that at least so many examples have."""
    levels = sorted(level for level, n in Counter(values.tolist()).items() if n >= least)
    return {f"{name}={level}": values == level for level in levels}


def numbered(values: np.ndarray, prefix: str) -> list[str]:
    """Names of silos that their file only numbers: `school-07`, so that they sort as the numbers do."""
    texts = [f"{value:g}" for value in np.asarray(values, float)]
    width = max(len(text.partition(".")[0]) for text in texts)
    return [f"{prefix}-{text.rjust(width + len(text) - len(text.partition('.')[0]), '0')}" for text in texts]
