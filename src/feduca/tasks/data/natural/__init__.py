"""Data sets whose silos nature dealt: hospitals, sites, states, schools, speakers. By name, from their official files.

A silo keeps its natural size and its real name. Its examples are split into training, validation and test by `split_seed`; who
or what occurs twice (a person, a pupil, a repetition) is on one side only. Features are standardised by the silo's own training
part, as a silo that shows nobody its data would do it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feduca.core.rng import stream
from feduca.errors import ConfigError, DataError
from feduca.recipes.folders import NATURAL
from feduca.tasks.data.base import folder
from feduca.tasks.data.natural import readers
from feduca.tasks.data.natural.files import Source
from feduca.tasks.data.natural.records import Records

__all__ = ["SETS", "Dealt", "Records", "Set", "deal", "load_natural", "place", "silos"]

LEAST = 8  # examples below which a silo is left out: 4 to learn from, 2 to decide by, 2 to judge by
CLIP = 5.0  # standard deviations; a rare answer must not dwarf everything else


@dataclass(frozen=True)
class Set:
    """One data set: where its file is, how it is read, and how many examples it must have after that."""

    read: Callable[[list[str]], Records]  # from the files' contents
    source: Source
    rows: int


SETS: dict[str, Set] = {
    "heart": Set(readers.heart, readers.HEART, 740),
    "randhie": Set(readers.randhie, readers.RANDHIE, 20186),
    "fars": Set(readers.fars, readers.FARS, 100968),
    "vowel": Set(readers.vowel, readers.VOWEL, 990),
    "star": Set(readers.star, readers.STAR, 23788),
    "exam": Set(readers.exam, readers.EXAM, 4059),
    "azpro": Set(readers.azpro, readers.AZPRO, 3589),
    "insteval": Set(readers.insteval, readers.INSTEVAL, 73421),
}


@dataclass(frozen=True)
class Dealt:
    """Features and classes of all silos' examples, and which rows are whose: by silo's name and part."""

    x: np.ndarray
    y: np.ndarray
    rows: dict[str, dict[str, np.ndarray]]


def place(name: str, data_dir: str | None = None) -> Path | None:
    """Where a set's file was found, None where it was not; reads nothing."""
    return SETS[name].source.find(folder(data_dir))


def load_natural(name: str, data_dir: str | None = None) -> Records:
    """All examples of the data set called `name`, from `data_dir`, FEDUCA_DATA, ./data or the package that ships them."""
    if name not in SETS:
        raise ConfigError(f"task.data is {name!r}: the data sets with silos of their own are {', '.join(SETS)}")
    return _loaded(name, str(folder(data_dir).absolute()))


def silos(name: str, data_dir: str | None = None) -> list[str]:
    """The names of a set's silos, in their order."""
    return np.unique(load_natural(name, data_dir).silo).tolist()


@functools.lru_cache(maxsize=4)
def _loaded(name: str, home: str) -> Records:
    wanted = SETS[name]
    path = wanted.source.find(Path(home))
    if path is None:
        raise DataError(f"task.data is {name!r}, and its file is not here: {wanted.source.remedy}")
    try:
        found = wanted.read(wanted.source.texts(Path(home)))
    except (KeyError, IndexError, ValueError, UnicodeDecodeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not {name}'s file as it should be ({why}): {wanted.source.remedy}") from error
    there = [silo for silo, n in zip(*np.unique(found.silo, return_counts=True)) if n >= LEAST]
    if len(found.y) != wanted.rows or len(there) != NATURAL[name]:
        raise DataError(
            f"{path} gives {len(found.y)} examples in {len(there)} silos where {wanted.rows} in {NATURAL[name]} belong: it is"
            f" truncated or another version; {wanted.source.remedy}"
        )
    return found.where(np.isin(found.silo, there))


def deal(records: Records, seed: int, validation_share: float, test_share: float, pooled: bool = False) -> Dealt:
    """Split every silo by `seed`: a share is held out of training, and of that a share is what no decision sees.

    A group that occurs in several silos (a pupil who changed schools) is on the same side in all of them: where the first of
    them puts it. `pooled` lets every silo learn from everybody's training part, each standardised by its owner.
    """
    names, silo = np.unique(records.silo, return_inverse=True)
    _, first, group = np.unique(records.group, return_index=True, return_inverse=True)
    side = np.empty(len(first), np.int64)  # of each group: 0 train, 1 validation, 2 test
    for k in range(len(names)):
        own = np.flatnonzero(silo[first] == k)
        shuffled = stream(seed, "natural", k).permutation(own)
        held = max(2, round(len(own) * validation_share))
        test = min(held - 1, max(1 if test_share else 0, round(held * test_share)))
        side[shuffled] = np.repeat([0, 1, 2], [max(0, len(own) - held), held - test, test])
    part = side[group]
    x = np.zeros(records.x.shape, np.float32)
    rows: dict[str, dict[str, np.ndarray]] = {}
    for k, name in enumerate(names.tolist()):
        mine = [np.flatnonzero((silo == k) & (part == p)) for p in range(3)]
        for what, found in zip(("training", "validation", "test"), mine):
            if not len(found) and (what != "test" or test_share):
                raise ConfigError(
                    f"{name} has no {what} data with validation_share {validation_share} and test_share {test_share}; use"
                    " shares around 0.5"
                )
        everything = np.concatenate(mine)
        x[everything] = standardised(records.x[everything], records.x[mine[0]])
        rows[name] = dict(zip(("train", "validation", "test"), mine))
    if pooled:
        union = np.sort(np.concatenate([by_part["train"] for by_part in rows.values()]))
        rows = {name: {**by_part, "train": union} for name, by_part in rows.items()}
    return Dealt(x, records.y, rows)


def standardised(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """`x` by the mean and deviation of `by`; a column that does not vary there tells that silo nothing and becomes 0."""
    mean, deviation = by.mean(0), by.std(0)
    varies = deviation > 1e-6 * np.maximum(1, np.abs(mean))
    return np.where(varies, np.clip((x - mean) / np.where(varies, deviation, 1), -CLIP, CLIP), 0.0).astype(np.float32)
