"""`feduca bench`: how long things take here, as ratios measured side by side, and absolute times on a GPU."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.runs import check_writable, write_whole

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]


def run(name: str, out: Path, say: Say, rounds: int | None, settings: dict[str, Any]) -> dict[str, Any]:
    """One benchmark by name; the summary is kept in OUT/NAME.json, from the first figure on."""
    from feduca.bench import cpu, gpu

    benchmarks = {"cpu": cpu.run, "gpu": gpu.run}
    if name not in benchmarks:
        raise InputError(f"there is no benchmark {name!r}; known: {', '.join(benchmarks)}")
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    options = {} if rounds is None else {"rounds": rounds}

    def save(found: dict[str, Any]) -> None:
        write_whole(out / f"{name}.json", json.dumps(found, indent=1) + "\n")

    found = benchmarks[name](out, say, save, settings=settings, **options)
    save(found)
    return found


def versions(*packages: str) -> dict[str, str | None]:
    """Python's and these packages' versions; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
