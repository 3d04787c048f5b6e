"""Run directories: `OUT/<name>/<confighash>-s<seed>/`, where a run leaves everything it did, as text one can read.

config.toml    the resolved recipe, seed included: run it again from here
env.json       versions, commit and machine
rounds.jsonl   one RoundRecord per line
clients.jsonl  one ClientRecord per line
checkpoint/    the last two checkpoints (checkpoint.py); they know how long the two files above were, and resuming cuts them there
status.json    running | finished | failed | interrupted, the schema version, and the summary once there is one
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from feduca import checkpoint, standing
from feduca._version import __version__
from feduca.checkpoint import Checkpoint
from feduca.commit import commit
from feduca.errors import CheckpointError, FeducaError, InputError, RunError
from feduca.records import mean, plain
from feduca.standing import LAST
from feduca.types import Array, ServerState

log = logging.getLogger("feduca")

SCHEMA = 1
PACKAGES = ("numpy", "scipy", "numba", "torch", "pydantic", "scikit-learn", "safetensors")


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


def summarise(
    rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], silos: Sequence[str] = ()
) -> dict[str, Any]:
    """The figures of a run, from its records. Against the models alone only where they were recorded (standing.py)."""

    def over(key: str, records: Sequence[Mapping[str, Any]] = rounds) -> float | None:
        return mean([float("nan") if r[key] is None else r[key] for r in records])

    deployed = deployed_accuracy(clients[-LAST:])
    known = [value for value in deployed if not math.isnan(value)]
    flags = [flag for record in clients[1:] for flag in record["eq1"]]  # round 1 has no own models
    return {
        "accuracy": over("accuracy", rounds[-LAST:]),
        "final_accuracy": rounds[-1]["accuracy"],
        "participation": over("participation"),
        "eq1_share": mean(flags),
        "satisfied": over("satisfied"),
        "fallbacks": sum(r["fallback"] is not None for r in rounds),
        "jensen": over("jensen"),
        "discrepancy": over("discrepancy"),
        "r2": over("r2"),
        "concession": over("concession"),
        "promise_kept": over("promise_kept"),
        "deployed": mean(deployed),
        "worst_client": min(known, default=None),
        **standing.summary(clients, silos),
        **standing.membership(rounds, clients, silos),
        "smallest_cohort": rounds[-1]["smallest_cohort"],
        "rounds": len(rounds),
        "seconds": sum(r["seconds"]["round"] for r in rounds),
    }


def deployed_accuracy(clients: Sequence[Mapping[str, Any]]) -> list[float]:
    """Each silo's accuracy with the model it deploys, mean over these rounds: the offer where it joined, else its own.

    On the silo's untouched test part where it has one, else on its validation data. NaN where there is nothing.
    """

    def one(record: Mapping[str, Any], k: int) -> float:
        if record["test_deployed"] is not None and record["test_deployed"][k] is not None:
            return record["test_deployed"][k]
        return record["offered_accuracy" if record["status"][k] == "joined" else "own_accuracy"][k]

    heard = [[one(r, k) for r in clients if r["status"][k] != "absent"] for k in range(len(clients[0]["status"]))]
    means = (mean([float("nan") if v is None else v for v in values]) for values in heard)
    return [float("nan") if value is None else value for value in means]


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for several seeds: means, the standard deviation of accuracy, the worst silo, and every run's directory."""
    first = dict(rows[0])
    if len(rows) == 1:
        return first
    first.pop("left", None)  # is one seed's
    for key in first.keys() - {"seed"}:
        values = [row.get(key) for row in rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            first[key] = mean([float("nan") if value is None else value for value in values])
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    if judged := [row for row in rows if row.get("gain_worst") is not None]:  # the worst silo of all seeds
        worst = min(judged, key=lambda row: row["gain_worst"])
        first |= {key: worst[key] for key in ("gain_worst", "gain_worst_silo")}
    return first | {
        "accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "seed": None,
        "seeds": [row["seed"] for row in rows],
        "run_dirs": [row["run_dir"] for row in rows],
    }


def environment() -> dict[str, Any]:
    """What this run ran on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "feduca": __version__,
        "commit": commit(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }


@dataclass(frozen=True)
class Resumed:
    """An interrupted run as its newest usable checkpoint knows it."""

    state: ServerState
    clients: Mapping[str, Array]  # for Federation.restore
    rounds: list[dict[str, Any]]  # the records so far
    records: list[dict[str, Any]]


class RunDirectory:
    """The files of one run, written as it goes: `begin` or `resume`, `append` and `save` per round, then `finish`.

    A context manager: leaving it early records why. One process at a time: the folder is locked from `begin` or `resume` until
    then (where the system has such locks).
    """

    FILES: tuple[str, ...] = ("rounds.jsonl", "clients.jsonl")

    def __init__(
        self, root: Path, name: str, config_hash: str, seed: int, every_s: float | None = None, keep: bool = True
    ) -> None:
        self.path = Path(root) / name / f"{config_hash}-s{seed}"
        self._run = f"{config_hash}-s{seed}"
        self._schedule = checkpoint.Schedule(every_s) if keep else None
        self._digests = {name: hashlib.sha256() for name in self.FILES}
        self._lengths = dict.fromkeys(self.FILES, 0)
        self._lock: int | None = None
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

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            for old in self.path.iterdir():
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            resolved = without_none({**config, "seeds": [seed]})
            (self.path / "config.toml").write_text(tomlkit.dumps(resolved))
            self._write("env.json", environment() | {"silos": list(silos), "task": plain(task)})
            for name in self.FILES:
                (self.path / name).touch()
            self._write("status.json", {"schema": SCHEMA, "state": "running"})
            self._begun = True
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path}: {error.strerror}; choose another folder with --out"
            ) from None

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
        found, complaints = checkpoint.newest(self.checkpoints, lambda path: self._usable(path, theta, silos))
        if found is None:
            raise CheckpointError(
                f"no checkpoint of {self.path} can be used: {'; '.join(complaints)}; repeat the run with --again"
            )
        point, texts = found
        done = point.state.round - 1
        for complaint in complaints:
            log.warning("%s; the checkpoint of round %d is used instead", complaint, done)
        self._warn_of_other_versions()
        try:
            for name, text in texts.items():
                with (self.path / name).open("r+b") as file:
                    file.truncate(len(text))
                self._digests[name] = hashlib.sha256(text)
                self._lengths[name] = len(text)
            checkpoint.discard_after(self.checkpoints, done)
            self._write("status.json", {"schema": SCHEMA, "state": "running"})
            self._begun = True
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}; make it writable to resume") from None
        rounds, clients = ([json.loads(line) for line in texts[name].splitlines()] for name in self.FILES)
        return Resumed(point.state, point.clients, rounds, clients)

    def append(self, record: Mapping[str, Any], clients: Mapping[str, Any]) -> None:
        """One finished round, as JSON-ready records."""
        for name, item in zip(self.FILES, (record, clients)):
            line = (json.dumps(item) + "\n").encode()
            try:
                with (self.path / name).open("ab") as file:
                    file.write(line)
            except OSError as error:
                raise RunError(
                    f"cannot write to {self.path / name}: {error.strerror}; then `feduca resume {self.path}`"
                ) from None
            self._digests[name].update(line)
            self._lengths[name] += len(line)

    def save(self, state: ServerState, clients: Mapping[str, Array], last: bool = False) -> bool:
        """Write a checkpoint if one is due (or it is the `last` round). A failure is told, not fatal: the previous one stays."""
        if self._schedule is None or not (last or self._schedule.due()):
            return False
        files = {name: {"bytes": self._lengths[name], "sha256": self._digests[name].hexdigest()} for name in self.FILES}
        done = state.round - 1
        try:
            for name in self.FILES:
                with (self.path / name).open("ab") as file:
                    os.fsync(file.fileno())
            path = checkpoint.write(self.checkpoints, done, Checkpoint(self._run, state, clients, files))
        except OSError as error:
            older = [path.name for path in checkpoint.existing(self.checkpoints)]
            stays = f"{older[0]} stays in use" if older else "there is none to resume from yet"
            log.warning("checkpoint of round %d not written (%s); %s", done, error.strerror, stays)
            return False
        self._schedule.wrote(path)
        return True

    def finish(self, summary: Mapping[str, Any]) -> None:
        try:
            self._write("status.json", {"schema": SCHEMA, "state": "finished", "summary": summary})
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror}; then `feduca resume {self.path}`") from None

    def fail(self, reason: str, state: str = "failed") -> None:
        """Say why the run ended early. The disk may be the reason, so this never raises."""
        with contextlib.suppress(OSError):
            self._write("status.json", {"schema": SCHEMA, "state": state, "reason": reason})

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Record how it ended, if it did before `finish`, and let other processes at the folder again."""
        if error is not None and self._begun:
            reason = str(error) if isinstance(error, FeducaError) else f"{type(error).__name__}: {error}"
            self.fail(reason, "failed" if isinstance(error, Exception) else "interrupted")
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _usable(self, path: Path, theta: Array, silos: Sequence[str]) -> tuple[Checkpoint, dict[str, bytes]]:
        """The checkpoint at `path` with the record text it stands on, or a CheckpointError that says why not."""
        point = checkpoint.read(path, theta)
        if not isinstance(point, Checkpoint) or not isinstance(point.state, ServerState):
            raise CheckpointError(f"{path} does not hold the state of a run")
        if point.run != self._run:
            raise CheckpointError(f"{path} belongs to run {point.run}, not to {self._run}")
        seen, n = point.state.theta, len(silos)
        if type(seen) is not type(theta) or seen.shape != theta.shape or seen.dtype != theta.dtype:
            raise CheckpointError(f"{path} holds a model that is not this run's")
        if len(point.state.examples) != n:
            raise CheckpointError(f"{path} holds {len(point.state.examples)} silos, this run has {n}")
        texts = {}
        for name in self.FILES:
            want = point.files[name]
            try:
                with (self.path / name).open("rb") as file:
                    texts[name] = file.read(want["bytes"])
            except OSError as error:
                raise CheckpointError(f"{self.path / name} cannot be read ({error.strerror})") from None
            if hashlib.sha256(texts[name]).hexdigest() != want["sha256"]:
                raise CheckpointError(f"{self.path / name} is not what {path.name} knew it to be")
        return point, texts

    def _warn_of_other_versions(self) -> None:
        try:
            then = json.loads((self.path / "env.json").read_text())
            old, new = {"feduca": then["feduca"], **then["packages"]}, environment()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
        new = {"feduca": new["feduca"], **new["packages"]}
        changed = [f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name]]
        if changed:
            log.warning("resuming %s with other versions (%s): figures may differ", self.path, ", ".join(changed))

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        try:
            self._lock = _locked(self.path, wait=False)
        except BlockingIOError:
            raise InputError(f"another process is writing {self.path}; wait for it, or choose another --out") from None

    def _write(self, name: str, value: Any) -> None:
        write_whole(self.path / name, json.dumps(value, indent=1))


def _locked(folder: Path, wait: bool) -> int | None:
    """A handle that locks a folder until it is closed; None where there are no such locks. BlockingIOError without `wait`."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None  # not on this file system
    return handle


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nobody else who asks for the folder has it meanwhile: processes and threads wait here for each other."""
    handle = _locked(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk: a reader never sees half a file."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def state_of(path: str | Path) -> str | None:
    """What the status file of a run directory says; None where there is none that can be read."""
    try:
        return json.loads((Path(path) / "status.json").read_text())["state"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def task_of(path: str | Path) -> dict[str, Any]:
    """What a run directory says of its task; empty where it says nothing that can be read."""
    told = _environment_of(path, "task", {})
    return told if isinstance(told, dict) else {}


def commit_of(path: str | Path, otherwise: str | None) -> str | None:
    """The commit a run was started at; `otherwise` where it does not say, as runs of before it was recorded."""
    return _environment_of(path, "commit", otherwise)


def _environment_of(path: str | Path, key: str, otherwise: Any) -> Any:
    """An entry of a run directory's env.json; `otherwise` where there is none, or none that can be read."""
    try:
        return json.loads((Path(path) / "env.json").read_text())[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return otherwise


def silos_of(path: str | Path, n: int) -> list[str]:
    """The names of a run directory's `n` silos (a deployment's may come later); numbers stand in for names that it lacks."""
    known = _told_silos(path)
    return [*known[:n], *(f"silo-{k}" for k in range(len(known), n))]


def _told_silos(path: str | Path) -> list[str]:
    for name in ("silos.json", "env.json"):
        try:
            told = json.loads((Path(path) / name).read_text())["silos"]
            return [str(silo["name"] if isinstance(silo, dict) else silo) for silo in told]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return []


def nothing_kept(path: str | Path) -> str | None:
    """Why an unfinished run directory has to start anew; None where it has a checkpoint to go on from."""
    import tomllib

    path = Path(path)
    if checkpoint.existing(path / "checkpoint"):
        return None
    try:
        keep = tomllib.loads((path / "config.toml").read_text())["checkpoint"]["keep"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a run of before there was a choice
        keep = True
    return "no checkpoint was written yet" if keep else "no checkpoint was kept (checkpoint.keep = false)"


def check_writable(root: Path, option: str = "--out") -> None:
    """Find out before any work is done that results can be written; leaves nothing behind."""
    root = Path(root)
    existing = root
    while not existing.exists():
        existing = existing.parent
    what = None if existing.is_dir() else "is not a folder"
    if what is None:
        try:  # permissions alone do not tell: think of /proc, or of a disk mounted read-only
            with tempfile.TemporaryFile(dir=existing):  # a file without a name: nobody who lists the folder sees it
                pass
        except OSError as error:
            what = f"is not writable ({error.strerror})"
    if what is not None:
        raise InputError(f"cannot write results to {root}: {existing} {what}; choose another folder with {option}")


def load(path: str | Path) -> RunResult:
    """Read a run directory back."""
    import tomllib

    path = Path(path)
    try:
        status = json.loads((path / "status.json").read_text())
        config = tomllib.loads((path / "config.toml").read_text())
        rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
        kept = status.get("summary")
        if kept is not None and not len(rounds) == len(clients) == kept.get("rounds", len(rounds)):
            there = min(len(rounds), len(clients))
            raise InputError(_damaged(path, f"{there} of {kept.get('rounds', len(rounds))} rounds are there"))
        if not rounds:
            raise InputError(f"{path} holds no finished round yet; wait for one, or run it again")
        silos = silos_of(path, len(clients[-1]["status"]) if clients else 0)
        # A run of before there were these figures gets them now.
        since = {**standing.summary(clients, silos), **standing.membership(rounds, clients, silos)}
        summary = {**since, **kept} if kept else summarise(rounds, clients, silos)
        result = RunResult(config["name"], config, config["seeds"][0], rounds, clients, summary, path, silos=silos)
        result.row()  # whatever a table needs is there
        return result
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if state_of(path) == "finished":
            raise InputError(_damaged(path, " ".join(str(error).split()))) from None
        why = f"no {Path(error.filename).name}" if isinstance(error, FileNotFoundError) else str(error)
        raise InputError(f"{path} is not a run directory ({why}); give one that `feduca run` wrote") from None


def _damaged(path: Path, why: str) -> str:
    return f"{path} is finished, but its records are damaged ({why}); repeat the run with --again"


def without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is unset is left out."""
    return {k: without_none(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}
