"""Which checkpoint of a run is believed: one that is this run's, and whose records are still what it knew them to be.

Everything that goes on from a checkpoint or takes a model out of it asks here: resuming, going back, extending, exporting and
reading a run. What is wrong is a CheckpointError in one clause; who asks adds what to do.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from feduca.errors import CheckpointError, InputError
from feduca.runs import checkpoint, files, manifest
from feduca.runs.checkpoint import Checkpoint
from feduca.runs.result import RunResult, load
from feduca.runs.store import OnDisk
from feduca.types import Array, ServerState

log = logging.getLogger("feduca")

GROWING = (
    manifest.ROUNDS,
    manifest.CLIENTS,
)  # a checkpoint knows how they began; the recipe and the environment never change


def vouched(folder: Path, point: Path, run: str, like: Array | None = None, rows: OnDisk | None = None) -> Checkpoint:
    """The checkpoint at `point` of the run in `folder`, which is called `run` (the recipe's hash and the seed)."""
    found = checkpoint.read(point, like, rows)
    if not isinstance(found, Checkpoint) or not isinstance(found.state, ServerState):
        raise CheckpointError(f"{point} does not hold the state of a run")
    if found.run != run:
        raise CheckpointError(f"{point} belongs to run {found.run}, not to {run}")
    known = checkpoint.records(point)
    if not set(GROWING) <= known.keys() <= set(manifest.RECORDS):
        raise CheckpointError(f"{point} knows of other files than a run's")
    for name, want in known.items():
        if files.digest(folder / name, want["bytes"] if name in GROWING else None) != want["sha256"]:
            raise CheckpointError(f"{folder / name} is not what {point.name} knew it to be")
    return replace(found, files=known)


def last(folder: Path, run: str, rounds: int) -> tuple[Checkpoint, str]:
    """The newest checkpoint of a run that can be used, and where it is not of the last of `rounds`, a sentence about it."""

    def use(point: Path) -> Checkpoint:
        found = vouched(folder, point, run)
        if not 0 < (done := found.state.round - 1) <= rounds:
            raise CheckpointError(f"{point} is of round {done}, and there are {rounds} rounds")
        return found

    point, complaints = checkpoint.newest(folder / "checkpoint", use)
    if point is None:
        why = f" ({'; '.join(complaints)})" if complaints else ""
        raise InputError(f"{folder} has no usable checkpoint{why}; repeat the run with --again")
    if (done := point.state.round - 1) == rounds:
        return point, ""
    why = f": {'; '.join(complaints)}" if complaints else ", when the last checkpoint was written"
    return point, f"the models of {folder} are those after round {done} of {rounds}{why}"


def read_back(folder: Path) -> RunResult:
    """A run as `feduca.run` returned it: with its shared model where a checkpoint has that of its last round."""
    result = load(folder)
    if not checkpoint.existing(folder / "checkpoint"):
        return result
    try:
        point, note = last(folder, manifest.run_of(folder, folder.name), len(result.rounds))
    except InputError as error:
        log.warning("%s; its model (theta) is left out", error)
        return result
    if note:
        log.warning("%s; it is left out", note)
        return result
    return replace(result, theta=point.state.theta)
