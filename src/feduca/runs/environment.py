"""What a run ran on, and on what: `env.json`, written when a run begins and read back with suspicion."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from feduca._version import __version__
from feduca.runs import files
from feduca.runs.commit import commit

PACKAGES = ("numpy", "scipy", "numba", "torch", "pydantic", "scikit-learn", "safetensors")


def environment() -> dict[str, Any]:
    """What this run runs on."""
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


def other_versions(path: Path) -> list[str]:
    """What has another version now than when the run of this directory was started."""
    try:
        then = files.read_json(path / "env.json")
        old, now = {"feduca": then["feduca"], **then["packages"]}, environment()
    except (OSError, ValueError, KeyError, TypeError):
        return []
    new = {"feduca": now["feduca"], **now["packages"]}
    return [f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name]]


def task_of(path: str | Path) -> dict[str, Any]:
    """What a run directory says of its task; empty where it says nothing that can be read."""
    told = entry_of(path, "task", {})
    return told if isinstance(told, dict) else {}


def commit_of(path: str | Path, otherwise: str | None) -> str | None:
    """The commit a run was started at; `otherwise` where it does not say, as runs of before it was recorded."""
    return entry_of(path, "commit", otherwise)


def entry_of(path: str | Path, key: str, otherwise: Any) -> Any:
    """An entry of a run directory's env.json; `otherwise` where there is none, or none that can be read."""
    try:
        return files.read_json(Path(path) / "env.json")[key]
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise


def silos_of(path: str | Path, n: int) -> list[str]:
    """The names of a run directory's `n` silos (a deployment's may come later); numbers stand in for names that it lacks."""
    known = _told_silos(path)
    return [*known[:n], *(f"silo-{k}" for k in range(len(known), n))]


def _told_silos(path: str | Path) -> list[str]:
    for name in ("silos.json", "env.json"):
        try:
            told = files.read_json(Path(path) / name)["silos"]
            return [str(silo["name"] if isinstance(silo, Mapping) else silo) for silo in told]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return []
