"""A folder of silos' files, as seen from outside: who is in it, and whether it is still what it was. Reads no data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from feduca.errors import DataError, printable

NATURAL = {  # data sets that come in silos, and how many; the others are dealt to as many as one likes
    "heart": 4, "randhie": 6, "fars": 51, "vowel": 15, "star": 80, "exam": 64, "azpro": 17, "insteval": 14,
}  # fmt: skip
DATA_SETS = (
    "digits",
    "fmnist",
    "cifar10",
    "cifar100",
    "20news",
    "20news-whole",
    *NATURAL,
)  # that the library reads itself
TABLES = (".csv", ".parquet")
ARCHIVE = ".npz"
GLOBAL_TEST = "global-test"
PARTS = ("train", "validation", "test")
NAMED = 5  # files that a complaint names


def entries(path: str | Path) -> tuple[dict[str, Path], Path | None]:
    """The file or folder of every silo, in alphabetical order of names, and that of the global test set."""
    path = Path(path)
    if not folder_there(path):
        raise DataError(f"{path} is not a folder: give one that holds a file or a folder per silo")
    silos: dict[str, Path] = {}
    test: Path | None = None
    for entry in known(path, lambda entry: entry.is_dir() or entry.suffix in (ARCHIVE, *TABLES)):
        name = printable(entry.name if entry.is_dir() else entry.stem)
        if name == GLOBAL_TEST:
            if test is not None or entry.is_dir():
                raise DataError(f"{path} may hold one file {GLOBAL_TEST}.npz, .csv or .parquet; {entry.name} is not it")
            test = entry
        elif name in silos:
            raise DataError(f"{path} holds silo {name} twice, as {silos[name].name} and as {entry.name}: keep one")
        else:
            silos[name] = entry
    if not silos:
        raise DataError(f"{path} holds no silos: expected files <silo>.npz, .csv or .parquet, or a folder per silo")
    return silos, test


def known(path: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    """What lies in a folder, sorted; hidden files and README* are left out, anything else not `wanted` is refused."""
    found = sorted(e for e in path.iterdir() if not e.name.startswith((".", "README")))
    strangers = [entry.name for entry in found if not wanted(entry)]
    if strangers:
        more = f" and {len(strangers) - NAMED} more" if len(strangers) > NAMED else ""
        raise DataError(
            f"{path} holds {', '.join(strangers[:NAMED])}{more}, which no silo's data can be read from: use .npz, .csv or "
            ".parquet as docs/your-data.md names them, and move other files elsewhere"
        )
    return found


def folder_there(path: str | Path) -> bool:
    """Whether this is a folder; a name that no folder can have is none."""
    try:
        return Path(path).is_dir()
    except OSError:  # too long, or not ours to look at
        return False


def is_folder(data: str) -> bool:
    """Whether a recipe's `task.data` means a folder of silos' files: whatever is not the name of a data set."""
    return data not in DATA_SETS


def checksum(path: str | Path) -> str:
    """A name for what all files of a folder hold."""
    digest = hashlib.sha256()
    silos, test = entries(path)
    for top in [*silos.values(), *([] if test is None else [test])]:
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and not file.name.startswith((".", "README")):
                digest.update(f"{file.relative_to(path).as_posix()}\n".encode())
                with file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
