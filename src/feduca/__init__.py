"""feduca: federated learning that rational silos choose to stay in.

    result = feduca.run("quickstart")                   run a recipe
    feduca.own_task({"north": (x, y, xv, yv), ...})     your own silos, from memory, for `run(..., task=...)`
    for record, clients, state in feduca.iterate(): ... the loop as a generator
    feduca.allocate(zeta, gamma, s)                     the participation program alone, for your own training loop
    feduca.max_participation(zeta, gamma)               the largest set of clients one weight vector can satisfy
    feduca.load("runs/quickstart/...")                  read a run directory, or exported models, back
    feduca.export_models("runs/quickstart/...", "out")  the shared model and every silo's, with a model card
    feduca.resume("runs/quickstart/...")                go on with an interrupted one

Names are imported on first use, so that `import feduca` (and `feduca --help`) costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from feduca._version import __version__

if TYPE_CHECKING:
    from feduca.api import iterate, recipe, resume, run
    from feduca.errors import CheckpointError, ConfigError, DataError, FeducaError, InputError, ProblemError, RunError
    from feduca.program import allocate, max_participation
    from feduca.report.export import Exported, export_models, load
    from feduca.runs.directory import RunResult
    from feduca.tasks import own_task
    from feduca.types import Allocation, LocalSpec, Mechanism, Needs, Scores, Task

_HOME = {
    "run": "api",
    "iterate": "api",
    "recipe": "api",
    "resume": "api",
    "own_task": "tasks",
    "load": "report.export",
    "export_models": "report.export",
    "Exported": "report.export",
    "RunResult": "runs.directory",
    "allocate": "program",
    "max_participation": "program",
    "Allocation": "types",
    "LocalSpec": "types",
    "Mechanism": "types",
    "Needs": "types",
    "Scores": "types",
    "Task": "types",
    "FeducaError": "errors",
    "InputError": "errors",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "ProblemError": "errors",
    "RunError": "errors",
}

__all__ = [
    "Allocation",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Exported",
    "FeducaError",
    "InputError",
    "LocalSpec",
    "Mechanism",
    "Needs",
    "ProblemError",
    "RunError",
    "RunResult",
    "Scores",
    "Task",
    "__version__",
    "allocate",
    "export_models",
    "iterate",
    "load",
    "max_participation",
    "own_task",
    "recipe",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'feduca' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"feduca.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
