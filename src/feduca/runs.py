"""Run directories: `OUT/<name>/<confighash>-s<seed>/`, where a run leaves everything it did, as text one can read.

config.toml    the resolved recipe, seed included: run it again from here
env.json       versions and machine
rounds.jsonl   one RoundRecord per line
clients.jsonl  one ClientRecord per line
status.json    running | finished | failed, the schema version, and the summary once there is one
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from feduca._version import __version__
from feduca.errors import InputError
from feduca.records import mean, plain
from feduca.types import Array

SCHEMA = 1
LAST = 10  # accuracy is the mean over the last ten rounds, as in the paper
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

    @property
    def accuracy(self) -> float | None:
        """On the global test set, mean over the last ten rounds."""
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


def summarise(rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run, from its records."""

    def over(key: str, records: Sequence[Mapping[str, Any]] = rounds) -> float | None:
        return mean([float("nan") if r[key] is None else r[key] for r in records])

    deployed = deployed_accuracy(clients[-LAST:])
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
        "worst_client": min(deployed),
        "smallest_cohort": rounds[-1]["smallest_cohort"],
        "rounds": len(rounds),
        "seconds": sum(r["seconds"]["round"] for r in rounds),
    }


def deployed_accuracy(clients: Sequence[Mapping[str, Any]]) -> list[float]:
    """Each silo's accuracy with the model it deploys, mean over these rounds: the offer where it joined, else its own.

    On the silo's untouched test part where the recipe sets one aside, else on its validation data.
    """

    def one(record: Mapping[str, Any], k: int) -> float:
        if record["test_deployed"] is not None:
            return record["test_deployed"][k]
        return record["offered_accuracy" if record["status"][k] == "joined" else "own_accuracy"][k]

    heard = [[one(r, k) for r in clients if r["status"][k] != "absent"] for k in range(len(clients[0]["status"]))]
    return [mean([float("nan") if v is None else v for v in values]) or 0.0 for values in heard]


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for several seeds: means, the standard deviation of accuracy, and every run's directory."""
    first = dict(rows[0])
    if len(rows) == 1:
        return first
    for key in first.keys() - {"seed"}:
        values = [row[key] for row in rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            first[key] = mean([float("nan") if value is None else value for value in values])
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
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
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }


class RunDirectory:
    """The files of one run, written as it goes. `begin`, `append` per round, then `finish` or `fail`."""

    def __init__(self, root: Path, name: str, config_hash: str, seed: int) -> None:
        self.path = Path(root) / name / f"{config_hash}-s{seed}"

    def state(self) -> str | None:
        """running, finished or failed; None where there is nothing yet."""
        try:
            return json.loads((self.path / "status.json").read_text())["state"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, config: Mapping[str, Any], seed: int, silos: Sequence[str], task: Mapping[str, Any]) -> None:
        """Start anew. Everything that can be wrong with the input has been found before this is called."""
        import tomlkit

        try:
            if self.path.exists():
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True)
            resolved = _without_none({**config, "seeds": [seed]})
            (self.path / "config.toml").write_text(tomlkit.dumps(resolved))
            self._write("env.json", environment() | {"silos": list(silos), "task": plain(task)})
            self._write("status.json", {"schema": SCHEMA, "state": "running"})
            (self.path / "rounds.jsonl").touch()
            (self.path / "clients.jsonl").touch()
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path}: {error.strerror}; choose another folder with --out"
            ) from None

    def append(self, record: Mapping[str, Any], clients: Mapping[str, Any]) -> None:
        """One finished round, as JSON-ready records."""
        for name, item in (("rounds", record), ("clients", clients)):
            with (self.path / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(item) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._write("status.json", {"schema": SCHEMA, "state": "finished", "summary": summary})

    def fail(self, reason: str) -> None:
        self._write("status.json", {"schema": SCHEMA, "state": "failed", "reason": reason})

    def _write(self, name: str, value: Any) -> None:
        """Whole or not at all: a reader never sees half a file."""
        part = self.path / f".{name}.part"
        part.write_text(json.dumps(value, indent=1))
        part.replace(self.path / name)


def check_writable(root: Path) -> None:
    """Find out before any work is done that results can be written; leaves nothing behind."""
    root = Path(root)
    existing = root
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "is not a folder" if not existing.is_dir() else "is not writable"
        raise InputError(f"cannot write results to {root}: {existing} {what}; choose another folder with --out")


def load(path: str | Path) -> RunResult:
    """Read a run directory back."""
    import tomllib

    path = Path(path)
    try:
        status = json.loads((path / "status.json").read_text())
        config = tomllib.loads((path / "config.toml").read_text())
        rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
        if not rounds:
            raise InputError(f"{path} holds no finished round yet; wait for one, or run it again")
        summary = status.get("summary") or summarise(rounds, clients)
        return RunResult(config["name"], config, config["seeds"][0], rounds, clients, summary, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a run directory ({error}); give one that `feduca run` wrote") from None


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is unset is left out."""
    return {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}
