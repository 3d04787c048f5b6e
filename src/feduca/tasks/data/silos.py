"""A user's own data: a folder with the files of each silo, in any sizes.

    folder/<silo>.npz                         arrays x_train, y_train, x_validation, y_validation (and x_test, y_test)
    folder/<silo>.csv or .parquet             a table with a column `split` (train, validation or test)
    folder/<silo>/train.csv, validation.csv   a table per part (and test.csv; or .parquet)
    folder/global-test.npz, .csv, .parquet    optional: a test set for everybody (x_test, y_test; a table of test rows)

In a table the column called `target` (default "label") is what is to be predicted and every other column is a number. Columns
are matched by name; those of an archive stand in the order of the first silo's table, where there are both.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from feduca.errors import DataError
from feduca.recipes.folders import ARCHIVE, PARTS, TABLES, entries, known
from feduca.tasks.data.tables import Part, examples, in_order, named, pop_split, read_table

REQUIRED = ("train", "validation")
FLOAT32_MOST = float(np.finfo(np.float32).max)

Examples = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SiloFiles:
    """What a folder of silos' files holds: examples by silo and part, and those of the global test set.

    Inputs are 8-bit, int64 or float32, the same for all. Targets are int64 where they are whole numbers, else float64.
    """

    silos: dict[str, dict[str, Examples]]
    test: Examples | None


def read_folder(path: str | Path, target: str = "label") -> SiloFiles:
    """Read a folder of silos' files; silos come in alphabetical order."""
    found, test_file = entries(path)
    parts: dict[tuple[str, str], Part] = {}
    for name, entry in found.items():
        silo, holds = _silo(entry, target)
        for part in REQUIRED:
            if part not in silo or not len(silo[part].y):
                raise DataError(
                    f"silo {name} ({entry}) has no {part} data ({holds}): every silo needs train and validation parts"
                )
        parts |= {(name, part): silo[part] for part in PARTS if part in silo}
    if test_file is not None:
        parts["", "test"] = _global_test(test_file, target)
    examples = checked(parts)
    silos = {name: {p: pair for (n, p), pair in examples.items() if n == name} for name in found}
    return SiloFiles(silos, examples.get(("", "test")))


def checked(parts: dict[tuple[str, str], Part]) -> dict[tuple[str, str], Examples]:
    """Parts by silo and what they are for ("" and test: everybody's), as types that a task takes and alike among themselves."""
    words = {key: _words(*key) for key in parts}
    parts = {key: _checked(part, words[key]) for key, part in parts.items()}
    tables = [key for key, part in parts.items() if part.columns is not None]
    if tables:
        columns = parts[tables[0]].columns or ()
        parts = {key: in_order(part, columns, words[key], words[tables[0]]) for key, part in parts.items()}
    _alike(parts, words)
    return {key: (part.x, part.y) for key, part in parts.items()}


def _words(name: str, part: str) -> str:
    return f"silo {name} ({part})" if name else "the global test set"


def _silo(entry: Path, target: str) -> tuple[dict[str, Part], str]:
    """The parts of one silo, and what the place they were looked for in holds."""
    if entry.is_dir():
        files = known(entry, lambda file: file.is_file() and file.stem in PARTS and file.suffix in TABLES)
        twice = [file.name for file in files if sum(file.stem == other.stem for other in files) > 1]
        if twice:
            raise DataError(f"{entry} holds one part twice, as {' and '.join(twice)}: keep one")
        return {file.stem: _table(file, target) for file in files}, f"it holds {_listed([f.name for f in files])}"
    if entry.suffix == ARCHIVE:
        return _archive(entry)
    table = read_table(entry)
    which = pop_split(entry, table)
    if which is None:
        raise DataError(
            f"{entry} has no column split ({named(table)}): add one with train, validation or test in each row"
        )
    whole = examples(entry, table, target)
    parts = {part: whole.where(which == part) for part in PARTS if (which == part).any()}
    return parts, f"split says {_listed(list(parts))}"


def _table(path: Path, target: str) -> Part:
    """A table that is one part of a silo; a column `split` may repeat which."""
    table = read_table(path)
    part = path.stem if path.stem in PARTS else "test"
    which = pop_split(path, table)
    if which is not None and (which != part).any():
        other = next(word for word in which.tolist() if word != part)
        raise DataError(f"{path} holds {part} data, but its column split says {other!r}: leave the column out")
    return examples(path, table, target)


def _global_test(path: Path, target: str) -> Part:
    parts = _archive(path)[0] if path.suffix == ARCHIVE else {"test": _table(path, target)}
    if "test" not in parts or not len(parts["test"].y):
        raise DataError(f"{path} has no x_test and y_test: a global test set needs both, with at least one example")
    return parts["test"]


def _archive(path: Path) -> tuple[dict[str, Part], str]:
    broken = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except broken as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read ({why}): write it with numpy.savez, plain arrays only") from error
    parts = {}
    for part in PARTS:
        x, y = content.get(f"x_{part}"), content.get(f"y_{part}")
        if x is None and y is None:
            continue
        if x is None or y is None:
            raise DataError(f"{path} has {'x' if y is None else 'y'}_{part} but not the other: a part needs x and y")
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise DataError(f"{path}: x_{part} has shape {x.shape} but y_{part} {y.shape}: they must be equally long")
        parts[part] = Part(x, y)
    return parts, f"it holds {_listed(list(content))}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


def _checked(part: Part, where: str) -> Part:
    """Inputs and targets as types that a task takes, or a complaint that says what they are."""
    x, y = part.x, part.y
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise DataError(f"{where} has inputs of type {x.dtype} and shape {x.shape}: give numbers [examples, ...]")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{where} has targets of shape {y.shape}: give one number per example")
    if y.dtype.kind not in "biuf":
        raise DataError(f"{where} has targets such as {y.tolist()[0]!r}: number the classes 0, 1, ...")
    for what, values in (("inputs", x), ("targets", y)):
        if values.dtype.kind == "f":
            if not np.isfinite(values).all():
                raise DataError(f"{where} has a missing or infinite value in its {what}: fill or drop such examples")
            if (np.abs(values) > FLOAT32_MOST).any():
                raise DataError(f"{where} has {what} beyond {FLOAT32_MOST:.1e}, the most float32 can hold: scale them")
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        raise DataError(
            f"{where} has images of shape {x.shape[1:]}: they must be rows x columns x channels; use x.transpose(0, 2, 3, 1)"
        )
    if x.dtype != np.uint8:
        x = x.astype(np.float32 if x.dtype.kind in "bf" else np.int64)
    whole = y.dtype.kind != "f" or bool((y == np.round(y)).all() and (np.abs(y) < 2**53).all())
    return replace(part, x=x, y=y.astype(np.int64 if whole else np.float64))


def _alike(parts: dict[tuple[str, str], Part], words: dict[tuple[str, str], str]) -> None:
    """All inputs must have one shape, and be 8-bit for all or none (8-bit numbers are divided by 255)."""
    first = next(iter(parts))
    shape, pixels = parts[first].x.shape[1:], parts[first].x.dtype == np.uint8
    for key, part in parts.items():
        if part.x.shape[1:] != shape:
            raise DataError(
                f"{words[key]} has examples of shape {part.x.shape[1:]}, {words[first]} of {shape}: they must agree"
            )
        if (part.x.dtype == np.uint8) != pixels:
            raise DataError(
                f"{words[key]} holds {part.x.dtype} and {words[first]} {parts[first].x.dtype}: 8-bit inputs are divided by 255, "
                "so all or none must be uint8"
            )
