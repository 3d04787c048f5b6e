"""A model as Flower users hold it (named arrays of any shape) and as our mechanisms see it (one flat vector)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord

from feduca.errors import InputError


def numbers(array: Array) -> np.ndarray:
    """An array from the wire. Whatever its bytes do to the decoder, it is this one message that is refused."""
    try:
        return array.numpy()
    except Exception as error:  # EOFError, BadZipFile, MemoryError, TokenError, ...: a stranger chooses
        raise InputError(f"an array cannot be read: {type(error).__name__} {str(error)[:200]}") from None


BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # statistics, not parameters: averaged plainly


@dataclass(frozen=True)
class Vector:
    """Names, shapes and types of a record's arrays, parameters first and buffers last, as `theta` has them."""

    names: tuple[str, ...]  # in theta's order
    given: tuple[str, ...]  # in the record's own order
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    parameters: int  # leading entries of theta that are trained
    dtype: np.dtype  # of theta

    @staticmethod
    def of(record: ArrayRecord) -> Vector:
        arrays = {name: array.numpy() for name, array in record.items()}
        if not arrays:
            raise InputError("the model has no arrays; give the strategy the initial model's")
        buffers = [name for name in arrays if name.rpartition(".")[2] in BUFFERS]
        names = [name for name in arrays if name not in buffers]
        for name in names:
            if arrays[name].dtype.kind != "f":
                raise InputError(f"array {name!r} is of type {arrays[name].dtype}; parameters are floats")
        trained = sum(arrays[name].size for name in names)
        return Vector(
            (*names, *buffers),
            tuple(arrays),
            {name: value.shape for name, value in arrays.items()},
            {name: value.dtype for name, value in arrays.items()},
            trained,
            np.result_type(*(arrays[name].dtype for name in names)),
        )

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @property
    def parameter_names(self) -> dict[str, int]:
        """The arrays in theta's order, with how many entries each has."""
        return {name: int(np.prod(self.shapes[name])) for name in self.names}

    def flat(self, record: ArrayRecord) -> np.ndarray:
        """The record as `theta`; it must have the same names and shapes."""
        arrays = {name: numbers(array) for name, array in record.items()}
        if arrays.keys() != self.shapes.keys():
            odd = sorted(arrays.keys() ^ self.shapes.keys())[0]
            raise InputError(f"the model's arrays changed: {odd!r} is new or missing")
        for name, value in arrays.items():
            if value.dtype.kind not in "fiub":
                raise InputError(f"array {name!r} is of type {value.dtype}, not of numbers")
            if value.shape != self.shapes[name]:
                raise InputError(f"array {name!r} has shape {value.shape}, not {self.shapes[name]}")
        return np.concatenate([arrays[name].ravel().astype(self.dtype) for name in self.names])

    def record(self, theta: np.ndarray) -> ArrayRecord:
        """`theta` as a record of the original names, shapes, types and order."""
        arrays, start = {}, 0
        for name in self.names:
            end = start + int(np.prod(self.shapes[name]))
            arrays[name] = np.asarray(theta[start:end]).reshape(self.shapes[name]).astype(self.dtypes[name])
            start = end
        return ArrayRecord({name: Array(arrays[name]) for name in self.given})
