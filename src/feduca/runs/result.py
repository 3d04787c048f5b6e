"""What a finished run gives back, and how a run directory is read: checked first, believed then."""

from __future__ import annotations

import logging
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduca.core.records import mean
from feduca.errors import InputError
from feduca.runs import files, manifest, standing
from feduca.runs.environment import silos_of
from feduca.runs.lines import Lines, columns
from feduca.runs.summary import summarise
from feduca.types import Array

log = logging.getLogger("feduca")

WORDS = ("metric", "gain_worst_silo")  # what a summary has beside numbers


@dataclass(frozen=True)
class RunResult:
    """A finished run: what `feduca.run` returns and `feduca.load` reads back."""

    name: str
    config: Mapping[str, Any]
    seed: int
    rounds: Sequence[Mapping[str, Any]]  # RoundRecords
    clients: Sequence[Mapping[str, Any]]  # ClientRecords
    summary: Mapping[str, Any]
    run_dir: Path | None = None
    theta: Array | None = field(default=None, repr=False)  # the final global model, where it is at hand
    silos: Sequence[str] = ()  # their names

    @property
    def accuracy(self) -> float | None:
        """The score (`summary["metric"]`, where it is not accuracy) on the global test set, mean over the last ten rounds.

        None without such a set: `summary["deployed"]` is the mean of what silos' deployed models score on their own data.
        """
        return self.summary["accuracy"]

    @property
    def participation(self) -> float:
        """Mean over rounds and silos."""
        return self.summary["participation"]

    def row(self, label: str | None = None) -> dict[str, Any]:
        """One line for a table or for `--json`."""
        offer, rule = self.config["offer"]["kind"], self.config["participation"]["rule"]
        return {
            "method": label or self.config["mechanism"]["name"],
            "mechanism": self.config["mechanism"]["name"],
            "rule": rule,
            "offer": offer,
            "memory": self.config["memory"]["kind"],
            "seed": self.seed,
            **self.summary,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }


def _since(rounds: Sequence, clients: Sequence, silos: Sequence[str]) -> dict[str, Any]:
    return {**standing.summary(clients, silos), **standing.membership(rounds, clients, silos)}


def _unlike(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Where a summary cannot be that of these rounds, in a few words: an edited one may have a fitting seal."""
    for key, value in summary.items():
        if key in WORDS:
            fits = isinstance(value, str) or (key == "gain_worst_silo" and value is None)
        elif key == "left":
            fits = isinstance(value, Mapping)
        else:
            fits = value is None or isinstance(value, int | float)
        if not fits:
            return f"{key[:40]} of its summary is {str(value)[:40]!r}"
    if not {"accuracy", "participation", "seconds"} <= summary.keys() or None in (
        summary["participation"],
        summary["seconds"],
    ):
        return "its summary lacks figures"
    means = {"accuracy": rounds[-standing.LAST :], "participation": rounds}
    for key, those in means.items():
        told, found = summary[key], mean([float("nan") if line[key] is None else line[key] for line in those])
        if (told is None) != (found is None) or not math.isclose(told or 0, found or 0, rel_tol=1e-9, abs_tol=1e-12):
            return f"{key} of its summary is not that of its rounds"
    return ""


def load(path: str | Path) -> RunResult:
    """Read a run directory back. InputError where its records are not those that the run wrote."""
    path = Path(path)
    state = None
    try:
        status = manifest.readable(files.read_json(path / manifest.STATUS), path)
        state = status.get("state")
        if why := manifest.complaint(path, status):
            raise InputError(manifest.damaged(path, state, why))
        config = tomllib.loads(files.read(path / manifest.CONFIG).decode())
        rounds: Sequence = list(Lines.of(path / manifest.ROUNDS, state == "finished"))
        clients: Sequence = Lines.of(path / manifest.CLIENTS, state == "finished")
        if state != "finished":  # it may have been stopped between the two
            whole = min(len(rounds), len(clients))
            rounds, clients = rounds[:whole], clients[:whole]
        believed = "seal" in status and len(clients) == len(rounds)
        numbers = list(range(1, len(rounds) + 1))
        if not believed and any(
            [record["round"] for record in columns(one, "round")] != numbers for one in (rounds, clients)
        ):
            raise InputError(manifest.damaged(path, state, "its lines are not those of rounds 1, 2, ..."))
        kept = status.get("summary")
        if kept is not None and not len(rounds) == len(clients) == kept.get("rounds", len(rounds)):
            there = min(len(rounds), len(clients))
            raise InputError(
                manifest.damaged(path, state, f"{there} of {str(kept.get('rounds'))[:20]} rounds are there")
            )
        if kept and rounds and (wrong := _unlike(kept, rounds)):
            raise InputError(manifest.damaged(path, state, wrong))
        if not rounds:
            raise InputError(f"{path} holds no finished round yet; wait for one, or run it again")
        silos = silos_of(path, len(clients[-1]["status"]) if clients else 0)
        # A run of before there were these figures gets them now.
        since = {} if kept and "left" in kept else _since(rounds, clients, silos)
        summary = {**since, **kept} if kept else summarise(rounds, clients, silos)
        result = RunResult(config["name"], config, config["seeds"][0], rounds, clients, summary, path, silos=silos)
        result.row()  # whatever a table needs is there
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if state == "finished":
            raise InputError(manifest.damaged(path, state, " ".join(str(error).split()))) from None
        why = f"no {Path(error.filename).name}" if isinstance(error, FileNotFoundError) else str(error)
        raise InputError(f"{path} is not a run directory ({why}); give one that `feduca run` wrote") from None
    if manifest.unchecked(status):
        log.warning("%s %s", path, manifest.UNCHECKED)
    return result
