"""`feduca bench`: how long things take here, as ratios measured side by side, and absolute times on a GPU."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.runs import check_writable, write_whole

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]


def run(
    name: str, out: Path, say: Say, rounds: int | None, settings: dict[str, Any], smoke: bool = False
) -> dict[str, Any]:
    """One benchmark by name; the summary is kept in `file(name, out, smoke)`, from the first figure on.

    `smoke` is a quick try: few rounds, and for the CPU data that need no files. Its figures mean little.
    """
    from feduca.bench import cpu, gpu

    benchmarks = {"cpu": cpu.run, "gpu": gpu.run}
    if name not in benchmarks:
        raise InputError(f"there is no benchmark {name!r}; known: {', '.join(benchmarks)}")
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    small = {"cpu": cpu.SMOKE, "gpu": gpu.SMOKE}[name] if smoke else {}
    options: dict[str, Any] = {**small, "settings": {**small.get("settings", {}), **settings}}
    if rounds is not None:
        options["rounds"] = rounds

    def save(found: dict[str, Any]) -> None:
        write_whole(file(name, out, smoke), json.dumps(found, indent=1) + "\n")

    found = benchmarks[name](out, say, save, **options)
    save(found)
    return found


def file(name: str, out: Path, smoke: bool = False) -> Path:
    """Where a benchmark's summary is kept; a quick try does not take the place of the real one."""
    return out / f"{name}{'-smoke' if smoke else ''}.json"


def text(name: str, found: dict[str, Any]) -> str:
    """The figures as a small table."""
    from feduca.bench import cpu, gpu

    return {"cpu": cpu.text, "gpu": gpu.text}[name](found)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words under each other, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(word.rjust(width) for word, width in zip(row[1:], widths[1:]))])
        for row in rows
    )


def versions(*packages: str) -> dict[str, str | None]:
    """Python's and these packages' versions; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
