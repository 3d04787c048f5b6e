"""`feduca doctor`: is everything a run needs here, and does it work? One finding per line, with a remedy."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from feduca._version import __version__
from feduca.core.finding import Finding


def examine(out: str) -> list[Finding]:
    """All findings; each check is tried on its own, so that one failure does not hide the next."""
    return [finding for check in (_versions, _torch, _solver, _output, _data) for finding in _tried(check, out)]


def _tried(check: Callable[[str], Iterator[Finding]], out: str) -> Iterator[Finding]:
    try:
        yield from check(out)
    except Exception as error:  # a doctor reports whatever is wrong
        name = check.__name__.lstrip("_")
        yield Finding(name, False, f"{type(error).__name__}: {error}", "reinstall with `make install`")


def _versions(out: str) -> Iterator[Finding]:
    yield Finding("feduca", True, __version__)
    yield Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], "use Python 3.11 or newer")
    for name in ("numpy", "scipy", "numba", "pydantic", "typer", "rich", "safetensors", "sklearn", "clarabel"):
        module = importlib.import_module(name)
        yield Finding(name, True, str(getattr(module, "__version__", "present")))
    try:
        yield Finding("cvxpy", True, importlib.import_module("cvxpy").__version__, optional=True)
    except ImportError:
        remedy = 'pip install "feduca[dev]" if you want solver = "reference"'
        yield Finding("cvxpy", False, "not installed", remedy, optional=True)


def _torch(out: str) -> Iterator[Finding]:
    import torch

    yield Finding("torch", True, torch.__version__)
    yield Finding("threads", True, f"{torch.get_num_threads()} of {os.cpu_count()} cpus")
    gpu = torch.cuda.is_available()
    seen = torch.cuda.get_device_name() if gpu else "none"
    yield Finding("cuda", gpu, seen, "runs use the CPU; --device cuda needs a GPU", optional=True)


def _solver(out: str) -> Iterator[Finding]:
    from feduca import program

    started = time.perf_counter()
    solved = program.allocate([[1.0, 1.0, 0.2], [0.5, 0.2, 0.3]], [0.35, 0.3], [0.6, 0.4])
    seconds = time.perf_counter() - started
    ok = solved.status == "optimal"
    yield Finding("solver", ok, f"{solved.status}, gap {solved.gap}, first solve {seconds:.2f} s", "reinstall numba")
    warm = seconds < 1
    remedy = "run `python -m feduca.cli.warm` once to compile and cache it"
    yield Finding("solver cache", warm, "warm" if warm else "cold", remedy, optional=True)


def _output(out: str) -> Iterator[Finding]:
    from feduca.errors import InputError
    from feduca.runs.directory import check_writable

    try:
        check_writable(Path(out))
        yield Finding("output folder", True, out)
    except InputError as error:
        yield Finding("output folder", False, str(error), "choose another folder with --out")


def _data(out: str) -> Iterator[Finding]:
    from feduca.tasks import available

    for name, where in available().items():
        found = where is not None
        remedy = f"`feduca run --set task.data={name}` says where to get it"
        yield Finding(f"data {name}", found, str(where) if found else "not found", remedy, optional=True)
