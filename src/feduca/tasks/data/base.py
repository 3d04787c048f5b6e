"""What a data set is, and the checks that every reader shares."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feduca.errors import DataError

FOLDER_VARIABLE = "FEDUCA_DATA"


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


def folder(data_dir: str | None) -> Path:
    """The data directory: the argument, else the folder that FEDUCA_DATA names, else ./data."""
    return Path(data_dir or os.environ.get(FOLDER_VARIABLE) or "data")


def read(path: Path, size: int, md5: str | None = None) -> bytes:
    """The bytes of a file that must have this size and checksum."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the file") from error
    verify(path, payload, size, md5)
    return payload


def verify(path: Path, payload: bytes, size: int, md5: str | None) -> None:
    """Refuse content that is truncated or damaged."""
    if len(payload) != size:
        raise DataError(f"{path} holds {len(payload)} bytes where {size} belong: it is truncated; fetch it again")
    if md5 is not None:
        found = hashlib.md5(payload, usedforsecurity=False).hexdigest()
        if found != md5:
            raise DataError(f"{path} has md5 {found}, not {md5}: it is damaged; fetch it again")
