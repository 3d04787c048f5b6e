"""status.json: how far a run is, and once it is finished the checksums of its records, so that they are believed for a reason.

A finished run's status holds its name (recipe hash and seed), its summary, the SHA-256 of every record and a seal: the SHA-256 of
all of that. It tells apart what the run wrote from what became of it by accident or by an editor; it is no signature. Runs of
before there were seals are read, too, and called unchecked; what their last checkpoint knew of their records is compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.runs import checkpoint, files

SCHEMA = 2
STATUS, CONFIG, ENVIRONMENT, ROUNDS, CLIENTS = "status.json", "config.toml", "env.json", "rounds.jsonl", "clients.jsonl"
SILOS = "silos.json"  # a deployment's
STATES = ("running", "finished", "failed", "interrupted")
RECORDS = (CONFIG, ENVIRONMENT, ROUNDS, CLIENTS)

UNCHECKED = "was written before runs kept checksums of their records: its figures are shown unchecked"


def read_status(folder: Path) -> dict[str, Any] | None:
    """What status.json says; None where there is none, or nothing that can be read."""
    try:
        status = files.read_json(Path(folder) / STATUS)
    except (OSError, ValueError):
        return None
    return readable(status, folder) if isinstance(status, dict) else None


def readable(status: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same, unless it is of a version to come."""
    if (schema := status.get("schema", 1)) not in (1, SCHEMA):
        raise InputError(
            f"{folder} has schema {str(schema)[:40]}, this version reads 1 to {SCHEMA}; use a version of feduca that reads it,"
            " or move the folder away"
        )
    return status


def run_of(path: Path, otherwise: str) -> str:
    """What a run is called, hash and seed, as its status or its checkpoint says, or a folder named so; else `otherwise`.

    A folder that was copied or renamed may be called anything.
    """
    if told := (read_status(path) or {}).get("run"):
        return str(told)
    if _is_name(here := Path(path).resolve().name):
        return here
    return checkpoint.newest(Path(path) / "checkpoint", checkpoint.run_of)[0] or otherwise


def _is_name(folder: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{12}-s\d+", folder) is not None


def state_of(path: str | Path) -> str | None:
    """running (or killed), finished, failed or interrupted; None where no status file can be read."""
    state = (read_status(Path(path)) or {}).get("state")
    return state if isinstance(state, str) else None


def sealed(folder: Path, run: str, summary: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The status of a finished run; `digests` are those of the records as they were written."""
    names = files.digest(folder / SILOS)
    known = dict(digests) if names is None else {**digests, SILOS: names}
    status = {"schema": SCHEMA, "state": "finished", "run": run, "summary": summary, "records": known}
    status = json.loads(json.dumps(status))
    return {**status, "seal": _seal(status)}


def complaint(folder: Path, status: Mapping[str, Any]) -> str:
    """Why the records of a run are not to be believed, in a few words; empty where nothing speaks against them."""
    if status.get("state") not in STATES:
        return f"{STATUS} does not say how far it is"
    if status["state"] == "finished" and not isinstance(status.get("summary"), dict):
        return f"{STATUS} has lost its summary"
    if "seal" not in status:
        if status["state"] == "finished" and status.get("schema", 1) != 1:
            return f"{STATUS} has lost its checksums"
        return _unlike_checkpoint(folder)
    records = status.get("records")
    if _seal(status) != status["seal"] or not isinstance(records, dict) or status["state"] != "finished":
        return f"{STATUS} does not match its checksum"
    for name in (*RECORDS, SILOS):
        if files.digest(folder / name) != records.get(name):
            return f"{name} is not what the run wrote"
    here = Path(folder).resolve().name
    if _is_name(here) and here != status.get("run"):
        return f"it is run {str(status.get('run'))[:40]} in the folder of another"
    return ""


def unchecked(status: Mapping[str, Any]) -> bool:
    """Whether a run was finished before there were seals."""
    return status.get("state") == "finished" and "seal" not in status


def damaged(folder: Path, state: str | None, why: str) -> str:
    """The sentence for records that are not to be believed."""
    how = "is finished, but its records are damaged" if state == "finished" else "has damaged records"
    return f"{folder} {how} ({why}); repeat the run with --again"


def nothing_kept(path: str | Path) -> str | None:
    """Why an unfinished run directory has to start anew; None where it has a checkpoint to go on from."""
    import tomllib

    path = Path(path)
    if checkpoint.existing(path / "checkpoint"):
        return None
    try:
        keep = tomllib.loads(files.read(path / CONFIG).decode())["checkpoint"]["keep"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a run of before there was a choice
        keep = True
    return "no checkpoint was written yet" if keep else "no checkpoint was kept (checkpoint.keep = false)"


def _unlike_checkpoint(folder: Path) -> str:
    """The newest checkpoint knows what the records were when it was written."""
    point, _ = checkpoint.newest(folder / "checkpoint", checkpoint.records)
    for name, want in (point or {}).items():
        if name in RECORDS and files.digest(folder / name, want["bytes"]) != want["sha256"]:
            return f"{name} is not what the last checkpoint knew it to be"
    return ""


def _seal(status: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in status.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
