"""`feduca bench`: how long things take here, as ratios measured side by side, and absolute times on a GPU."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from feduca.errors import InputError
from feduca.runs.directory import check_writable, write_whole

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]


def run(
    name: str, out: Path, say: Say, rounds: int | None, settings: dict[str, Any], smoke: bool = False
) -> dict[str, Any]:
    """One benchmark by name; the summary is kept in `file(name, out, smoke)`, from the first figure on.

    `smoke` is a quick try: few rounds, and for the CPU data that need no files. Its figures mean little.
    """
    benchmark = _benchmark(name)
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    small = benchmark.SMOKE if smoke else {}
    options: dict[str, Any] = {**small, "settings": {**small.get("settings", {}), **settings}}
    if rounds is not None:
        options["rounds"] = rounds

    def save(found: dict[str, Any]) -> None:
        write_whole(file(name, out, smoke), json.dumps(found, indent=1) + "\n")

    found = benchmark.run(out, say, save, **options)
    save(found)
    return found


def file(name: str, out: Path, smoke: bool = False) -> Path:
    """Where a benchmark's summary is kept; a quick try does not take the place of the real one."""
    return out / f"{name}{'-smoke' if smoke else ''}.json"


def text(name: str, found: dict[str, Any]) -> str:
    """The figures as a small table."""
    return _benchmark(name).text(found)


def _benchmark(name: str) -> ModuleType:
    from feduca.bench import cpu, gpu

    benchmarks = {"cpu": cpu, "gpu": gpu}
    if name not in benchmarks:
        raise InputError(f"there is no benchmark {name!r}; known: {', '.join(benchmarks)}")
    return benchmarks[name]


def versions(*packages: str) -> dict[str, str | None]:
    """Python's and these packages' versions; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
