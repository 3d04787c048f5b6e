"""A program as JSON, in and out (`feduca solve`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from feduca.errors import ProblemError, shown
from feduca.types import Allocation

REQUIRED = ("zeta", "gamma", "s")
MOST = 1 << 28  # bytes
OPTIONAL = ("eps", "family", "selection", "objective", "solver", "beta", "tolerance")


def read_problem(path: str | Path) -> dict[str, Any]:
    """Keyword arguments for `allocate` from `{"zeta": [[a,b,c],...], "gamma": [...], "s": [...], "eps": 0, ...}`.

    A threshold of null means no demand. The numbers are checked by `allocate`.
    """
    try:
        with Path(path).open("rb") as file:  # a pipe will do, and a device never ends
            raw = file.read(MOST + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; give a JSON file"
        ) from None
    if len(raw) > MOST:
        raise ProblemError(f"{path} is longer than {MOST} bytes; a program of a million clients is not")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}; see `feduca solve --help`"
        ) from None
    except (ValueError, RecursionError):  # integers of thousands of digits, lists in lists in lists
        raise ProblemError(
            f"{path} holds an integer of thousands of digits, or is nested thousands of levels deep; see `feduca solve --help`"
        ) from None
    if not isinstance(content, dict):
        raise ProblemError(
            f'{path} holds a {type(content).__name__}, not an object {{"zeta": ..., "gamma": ..., "s": ...}}'
        )
    missing = [key for key in REQUIRED if key not in content]
    if missing:
        raise ProblemError(f"{path} has no {missing[0]!r}; a problem needs {', '.join(REQUIRED)}")
    unknown = [key for key in content if key not in REQUIRED + OPTIONAL]
    if unknown:
        raise ProblemError(f"{path} has an unknown key {shown(unknown[0])}; known are {', '.join(REQUIRED + OPTIONAL)}")
    return content


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def to_json(allocation: Allocation) -> dict[str, Any]:
    """An allocation as plain JSON values."""
    certificate = allocation.certificate
    return {
        "status": allocation.status,
        "reason": allocation.reason,
        "R": _plain(allocation.R),
        "s": _plain(allocation.s),
        "alpha": _plain(allocation.alpha),
        "slack": _plain(allocation.slack),
        "satisfied": _plain(allocation.satisfied),
        "gap": None if certificate is None else certificate.gap,
        "primal": None if certificate is None else certificate.primal,
        "dual": None if certificate is None else certificate.dual,
        "slack_error": None if certificate is None else certificate.slack_error,
        "iterations": None if certificate is None else certificate.iterations,
        "fallback": allocation.fallback,
    }
