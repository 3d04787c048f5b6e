"""What this machine has, and whether something fits."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from feduca.errors import InputError

GROUPS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # where a container's limit stands


@functools.cache
def memory() -> int:
    """Bytes of memory that this process may hope for: the machine's, or the container's where that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for group in GROUPS:
        try:
            limits.append(int(Path(group).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits, default=2**63)


def check_fits(needs: Mapping[str, int], kind: type[InputError], advice: str) -> None:
    """Refuse what needs more memory than there is, before anything of it is allocated: what most of it is for, and how much."""
    total, there = sum(needs.values()), memory()
    if total > there:
        what = max(needs, key=lambda name: needs[name])
        raise kind(
            f"this needs about {_gigabytes(total)} of memory, most of it for {what}, and this machine has {_gigabytes(there)};"
            f" {advice}"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
