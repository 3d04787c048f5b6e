"""Where things are on a machine that units, compose files and manifests describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

PROGRAM = "/opt/feduca/bin/feduca"  # of a virtual environment that bundle/install.sh makes
PLACE = "/var/lib/feduca"  # holds server/ and the silos' folders
USER = 10001  # in containers


def environment(home: str) -> dict[str, str]:
    """For a program that may write below `home` alone. Compiled code is kept there, too."""
    return {"HOME": home, "NUMBA_CACHE_DIR": f"{home}/cache", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def paths(config: Mapping[str, Any]) -> list[str]:
    """Which entries of a configuration say where data are."""
    found = (value for value in config.values() if isinstance(value, str) and PurePosixPath(value).is_absolute())
    return sorted({value for value in found if PurePosixPath(value) != PurePosixPath("/")})
