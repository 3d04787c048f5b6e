"""A run that goes on beyond its last round: a copy of its records under the name of the longer run, which `resume` takes up.

Nothing in a run depends on how many rounds it has (the learning rate decays by the number of the round), so what comes of it is
what the longer run would have given at once. The run that is extended stays as it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from feduca.errors import CheckpointError, InputError
from feduca.runs import checkpoint, files, manifest
from feduca.runs.rollback import DEPLOYMENT
from feduca.runs.vouched import GROWING, vouched


def extend(path: Path, run: str, target: Path, config: Mapping[str, Any]) -> None:
    """Make `target` the interrupted state of the run of `config` after the rounds that `path`, the run called `run`, has."""
    import tomlkit

    if (path / DEPLOYMENT).exists():
        raise InputError(
            f"{path} is a deployed run, whose silos wait for no more rounds; deploy it anew with more rounds"
        )
    if why := manifest.nothing_kept(path):
        raise InputError(f"{path} cannot go on: {why}; start the longer run with `feduca run`")
    point = checkpoint.existing(path / "checkpoint")[0]
    try:
        tree = vouched(path, point, run)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; start the longer run with `feduca run`") from None
    known = tree.files
    text = tomlkit.dumps(files.without_none(dict(config))).encode()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (*GROWING, manifest.ENVIRONMENT):
            with files.opened(path / name, files.LARGE) as source, (target / name).open("wb") as file:
                shutil.copyfileobj(source, file)
        for name in GROWING:
            with (target / name).open("r+b") as file:
                file.truncate(known[name]["bytes"])
        (target / manifest.CONFIG).write_bytes(text)
        here = {**known, manifest.CONFIG: {"bytes": len(text), "sha256": files.digest(target / manifest.CONFIG)}}
        done = tree.state.round - 1
        checkpoint.write(target / "checkpoint", done, replace(tree, run=target.name, files=here))
        said = {"schema": manifest.SCHEMA, "state": "interrupted", "reason": f"extends {path.name} after round {done}"}
        files.write_whole(target / manifest.STATUS, json.dumps(said, indent=1))
    except OSError as error:
        raise InputError(f"cannot write to {target}: {error.strerror}; make it writable, and repeat this") from None
