"""Which commit of feduca is running."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path


def commit() -> str | None:
    """The commit of the library that runs, never that of a repository it is used in; None where nobody knows.

    A checkout asks git (a trailing + marks uncommitted changes), an installation from a repository what pip noted. On a machine
    that gets the files without their history, FEDUCA_COMMIT says it.
    """
    return os.environ.get("FEDUCA_COMMIT") or _checkout(Path(__file__).parents[1]) or _installed()


@functools.cache  # what is committed while a process runs is not what it runs
def _checkout(package: Path) -> str | None:
    """Of the repository whose `src/feduca` is the package; summaries that are being written do not count as changes."""
    root = package.parents[1]
    try:
        if tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] != "feduca":
            return None
        if Path(_git(package, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return None
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        dirty = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
        return _git(package, "rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    """Where git is told of a repository (a hook, say), that one is not ours."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    run = subprocess.run(
        ["git", *words], cwd=folder, env=clean, capture_output=True, text=True, encoding="utf-8", timeout=10, check=True
    )
    return run.stdout.strip()


def _installed() -> str | None:
    """What pip noted when it installed from a repository."""
    try:
        told = json.loads(metadata.distribution("feduca").read_text("direct_url.json") or "{}")
        return told["vcs_info"]["commit_id"][:12]
    except (metadata.PackageNotFoundError, ValueError, LookupError, TypeError):
        return None
