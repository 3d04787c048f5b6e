"""Run directories: `OUT/<name>/<confighash>-s<seed>/`, where a run leaves everything it did, as text one can read.

config.toml    the resolved recipe, seed included: run it again from here
env.json       versions, commit and machine
rounds.jsonl   one RoundRecord per line
clients.jsonl  one ClientRecord per line
checkpoint/    the last two checkpoints, or more (checkpoint.py); they know what the files above were: resuming cuts records there
status.json    running | finished | failed | interrupted; once finished, the summary and the checksums of it all (manifest.py)

Whatever else lies there, notes or a report, is its owner's and stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feduca.core.records import plain
from feduca.core.rows import Rows, rows_in
from feduca.errors import Busy, CheckpointError, FeducaError, InputError, RunError
from feduca.runs import checkpoint, files, manifest
from feduca.runs.checkpoint import Checkpoint
from feduca.runs.environment import commit_of, environment, other_versions, silos_of, task_of
from feduca.runs.files import check_writable, without_none, write_whole
from feduca.runs.lines import Lines, encoded
from feduca.runs.locks import held, locked
from feduca.runs.manifest import nothing_kept, state_of
from feduca.runs.result import RunResult, load
from feduca.runs.store import FOLDER, OnDisk, slots_of
from feduca.runs.summary import LAST, deployed_accuracy, over_seeds, summarise
from feduca.runs.vouched import GROWING, vouched
from feduca.types import Array, ServerState

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = [
    "LAST",
    "Resumed",
    "RunDirectory",
    "RunResult",
    "check_writable",
    "commit_of",
    "deployed_accuracy",
    "environment",
    "held",
    "load",
    "nothing_kept",
    "over_seeds",
    "silos_of",
    "state_of",
    "summarise",
    "task_of",
    "without_none",
    "write_whole",
]

log = logging.getLogger("feduca")

OURS = (manifest.STATUS, *manifest.RECORDS, manifest.SILOS, "deployment.json", "events.jsonl")  # what a run writes


@dataclass(frozen=True)
class Resumed:
    """An interrupted run as its newest usable checkpoint knows it."""

    state: ServerState
    clients: Mapping[str, Array]  # for Federation.restore
    rounds: list[dict[str, Any]]  # the records so far
    records: Lines


class RunDirectory:
    """The files of one run, written as it goes: `begin` or `resume`, `append` and `save` per round, then `finish`.

    A context manager: leaving it early records why. One process at a time: the folder is locked from `begin` or `resume` until
    then (where the system has such locks).
    """

    FILES: tuple[str, ...] = GROWING

    def __init__(
        self,
        root: Path,
        name: str,
        config_hash: str,
        seed: int,
        every_s: float | None = None,
        keep: bool = True,
        history: int | None = None,
        place: Path | None = None,  # where it lies, if it was moved or copied
    ) -> None:
        self.path = place or Path(root) / name / f"{config_hash}-s{seed}"
        self._run = f"{config_hash}-s{seed}"
        self._schedule = checkpoint.Schedule(every_s) if keep else None
        self._kept = checkpoint.KEPT if history is None else history
        self._digests = {name: hashlib.sha256() for name in self.FILES}
        self._lengths = dict.fromkeys(self.FILES, 0)
        self.clients = Lines(self.path / manifest.CLIENTS)  # the silos' records so far
        self._fixed: dict[str, bytes] = {}  # what is written once: the recipe and the environment
        self.rows = OnDisk(self.checkpoints / FOLDER if keep else None)  # where silos' rows lie, if that is on disk
        self._known: dict[int, list[Rows]] = {}  # by checkpoint, the rows that it knows: their slots stay as they are
        self._lock: BaseFileLock | None = None
        self._begun = False  # from here on an early end is recorded

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    def state(self) -> str | None:
        """running (or killed), finished, failed or interrupted; None where there is nothing yet."""
        return state_of(self.path)

    def begin(self, config: Mapping[str, Any], seed: int, silos: Sequence[str], task: Mapping[str, Any]) -> None:
        """Start anew. Everything that can be wrong with the input has been found before this is called."""
        import tomlkit

        resolved = without_none({**config, "seeds": [seed]})
        told = environment() | {"silos": list(silos), "task": plain(task)}
        texts = {manifest.CONFIG: tomlkit.dumps(resolved), manifest.ENVIRONMENT: json.dumps(told, indent=1)}
        try:
            if self.path.is_symlink():
                raise InputError(
                    f"{self.path} is a link, and a run would write to its target; remove it, or choose another --out"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._clear()
            for name, text in texts.items():
                write_whole(self.path / name, text)
            for name in self.FILES:
                files.appending(self.path / name).close()
            self.clients = Lines(self.path / manifest.CLIENTS)
            self._write(manifest.STATUS, {"schema": manifest.SCHEMA, "state": "running"})
            self._begun = True
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path}: {error.strerror}; choose another folder with --out"
            ) from None
        self._fixed = {name: text.encode() for name, text in texts.items()}

    def forget(self) -> None:
        """Remove what an earlier run left here, so that the next one starts anew."""
        if self.state() is not None and not self.path.is_symlink():
            with self:
                self._acquire()
                self._clear()

    def _clear(self) -> None:
        """Remove what an earlier run of this name wrote, the status first; nothing else, and no link's target."""
        old = [self.path / name for one in OURS for name in (one, f".{one}.part")]
        for path in old:
            if path.is_dir() and not path.is_symlink():
                raise InputError(f"{path} is a folder where the run writes a file; move it away")
        for path in old:
            path.unlink(missing_ok=True)
        if self.checkpoints.is_symlink() or not self.checkpoints.is_dir():
            self.checkpoints.unlink(missing_ok=True)
            return
        for path in checkpoint.remains(self.checkpoints):
            files.remove(path)
        with contextlib.suppress(OSError):  # somebody else's notes
            self.checkpoints.rmdir()

    def resume(self, theta: Array, silos: Sequence[str]) -> Resumed | None:
        """Go back to the newest usable checkpoint; None where none was ever written.

        `theta` is the run's initial model: what comes back has its shape, dtype and device. Record files are cut to what they
        were at that checkpoint. Raises CheckpointError when there are checkpoints and none can be used.
        """
        if not checkpoint.existing(self.checkpoints):
            return None
        try:
            self._acquire()
        except OSError as error:
            raise InputError(f"cannot open {self.path}: {error.strerror}; is it a run directory?") from None
        point, complaints = checkpoint.newest(self.checkpoints, lambda path: self._usable(path, theta, silos))
        if point is None:
            raise CheckpointError(
                f"no checkpoint of {self.path} can be used: {'; '.join(complaints)}; repeat the run with --again"
            )
        known, done = point.files, point.state.round - 1
        for complaint in complaints:
            log.warning("%s; the checkpoint of round %d is used instead", complaint, done)
        if changed := other_versions(self.path):
            log.warning("resuming %s with other versions (%s): figures may differ", self.path, ", ".join(changed))
        try:
            for name in self.FILES:
                length = self._lengths[name] = known[name]["bytes"]
                files.unshared(self.path / name)
                with (self.path / name).open("r+b") as file:
                    file.truncate(length)
                self._digests[name] = files.hashed(self.path / name, length)
            checkpoint.discard_after(self.checkpoints, done)
            self._known[done] = in_files(point)
            for number, path in checkpoint.numbered(self.checkpoints).items():
                if number < done and self._known[done]:
                    with contextlib.suppress(CheckpointError):
                        self._known[number] = in_files(checkpoint.read(path, theta, self.rows))
            self._write(manifest.STATUS, {"schema": manifest.SCHEMA, "state": "running"})
            self._begun = True
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}; make it writable to resume") from None
        self._fixed = {name: files.read(self.path / name) for name in known if name not in self.FILES}
        self.clients = Lines.of(self.path / manifest.CLIENTS)
        return Resumed(point.state, point.clients, list(Lines.of(self.path / manifest.ROUNDS)), self.clients)

    def append(self, record: Mapping[str, Any], clients: Mapping[str, Any]) -> None:
        """One finished round, as JSON-ready records."""
        for name, item in zip(self.FILES, (record, clients)):
            line = encoded(item)
            try:
                with files.appending(self.path / name) as file:
                    file.write(line)
            except OSError as error:
                raise RunError(self._stopped(self.path / name, error)) from None
            self._digests[name].update(line)
            self._lengths[name] += len(line)
            if name == manifest.CLIENTS:
                self.clients.note(line)

    def save(self, state: ServerState, clients: Mapping[str, Array], last: bool = False) -> bool:
        """Write a checkpoint if one is due (or it is the `last` round). A failure is told, not fatal: the previous one stays."""
        if self._schedule is None or not (last or self._schedule.due()):
            return False
        known = {name: {"bytes": self._lengths[name], "sha256": self._digests[name].hexdigest()} for name in self.FILES}
        for name, text in self._fixed.items():
            known[name] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        done = state.round - 1
        point = Checkpoint(self._run, state, clients, known)
        rows = in_files(point)
        since = sum(slots.written for one in rows if (slots := slots_of(one)) is not None)
        try:
            for name in self.FILES:
                with files.appending(self.path / name) as file:
                    os.fsync(file.fileno())
            path = checkpoint.write(self.checkpoints, done, point, self._kept)
        except OSError as error:
            older = [path.name for path in checkpoint.existing(self.checkpoints)]
            stays = f"{older[0]} stays in use" if older else "there is none to resume from yet"
            log.warning("checkpoint of round %d not written (%s); %s", done, error.strerror, stays)
            return False
        self._schedule.wrote(path, since)
        there = checkpoint.numbered(self.checkpoints)
        self._known = {number: kept for number, kept in {**self._known, done: rows}.items() if number in there}
        return True

    def waits(self, why: str) -> None:
        """Say for what a run that goes on waits; an empty text: no longer. That nobody can be told is no reason to stop."""
        if self._begun:
            said = {"schema": manifest.SCHEMA, "state": "running"} | ({"reason": why} if why else {})
            with contextlib.suppress(OSError):
                self._write(manifest.STATUS, said)

    def finish(self, summary: Mapping[str, Any]) -> None:
        digests = {name: self._digests[name].hexdigest() for name in self.FILES}
        digests |= {name: hashlib.sha256(text).hexdigest() for name, text in self._fixed.items()}
        try:
            self._write(manifest.STATUS, manifest.sealed(self.path, self._run, summary, digests))
        except OSError as error:
            raise RunError(self._stopped(self.path, error)) from None

    def fail(self, reason: str, state: str = "failed") -> None:
        """Say why the run ended early. The disk may be the reason, so this never raises."""
        said = {"schema": manifest.SCHEMA, "state": state, "reason": reason}
        try:
            self._write(manifest.STATUS, said)
        except OSError:  # a full disk may have no room for a new file; for a few other words in the old one it has
            with contextlib.suppress(OSError), (self.path / manifest.STATUS).open("r+b") as file:
                file.write(json.dumps(said).encode())
                file.truncate()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Record how it ended, if it did before `finish`, and let other processes at the folder again."""
        if error is not None and self._begun:
            reason = str(error) if isinstance(error, FeducaError) else f"{type(error).__name__}: {error}"
            self.fail(reason, "failed" if isinstance(error, Exception) else "interrupted")
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _usable(self, path: Path, theta: Array, silos: Sequence[str]) -> Checkpoint:
        """The checkpoint at `path`, if it fits this run's task, too."""
        point = vouched(self.path, path, self._run, theta, self.rows)
        seen, n = point.state.theta, len(silos)
        if type(seen) is not type(theta) or seen.shape != theta.shape or seen.dtype != theta.dtype:
            raise CheckpointError(f"{path} holds a model that is not this run's")
        if len(point.state.examples) != n:
            raise CheckpointError(f"{path} holds {len(point.state.examples)} silos, this run has {n}")
        return point

    def _stopped(self, path: Path, error: OSError) -> str:
        room = "; free some space, then" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ";"
        return f"cannot write to {path}: {error.strerror}{room} go on with `feduca resume {self.path}`"

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        try:
            self._lock = locked(self.path)
        except BlockingIOError:
            raise Busy(f"another process is writing {self.path}; wait for it, or choose another --out") from None

    def _write(self, name: str, value: Any) -> None:
        write_whole(self.path / name, json.dumps(value, indent=1))


def in_files(point: Checkpoint) -> list[Rows]:
    """The rows of a checkpoint that lie in files."""
    return [rows for rows in rows_in(point) if slots_of(rows) is not None]
