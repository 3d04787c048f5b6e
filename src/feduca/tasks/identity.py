"""What makes a task the task it is, as a short name that goes into the name of a run."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Set
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

if TYPE_CHECKING:
    from feduca.tasks.data.pool import Pool
    from feduca.tasks.task import TorchTask


def fingerprint(task: TorchTask) -> str:
    """Of the silos' examples, the model with its initial weights, metric, loss, engine and precision. Not of where it runs.

    A function counts by its code and by the numbers, words, arrays and functions that it refers to; a module by its layers, its
    code, and such attributes. What else they refer to (lists, objects, files) does not count: it may change as they run.
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
    if beside := _beside(module):
        what["beside"] = beside
    return _sha(json.dumps(what, sort_keys=True).encode())


def _beside(module: nn.Module) -> list[list[str]]:
    """What layers of the user's own have beside their `forward`: other methods, and attributes that are plain."""
    found = []
    for place, part in module.named_modules():
        if not _own(part):
            continue
        classes = [cls for cls in reversed(type(part).__mro__) if _own_class(cls) and not _installed(cls.__module__)]
        methods = {k: v for cls in classes for k, v in vars(cls).items()}
        told = {
            k: _code(v) for k, v in methods.items() if isinstance(v, FunctionType) and k not in ("__init__", "forward")
        }
        told |= {
            k: said for k, v in vars(part).items() if k != "training" and k[0] != "_" and (said := _told(v, set()))
        }
        found += [[place, *sorted(map(str, told.items()))]] if told else []
    return found


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
    return _own_class(type(part))


def _own_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in ("torch", "feduca", "builtins")


def _installed(module: str | None) -> bool:
    """Whether a module is of Python or of an installed package, whose version is no matter of the task's."""
    root = (module or "").partition(".")[0]
    where = getattr(sys.modules.get(root), "__file__", None) or ""
    return root != "__main__" and (
        root in sys.stdlib_module_names or "site-packages" in where or "dist-packages" in where
    )


def _code(function: Callable, seen: Set[int] = frozenset()) -> str:
    """A name for what a function does, the same in every process; of something without code, its type."""
    code = getattr(function, "__code__", None)
    if code is None:
        return _told(function, seen) or type(function).__qualname__
    if (getattr(function, "__module__", "") or "").partition(".")[0] == "feduca":
        return function.__name__  # ours are known by name: a new Python must not rename runs
    steps, refers = _steps(code), _refers(function, {*seen, id(function)})
    return _sha(repr((steps, refers) if refers else steps).encode())


def _steps(code: CodeType) -> tuple:
    constants = tuple(_steps(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, constants


def _refers(function: Any, seen: Set[int]) -> list[str]:
    """What a function refers to outside itself and what its arguments are unless given, as far as that can be told."""
    free = {name: _inside(cell) for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}
    there = {
        name: function.__globals__[name] for name in sorted(_names(function.__code__)) if name in function.__globals__
    }
    unless = {"defaults": function.__defaults__ or (), **(function.__kwdefaults__ or {})}
    known = [*free.items(), *there.items(), *unless.items()]
    return [f"{name} {said}" for name, value in known if (said := _told(value, seen))]


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _told(value: Any, seen: Set[int]) -> str:
    """A plain value, an array, or what a function does; nothing of what is no such thing, or looked at already."""
    if id(value) in seen:
        return ""
    if isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple):
        return repr([_told(one, seen) for one in value]) if value else ""
    if isinstance(value, Tensor):
        whole = value.detach().double() if value.is_floating_point() else value.detach()  # numpy lacks some types
        return f"{value.dtype} {list(value.shape)} {_tensor(whole)}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {list(value.shape)} {_sha(value.tobytes())}"
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, *(pair for pair in sorted(value.keywords.items())))
        return repr([_told(part, seen) for part in parts])
    if isinstance(value, FunctionType):
        return "" if _installed(value.__module__) else _code(value, seen)
    if isinstance(value, nn.Module):
        plain = {name: _told(one, seen) for name, one in vars(value).items() if name[0] != "_"}
        return repr([repr(value), [_told(x, seen) for pair in value.state_dict().items() for x in pair], plain])
    return ""
