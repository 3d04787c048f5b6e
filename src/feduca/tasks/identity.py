"""What makes a task the task it is, as a short name that goes into the name of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from feduca.tasks.data.pool import Pool
    from feduca.tasks.task import TorchTask


def fingerprint(task: TorchTask) -> str:
    """Of the silos' examples, the model with its initial weights, metric, loss, engine and precision. Not of where it runs.

    A function counts by its code (not by what it closes over), a module by its layers and the code of its `forward`.
    """
    silos = [
        [silo.name, silo.client, {part: _sha(rows.tobytes()) for part, rows in silo.rows.items()}]
        for silo in task.members
    ]
    module = task.make()
    what = {
        "silos": silos,
        "pool": _pool(task.pool),
        "test": None if task.test_pool is None else _pool(task.test_pool),
        "model": [repr(module), *sorted({_code(type(part).forward) for part in module.modules() if _own(part)})],
        "weights": _tensor(task.init(0)),
        "metric": [task.criterion.name, "" if task.criterion.score is None else _code(task.criterion.score)],
        "loss": [task.criterion.loss_name, _code(task.criterion.loss)],
        "engine": [task.settings.kind, task.settings.precision],
    }
    return _sha(json.dumps(what, sort_keys=True).encode())


def short(task: TorchTask) -> str:
    """A line for a notebook."""
    silos, about = len(task.members), task.about
    words = [f"{silos} silo{'s' * (silos != 1)}"]
    words += [f"{about['classes']} classes"] if about.get("classes", 1) > 1 else []
    words += [str(about["model"])] if "model" in about else []
    return f"TorchTask({', '.join([*words, f'{task.parameters} parameters'])})"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _tensor(value: Tensor | None) -> str:
    return "" if value is None else _sha(value.cpu().contiguous().numpy().tobytes())


def _pool(pool: Pool) -> list[Any]:
    return [list(pool.x.shape), str(pool.x.dtype), *(_tensor(value) for value in (pool.x, pool.y, pool.mean, pool.std))]


def _own(part: nn.Module) -> bool:
    return type(part).__module__.partition(".")[0] not in ("torch", "feduca")


def _code(function: Callable) -> str:
    """A name for what a function does, the same in every process; of something without code, its type."""
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__
    if (getattr(function, "__module__", "") or "").partition(".")[0] == "feduca":
        return function.__name__  # ours are known by name: a new Python must not rename runs
    return _sha(repr(_steps(code)).encode())


def _steps(code: CodeType) -> tuple:
    constants = tuple(_steps(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, constants
