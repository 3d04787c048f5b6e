"""Going back: a run forgets the rounds after one that has a checkpoint, and goes on from there as if they had never been."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

from feduca.errors import CheckpointError, InputError
from feduca.runs import checkpoint, files, manifest
from feduca.runs.locks import locked
from feduca.runs.vouched import GROWING, vouched

DEPLOYMENT, EVENTS = "deployment.json", "events.jsonl"


def roll_back(path: Path, run: str, round: int, secure: bool = False) -> bool:
    """Forget what came after `round`; `run` is the recipe's hash and the seed. Returns whether silos' own disks are concerned.

    The checkpoint and the records it stands on are checked first. A deployed run gets another name among its silos: what they
    remember of the forgotten rounds is not theirs to go on from, so they start with the model they are sent. Not with `secure`
    aggregation: the running sum holds what silos remember under the old name alone.
    """
    folder = path / "checkpoint"
    points = checkpoint.numbered(folder)
    if round not in points:
        there = ", ".join(map(str, sorted(points))) or "no round"
        raise InputError(
            f"{path} has no checkpoint of round {round}, only of {there}; choose one of them"
            " (checkpoint.history = n keeps the last n)"
        )
    try:
        lock = locked(path)
    except BlockingIOError:
        raise InputError(f"another process is writing {path}; end it first") from None
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror}; make it writable") from None
    try:
        try:
            known = vouched(path, points[round], run).files
        except CheckpointError as error:
            raise CheckpointError(f"{error}; choose another round") from None
        deployment = _deployment(path)
        if secure and deployment is not None:
            raise InputError(
                f"{path} is a deployed run with privacy.secure_aggregation, whose sums cannot go back without its silos;"
                " go on with `feduca resume`, or export the model you want and start a new run from it"
            )
        files.write_whole(
            path / manifest.STATUS,
            json.dumps(
                {"schema": manifest.SCHEMA, "state": "interrupted", "reason": f"rolled back to round {round}"}, indent=1
            ),
        )
        checkpoint.discard_after(folder, round)
        for name in GROWING:
            files.unshared(path / name)
            with (path / name).open("r+b") as file:
                file.truncate(known[name]["bytes"])
        if deployment is not None:
            _rename(path, round, deployment)
        return deployment is not None
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror}; make it writable, and repeat this") from None
    finally:
        if lock is not None:
            lock.release()


def _deployment(path: Path) -> dict[str, Any] | None:
    """What a deployed run is called among its silos; None for a simulation."""
    try:
        words = files.read_json(path / DEPLOYMENT)
    except FileNotFoundError:
        return None
    except ValueError:
        words = None
    if not isinstance(words, dict) or not isinstance(words.get("run"), str):
        raise InputError(f"{path / DEPLOYMENT} does not name a run among its silos; repeat the run with --again")
    return words


def _rename(path: Path, round: int, words: dict[str, Any]) -> None:
    """Another name for a deployed run among its silos, and a line among its events."""
    words["run"] = f"{str(words['run']).rpartition('-')[0]}-{secrets.token_hex(4)}"
    files.write_whole(path / DEPLOYMENT, json.dumps(words))
    event = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "round": round, "event": "rolled back"}
    with files.appending(path / EVENTS) as file:
        file.write((json.dumps(event) + "\n").encode())
