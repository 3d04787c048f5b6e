"""Where a natural data set's file is: in the data folder, or inside an installed package, which is never imported."""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from feduca.errors import DataError

Columns = dict[str, np.ndarray]  # of words (objects: long words would take long as an array of characters), by name


@dataclass(frozen=True)
class Source:
    """A file (or several) in the data folder, or, for want of it, in an installed distribution."""

    files: tuple[str, ...]  # below the data folder
    remedy: str  # what to do where it is missing
    distribution: str | None = None  # of pip, that ships the file ...
    inside: str = ""  # ... under this path
    member: str = ""  # of an archive there

    def find(self, home: Path) -> Path | None:
        """The data folder's file, else the package's; None where there is neither."""
        if all((home / file).is_file() for file in self.files):
            return home / self.files[0]
        if self.distribution is None:
            return None
        try:
            path = Path(str(metadata.distribution(self.distribution).locate_file(self.inside)))
        except metadata.PackageNotFoundError:
            return None
        return path if path.is_file() else None

    def texts(self, home: Path) -> list[str]:
        """The files' contents."""
        path = self.find(home)
        assert path is not None  # whoever reads has looked
        if path != home / self.files[0]:
            return [_text(path, self.member)]
        return [_text(home / file) for file in self.files]


def _text(path: Path, member: str = "") -> str:
    try:
        if not member:
            return path.read_text(encoding="utf-8")
        with tarfile.open(path, mode="r:gz") as archive:
            content = archive.extractfile(member)  # into memory: nothing is unpacked
            assert content is not None  # a file, as the package's own reader expects
            return content.read().decode("utf-8")
    except (OSError, UnicodeDecodeError, KeyError, EOFError, tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again") from error


def table(text: str, *needed: str) -> Columns:
    """The columns `needed` of a CSV file with names in its first line."""
    rows = csv.reader(io.StringIO(text))
    names = next(rows, [])
    places = [names.index(name) if name in names else -1 for name in needed]
    if -1 in places:
        raise KeyError(f"no column {needed[places.index(-1)]!r}")
    chosen = zip(*([row[place] for place in places] for row in rows if row))
    return {name: np.array(column, object) for name, column in zip(needed, chosen, strict=True)}


def keel(text: str) -> Columns:
    """The columns of a file in KEEL's format: lines that start with @ name them, all others are rows."""
    lines = [line.strip() for line in text.splitlines()]
    names = [line.split()[1] for line in lines if line.lower().startswith("@attribute")]
    cells = zip(*(line.split(",") for line in lines if line and not line.startswith("@")))
    return {name: np.array(list(map(str.strip, column)), object) for name, column in zip(names, cells, strict=True)}


def numbers(columns: Columns, *names: str) -> dict[str, np.ndarray]:
    """Some columns as numbers; NaN where one is missing (empty, NA)."""
    return {
        name: np.array([float(v) if v not in ("", "NA") else np.nan for v in columns[name].tolist()]) for name in names
    }


def complete(columns: Columns, *names: str) -> Columns:
    """The columns without the rows in which one of `names` is missing."""
    rows = [all(word not in ("", "NA") for word in row) for row in zip(*(columns[name].tolist() for name in names))]
    return {name: column[rows] for name, column in columns.items()}
