"""A user's own data in memory: by silo's name, arrays of numpy or torch.

    {"north": (x, y, x_validation, y_validation), "south": (x, y, x_validation, y_validation, x_test, y_test)}

They are checked as files are (silos.py). Beside those, labels may be words, or run from 1: what they are called is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feduca.errors import ConfigError, DataError, printable, shown
from feduca.recipes.folders import PARTS
from feduca.tasks.data.silos import SiloFiles, checked
from feduca.tasks.data.tables import Part

WANTED = "a mapping from silos' names to (x, y, x_validation, y_validation), and x_test, y_test where there are some"


def read_given(
    silos: Any, test: Any = None, classes: int | None = None, values: bool = False
) -> tuple[SiloFiles, tuple[str, ...] | None]:
    """Silos' examples as `silos.read_folder` gives them, and what the classes are called (None: their numbers).

    `test` is a pair for everybody, `classes` a number that is declared; where `values` are to be predicted no label is touched.
    """
    if not isinstance(silos, Mapping):
        raise DataError(f"the silos are {_what(silos)}: give {WANTED}")
    if not silos:
        raise DataError(f"there are no silos: give {WANTED}")
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 2):
        raise ConfigError(f"classes is {shown(classes)}: give a whole number of at least 2, or leave it out")
    parts: dict[tuple[str, str], Part] = {}
    for name, arrays in silos.items():
        if not isinstance(name, str) or not name or printable(name) != name:
            raise DataError(f"a silo is called {shown(name)}: give every silo a name, a printable word")
        parts |= {(name, part): pair for part, pair in zip(PARTS, _pairs(f"silo {name}", arrays, (4, 6)))}
    if test is not None:
        (parts["", "test"],) = _pairs("the global test set", test, (2,))
    called = None if values else _number(parts, classes)
    found = checked(parts)
    return SiloFiles(
        {name: {p: found[n, p] for (n, p) in found if n == name} for name in silos}, found.get(("", "test"))
    ), called


def _pairs(where: str, arrays: Any, lengths: tuple[int, ...]) -> list[Part]:
    if not isinstance(arrays, Sequence) or isinstance(arrays, str) or len(arrays) not in lengths:
        many = (
            f"{len(arrays)} entries" if isinstance(arrays, Sequence) and not isinstance(arrays, str) else _what(arrays)
        )
        what = "a pair (x, y)" if lengths == (2,) else "(x, y, x_validation, y_validation), or with x_test, y_test six"
        raise DataError(f"{where} is given {many}: give {what}")
    found = []
    for x, y in zip(arrays[::2], arrays[1::2]):
        x, y = _array(where, x), _array(where, y)
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise DataError(
                f"{where} has inputs of shape {x.shape} and targets of shape {y.shape}: they must be equally long"
            )
        found.append(Part(x, y))
    for part, pair in zip(PARTS[:2] if lengths != (2,) else PARTS[2:], found):
        if not len(pair.y):
            raise DataError(f"{where} has no {part} data: give it some, or leave it out")
    return found


def _array(where: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        value = (
            value.float() if value.is_floating_point() and value.itemsize < 4 else value
        ).numpy()  # numpy lacks some
    try:
        found = np.asarray(value)
        found = np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found
    except ValueError:  # rows of different lengths, or bytes that are no words
        raise DataError(f"{where} has {_what(value)} that is no array: give numbers in rows of one length") from None
    return found.astype(str) if found.dtype.kind == "O" and all(isinstance(v, str) for v in found.flat) else found


def _what(value: Any) -> str:
    return (
        f"{type(value).__name__} {shown(value, 60)}"
        if not hasattr(value, "shape")
        else f"an array of shape {tuple(value.shape)}"
    )


def _number(parts: dict[tuple[str, str], Part], classes: int | None) -> tuple[str, ...] | None:
    """Number the classes 0, 1, ... in place where they are words, or run from 1 to the number declared."""
    kinds = {part.y.dtype.kind in "US" for part in parts.values()}
    if kinds == {True}:
        names = sorted({str(value) for part in parts.values() for value in part.y.flat})
        if classes is not None and len(names) > classes:
            raise DataError(
                f"there are {len(names)} classes, {', '.join(names)[:120]}, and classes is {classes}: check the labels"
            )
        for key, part in parts.items():
            parts[key] = Part(part.x, np.searchsorted(names, part.y.astype(str)))
        return tuple(names)
    if True in kinds:
        where = next(name or "the global test set" for (name, _), part in parts.items() if part.y.dtype.kind in "US")
        raise DataError(f"labels are words in {where} and numbers elsewhere: give all of them alike")
    whole = [part.y for part in parts.values() if part.y.dtype.kind in "biuf" and part.y.size]
    if not whole:
        return None  # what they are instead is refused where parts are checked
    least, most = min(y.min() for y in whole), max(y.max() for y in whole)
    if classes is not None and least == 1 and most == classes:
        for key, part in parts.items():
            parts[key] = Part(part.x, part.y - 1)
        return tuple(str(k + 1) for k in range(classes))
    if least == 1 and float(most).is_integer() and classes is None and most > 1:
        raise DataError(
            f"labels run from 1 to {most:g}, and none is 0: say classes={most:g} if the first class is 1, or"
            f" classes={most + 1:g} if it is 0 and nobody has it"
        )
    return None
