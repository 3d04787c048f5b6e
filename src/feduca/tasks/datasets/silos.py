"""A user's own data: a folder with the files of each silo, in any sizes.

    folder/<silo>.npz                         arrays x_train, y_train, x_validation, y_validation (and x_test, y_test)
    folder/<silo>.csv or .parquet             a table with a column `split` (train, validation or test)
    folder/<silo>/train.csv, validation.csv   a table per part (and test.csv; or .parquet)
    folder/global-test.npz, .csv, .parquet    optional: a test set for everybody (x_test, y_test; a table without split)

In a table the column called `target` (default "label") is what is to be predicted and every other column is a number.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feduca.errors import DataError

PARTS = ("train", "validation", "test")
REQUIRED = ("train", "validation")
TABLES = (".csv", ".parquet")
GLOBAL_TEST = "global-test"

Examples = tuple[np.ndarray, np.ndarray]
Table = dict[str, list]  # columns by name


@dataclass(frozen=True)
class SiloFiles:
    """What a folder of silos' files holds: examples by silo and part, and those of the global test set."""

    silos: dict[str, dict[str, Examples]]
    test: Examples | None


def read_folder(path: str | Path, target: str = "label") -> SiloFiles:
    """Read a folder of silos' files; silos come in alphabetical order."""
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: give one that holds a file or a folder per silo")
    silos: dict[str, dict[str, Examples]] = {}
    test: Examples | None = None
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or not (entry.is_dir() or entry.suffix in (".npz", *TABLES)):
            continue
        if entry.stem == GLOBAL_TEST:
            parts = _archive(entry) if entry.suffix == ".npz" else {"test": _split_off(entry, _table(entry), target)}
            if "test" not in parts:
                raise DataError(f"{entry} has no x_test and y_test: a global test set needs both")
            test = parts["test"]
            continue
        name = entry.name if entry.is_dir() else entry.stem
        if name in silos:
            raise DataError(f"{path} holds silo {name} twice, as {entry.name} too: keep one")
        silos[name] = _silo(entry, target)
        for part in REQUIRED:
            if part not in silos[name] or not len(silos[name][part][1]):
                raise DataError(
                    f"silo {name} ({entry}) has no {part} data: every silo needs train and validation parts"
                )
    if not silos:
        raise DataError(f"{path} holds no silos: expected files <silo>.npz, .csv or .parquet, or a folder per silo")
    _same_shape(silos, test)
    return SiloFiles(silos, test)


def _silo(entry: Path, target: str) -> dict[str, Examples]:
    if entry.is_dir():
        found = {
            part: entry / f"{part}{kind}" for part in PARTS for kind in TABLES if (entry / f"{part}{kind}").is_file()
        }
        return {part: _split_off(path, _table(path), target) for part, path in found.items()}
    if entry.suffix == ".npz":
        return _archive(entry)
    table = _table(entry)
    if "split" not in table:
        raise DataError(f"{entry} has no column split: add one with train, validation or test in each row")
    which = np.array(table.pop("split"))
    unknown = sorted(set(which.tolist()) - set(PARTS))
    if unknown:
        raise DataError(f"{entry} has {unknown[0]!r} in column split: use train, validation or test")
    x, y = _split_off(entry, table, target)
    return {part: (x[which == part], y[which == part]) for part in PARTS if (which == part).any()}


def _archive(path: Path) -> dict[str, Examples]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}): write it with numpy.savez, plain arrays only") from error
    parts = {}
    for part in PARTS:
        if f"x_{part}" in content and f"y_{part}" in content:
            x, y = content[f"x_{part}"], content[f"y_{part}"]
            if len(x) != len(y):
                raise DataError(f"{path}: x_{part} has {len(x)} examples but y_{part} {len(y)}: they must agree")
            parts[part] = (x, y)
    return parts


def _table(path: Path) -> Table:
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet  # type: ignore[import-not-found]
        except ImportError as error:
            raise DataError(f"{path} needs pyarrow to be read: pip install pyarrow, or use CSV") from error
        return parquet.read_table(path).to_pydict()
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        names = next(rows, None)
        if not names:
            raise DataError(f"{path} is empty: the first line must name the columns")
        columns: Table = {name: [] for name in names}
        for number, row in enumerate(rows, start=2):
            if not row:
                continue
            if len(row) != len(names):
                raise DataError(f"{path} line {number} has {len(row)} fields where the first line names {len(names)}")
            for name, value in zip(names, row):
                columns[name].append(value)
    return columns


def _split_off(path: Path, table: Table, target: str) -> Examples:
    """Features and targets of a table; whole-number targets are classes, others are values."""
    if target not in table:
        raise DataError(f"{path} has no column {target!r} (it has {', '.join(table)}): name the one to predict")
    numbers = {name: _numbers(path, name, values) for name, values in table.items()}
    y = numbers.pop(target)
    if not numbers:
        raise DataError(f"{path} has only the column {target!r}: there is nothing to predict it from")
    whole = bool(np.all(y == np.round(y)))
    return np.stack(list(numbers.values()), 1).astype(np.float32), y.astype(np.int64 if whole else np.float32)


def _numbers(path: Path, name: str, values: list) -> np.ndarray:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        bad = next(value for value in values if not _is_number(value))
        raise DataError(f"{path} has {bad!r} in column {name}: every column but split must be numbers") from None
    if not np.isfinite(column).all():
        raise DataError(f"{path} has a missing or infinite value in column {name}: fill or drop such rows")
    return column


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _same_shape(silos: dict[str, dict[str, Examples]], test: Examples | None) -> None:
    first = next(iter(silos))
    shape = silos[first]["train"][0].shape[1:]
    every = [(f"silo {name} ({part})", x) for name, parts in silos.items() for part, (x, _) in parts.items()]
    if test is not None:
        every.append(("the global test set", test[0]))
    for what, x in every:
        if x.shape[1:] != shape:
            raise DataError(f"{what} has examples of shape {x.shape[1:]}, silo {first} of {shape}: they must agree")
