"""Tables of numbers: CSV and Parquet files, column by column, and putting the columns of several into one order."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from feduca.errors import DataError

Table = dict[str, list]  # columns by name


@dataclass(frozen=True)
class Part:
    """Examples of one part of a silo: inputs, targets and, where they come from a table, the inputs' names."""

    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...] | None = None

    def where(self, rows: np.ndarray) -> Part:
        return replace(self, x=self.x[rows], y=self.y[rows])


def read_table(path: Path) -> Table:
    """The columns of a CSV or Parquet file."""
    return _parquet(path) if path.suffix == ".parquet" else _csv(path)


def _parquet(path: Path) -> Table:
    try:
        import pyarrow  # type: ignore[import-not-found]
        import pyarrow.parquet as parquet  # type: ignore[import-not-found]
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow to be read: pip install pyarrow, or use CSV") from error
    try:
        return parquet.read_table(path).to_pydict()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as Parquet ({why}): write it again") from error


def _csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # with or without a byte order mark
            rows = csv.reader(file)
            names = [name.strip() for name in next(rows, [])]
            if not names:
                raise DataError(f"{path} is empty: the first line must name the columns")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{path} has two columns {twice[0]!r}: give each column a name of its own")
            lists: list[list[str]] = [[] for _ in names]
            for number, row in enumerate(rows, start=2):
                if not row:
                    continue
                if len(row) != len(names):
                    raise DataError(
                        f"{path} line {number} has {len(row)} fields where the first line names {len(names)}"
                    )
                for column, value in zip(lists, row):
                    column.append(value)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV ({error}): write it in UTF-8, columns split by commas"
        ) from error
    return dict(zip(names, lists))


def pop_split(path: Path, table: Table) -> np.ndarray | None:
    """Take the column `split` out of a table; None where it has none."""
    if "split" not in table:
        return None
    words = [str(word).strip() for word in table.pop("split")]
    unknown = sorted(set(words) - {"train", "validation", "test"})
    if unknown:
        raise DataError(f"{path} has {unknown[0]!r} in column split: use train, validation or test")
    return np.array(words)


def named(table: Table) -> str:
    """The columns of a table, for a complaint; one that was not split at commas shows it."""
    unsplit = len(table) == 1 and any(sign in next(iter(table)) for sign in ";\t|")
    return f"it has {', '.join(map(repr, table))}{'; split columns by commas' if unsplit else ''}"


def examples(path: Path, table: Table, target: str) -> Part:
    """Inputs and targets of a table without its column `split`."""
    if target not in table:
        raise DataError(f"{path} has no column {target!r} ({named(table)}): name the one to predict with target=")
    numbers = {name: _numbers(path, name, values, name == target) for name, values in table.items()}
    y = numbers.pop(target)
    if not numbers:
        raise DataError(f"{path} has only the column {target!r}: there is nothing to predict it from")
    return Part(np.stack(list(numbers.values()), 1), y, tuple(numbers))


def _numbers(path: Path, name: str, values: list, is_target: bool) -> np.ndarray:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        bad = next(value for value in values if not _is_number(value))
        what = "number the classes 0, 1, ..." if is_target and bad else "every column but split must be numbers"
        raise DataError(f"{path} has {bad!r} in column {name}: {what}") from None
    if not np.isfinite(column).all():
        raise DataError(f"{path} has a missing or infinite value in column {name}: fill or drop such rows")
    return column


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def in_order(part: Part, wanted: tuple[str, ...], where: str, first: str) -> Part:
    """The same examples with columns in the order of `wanted`, which are those of `first`."""
    if part.columns is None or part.columns == wanted:
        return part
    for names, other, which, has in (
        (wanted, part.columns, f"{where} has no column", f"which {first} has"),
        (part.columns, wanted, f"{where} has a column", f"which {first} has not"),
    ):
        missing = [name for name in names if name not in other]
        if missing:
            raise DataError(f"{which} {missing[0]!r}, {has}: all tables need the same columns, in any order")
    return replace(part, x=part.x[:, [part.columns.index(name) for name in wanted]], columns=wanted)
