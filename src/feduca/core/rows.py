"""Rows of many silos of which a round touches few: their models, and what the server remembers of their updates.

`Rows` look like an array `[N, P]` of which rows are taken (`take`) and put (`put`). They never change: `put` gives other Rows,
which share with the first all that stayed as it was. Behind them lie slots, each with room for one row. A slot that some Rows
know is not written again; so a state that somebody keeps stays true, and what a checkpoint knows outlives a crash at any time
(`runs/store.py` has the slots in a file). A row that was never put is zeros and takes no room: memory, or disk, grows with the
silos that were ever asked, and a round costs what its cohort does.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol

import numpy as np

from feduca.types import Array, Ints

ROOM = 1 << 23  # numbers of a portion, where all rows are gone through


class Slots(Protocol):
    """Where rows lie, by number."""

    def read(self, slots: Ints, sums: Ints) -> Array:
        """The rows that `write` put there, of which it gave these checksums."""
        ...

    def write(self, slots: Ints, rows: Array) -> Ints:
        """Put rows there; their checksums."""
        ...


class InMemory:
    """Slots in one array, which grows as it fills; `empty` is one of no rows."""

    def __init__(self, empty: Array) -> None:
        self._rows = empty

    def read(self, slots: Ints, sums: Ints) -> Array:
        return self._rows[slots]

    def write(self, slots: Ints, rows: Array) -> Ints:
        last = int(slots.max(initial=-1))
        if last >= len(self._rows):
            larger = _zeros(self._rows, max(last + 1, len(self._rows) * 3 // 2), *self._rows.shape[1:])
            larger[: len(self._rows)] = self._rows
            self._rows = larger
        self._rows[slots] = rows
        return np.zeros(len(slots), np.uint32)  # nobody but us writes there


class Book:
    """Which slots are taken, by any Rows that somebody still has. `empty` is an array of no rows: their kind."""

    def __init__(self, slots: Slots, empty: Array) -> None:
        self.slots, self.empty = slots, empty
        self._alive: weakref.WeakSet[Rows] = weakref.WeakSet()
        self._free = np.zeros(0, int)
        self._end = 0

    def enter(self, rows: Rows) -> None:
        """Its slots are not free any more."""
        self._alive.add(rows)

    def found(self, rows: Rows) -> None:
        """The same of Rows that come from a checkpoint: nobody here has claimed their slots."""
        self.enter(rows)
        self._free = np.zeros(0, int)
        self._end = max(self._end, int(rows.slots.max(initial=-1)) + 1)

    def claim(self, count: int) -> Ints:
        """So many slots that nobody knows, the first ones first."""
        if len(self._free) < count:
            free = np.ones(self._end, bool)
            for rows in self._alive:
                free[rows.slots[rows.slots >= 0]] = False
            self._free = np.flatnonzero(free)
        if (lacking := count - len(self._free)) > 0:
            more = max(lacking, self._end // 8)  # so that it is not for every round that all Rows are looked through
            self._free = np.concatenate([self._free, self._end + np.arange(more)])
            self._end += more
        taken, self._free = self._free[:count], self._free[count:]
        return taken


@dataclass(frozen=True, eq=False)
class Rows:
    """`[N, ...]` as it was at one time."""

    book: Book
    slots: Ints  # [N], -1 where there is no row yet: zeros
    sums: Ints  # [N]

    def __post_init__(self) -> None:
        self.book.enter(self)

    @classmethod
    def blank(cls, book: Book, n: int) -> Rows:
        return cls(book, np.full(n, -1), np.zeros(n, np.uint32))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.slots), *self.book.empty.shape[1:])

    @property
    def there(self) -> Ints:
        """Whose rows were ever put."""
        return np.flatnonzero(self.slots >= 0)

    def take(self, index: Ints) -> Array:
        """A copy of some rows."""
        slots = self.slots[index]
        known = slots >= 0
        if known.all():
            return self.book.slots.read(slots, self.sums[index])
        rows = self.new_zeros((len(slots), *self.shape[1:]))
        if known.any():
            rows[known] = self.book.slots.read(slots[known], self.sums[index][known])
        return rows

    def put(self, index: Ints, rows: Array) -> Rows:
        """Other Rows, with these in their places."""
        if not len(index):
            return self
        new = self.book.claim(len(index))
        sums = self.book.slots.write(new, rows)
        slots, all_sums = self.slots.copy(), self.sums.copy()
        slots[index], all_sums[index] = new, sums
        return Rows(self.book, slots, all_sums)

    def grown(self, n: int) -> Rows:
        """With blank rows for silos that have come since."""
        more = n - len(self.slots)
        return Rows(
            self.book,
            np.concatenate([self.slots, np.full(more, -1)]),
            np.concatenate([self.sums, np.zeros(more, np.uint32)]),
        )

    def portions(self, index: Ints) -> Sequence[Ints]:
        """`index` in parts of which each fits in memory."""
        step = max(1, ROOM // max(1, int(np.prod(self.shape[1:]))))
        return [index[begin : begin + step] for begin in range(0, len(index), step)]

    def new_zeros(self, shape: tuple[int, ...]) -> Array:
        """An array of the kind that rows are."""
        return _zeros(self.book.empty, *shape)

    def __getitem__(self, index: Any) -> Array:
        return self.take(np.arange(len(self.slots))[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self.take(np.arange(len(self.slots)))
        return np.asarray(whole.cpu() if hasattr(whole, "cpu") else whole, dtype=dtype)


class Store:
    """Makes Rows by name: here in main memory, `runs/store.py` in files."""

    def rows(self, name: str, like: Array, n: int) -> Rows:
        """`n` blank rows, each like `like`."""
        return Rows.blank(self.book(name, _zeros(like, 0, *like.shape)), n)

    def book(self, name: str, empty: Array) -> Book:
        return Book(InMemory(empty), empty)


def _zeros(x: Array, *shape: int) -> Array:
    return x.new_zeros(shape) if hasattr(x, "new_zeros") else np.zeros(shape, dtype=x.dtype)


def rows_in(tree: Any) -> list[Rows]:
    """All Rows somewhere in a tree of mappings, lists and dataclasses."""
    if isinstance(tree, Rows):
        return [tree]
    tree = vars(tree) if is_dataclass(tree) else tree
    inside = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return [rows for value in inside for rows in rows_in(value)]
