"""The files RESULTS/NAME.json: one summary per cell of a study, filled in several sittings, by several processes if need be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.recipes.schema import parse_setting
from feduca.runs.directory import held, write_whole
from feduca.studies.cell_summary import CellSummary
from feduca.studies.cells import Cell
from feduca.studies.summarise import beside, experiment

Summary = Mapping[str, Any]
Tell = Callable[[str], None]


def place(labels: Mapping[str, str]) -> str:
    """Where a cell stands in its table; one run under a changed recipe takes the place of the earlier one."""
    return json.dumps(dict(labels), sort_keys=True)


def in_order(summary: Iterable[Summary], places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Cells as `places` lists them; strangers come last."""
    return sorted(map(dict, summary), key=lambda cell: places.get(place(cell["labels"]), len(places)))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """What a file holds, by place; nothing where there is none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); move it away to start a new summary") from None
    if not isinstance(found, list) or not all(isinstance(cell, dict) and "labels" in cell for cell in found):
        raise InputError(f"{path} is not the summary of a study; move it away to start a new one")
    return {place(cell["labels"]): cell for cell in found}


def written(cells: Sequence[Summary]) -> str:
    """The text of a summary, a cell to a line: a comparison of two versions shows which cells are others."""
    return "[\n" + ",\n".join(json.dumps(cell, separators=(",", ":")) for cell in cells) + "\n]\n"


@dataclass(frozen=True)
class SummaryFile:
    """One study's file. `places` is the order of its cells; `tell` hears of cells that were there and are no more, or stay."""

    path: Path
    places: Mapping[str, int]
    tell: Tell = lambda line: None

    def put(self, new: Sequence[tuple[Cell, Mapping[str, Any]]], compared: bool = True) -> dict[str, dict[str, Any]]:
        """Put cells in beside what is there by now, and return all of it by place.

        `compared`: they learn what only their neighbours know.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with held(self.path.parent):
                known = read(self.path)
                for cell, summary in new:
                    there = known.get(place(cell.labels))
                    if there is None or self._gives_way(there, cell, summary):
                        known[place(cell.labels)] = dict(summary)
                cells = beside(list(known.values())) if compared else list(known.values())
                write_whole(self.path, written(in_order(cells, self.places)))
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror}; choose another folder with --results"
            ) from None
        return {place(cell["labels"]): cell for cell in cells}

    def _gives_way(self, there: Summary, cell: Cell, summary: Summary) -> bool:
        """Whether a cell takes the place of an earlier one: not if it is the same with fewer seeds."""
        if "config_hash" not in there or "config_hash" not in summary:  # a study that trains nothing
            return True
        old, new = CellSummary.of(there), CellSummary.of(summary)
        if set(new.seeds) < set(old.seeds) and same_experiment(old, cell):
            self.tell(f"{self.path}: {cell.label} keeps {_seeds(old)}; this one has only {_seeds(new)}")
            return False
        if old.config_hash != new.config_hash or not set(old.seeds) <= set(new.seeds):
            self.tell(f"{self.path}: {cell.label} is replaced: it was {_told(old)}, it is {_told(new)}")
        return True


def same_experiment(there: CellSummary, cell: Cell) -> bool:
    """Whether a summarised cell computed what this one does, on whatever device; older summaries say so by their hash alone."""
    if there.experiment is not None:
        return there.experiment == experiment(cell.recipe)
    device = "cpu" if there.device == "cpu" else "cuda"
    as_there = {"engine.device": device, "engine.precision": there.precision, "task.data_dir": None}
    return there.config_hash == cell.recipe.with_settings(as_there).hash()


def settings_text(changed: Mapping[str, Any]) -> list[str]:
    """Settings as `--set` takes them, `key=value` each."""
    return [f"{key}={value if _is_word(value) else _toml(value)}" for key, value in changed.items()]


def _is_word(value: Any) -> bool:
    """Whether a string needs no quotes."""
    return isinstance(value, str) and parse_setting(f"x={value}")[1] == value


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}={_toml(inner)}" for key, inner in value.items()) + "}"
    return f"[{','.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _told(cell: CellSummary) -> str:
    """How a cell was run, in a few words."""
    settings = settings_text({"rounds": cell.rounds, **cell.set})
    return ", ".join([*settings, f"{cell.device} in {cell.precision}", _seeds(cell)])


def _seeds(cell: CellSummary) -> str:
    return f"seed{'s' if len(cell.seeds) > 1 else ''} {', '.join(map(str, cell.seeds))}"
