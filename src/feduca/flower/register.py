"""Which silo has which place: names to indices, kept with the run (`silos.json`).

Flower's node ids are opaque, and without authentication a restarted node gets a new one. Names are what lasts. Places are given
in the order of names at the first exchange, and to later arrivals at the end; nobody's place is ever given away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from feduca.core.roster import Census
from feduca.errors import InputError
from feduca.runs import files


@dataclass(frozen=True)
class Member:
    """One silo, as the server knows it."""

    name: str
    node: int  # Flower's id of the node that last spoke for it
    examples: int
    left: bool = False  # for good
    erased: bool = False  # and its update is not to be kept


class Register:
    """All silos of a run, in the server's order; written to `path` whenever something changes."""

    def __init__(self, path: Path | None = None, members: Iterable[Member] = ()) -> None:
        self.path = path
        self.members = list(members)

    @staticmethod
    def load(path: Path) -> Register:
        try:
            return Register(path, [Member(**entry) for entry in files.read_json(path)["silos"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a list of silos ({error}); repeat the run with --again") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    def place(self, name: str) -> int | None:
        return self.names.index(name) if name in self.names else None

    def of_node(self, node: int) -> Member | None:
        return next((member for member in self.members if member.node == node), None)

    def add(self, newcomers: Iterable[Member]) -> None:
        """New silos go to the end, in the order of their names (silo-2 before silo-10)."""
        self.members += sorted(
            newcomers, key=lambda m: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", m.name)]
        )
        self.write()

    def update(self, place: int, **changes: object) -> None:
        self.members[place] = replace(self.members[place], **changes)  # type: ignore[arg-type]
        self.write()

    def census(self) -> Census:
        each = self.members
        erased = np.array([m.erased for m in each]) if any(m.erased for m in each) else None
        return Census(np.array([m.examples for m in each]), np.array([m.left for m in each]), erased)

    def write(self) -> None:
        """Whole or not at all."""
        if self.path is None:
            return
        files.write_whole(self.path, json.dumps({"silos": [asdict(member) for member in self.members]}, indent=1))
