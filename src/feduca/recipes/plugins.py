"""A user's own Python files, run before recipes are read: `--import FILE.py` of the command line.

Such a file registers mechanisms by name (`feduca.mechanisms.register`), rules or offers (`feduca.client.registry`). It is an
option and not a key of a recipe: a recipe from elsewhere must not be able to run code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from feduca.errors import ConfigError, FeducaError

PREFIX = "imported_"  # of the modules they become


def load(files: Iterable[str], tell: Callable[[str], None] = lambda line: None) -> None:
    """Run each file once, as a module of its own; `tell` hears of one that registers nothing.

    As with `python FILE.py`, the file can import what lies beside it; `__name__` is not "__main__", so what it does only as a
    script is not done.
    """
    for file in files:
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            what = "is not a Python file" if path.is_file() else "does not exist"
            raise ConfigError(
                f"--import {file}: the file {what}; give the path of a .py file that registers mechanisms"
            )
        name = _module_name(path)
        if name not in sys.modules:
            _run(name, path, file, tell)


def loaded() -> list[str]:
    """The files that were run, for a process of ours that needs them, too."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(PREFIX)]


def _module_name(path: Path) -> str:
    """Two files may have the same name in different folders, or that of an installed package."""
    return f"{PREFIX}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def _run(name: str, path: Path, file: str, tell: Callable[[str], None]) -> None:
    known = _registered()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "`load` takes .py files only"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    module.__file__ = str(path.resolve())
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: what lies there hides nothing that is installed
    try:  # not by the spec's loader, which would leave a __pycache__ beside the user's file
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever happens in the file, its user needs one line
        del sys.modules[name]
        raise ConfigError(f"--import {file}: {_complaint(error, str(path))}") from error
    if _registered() == known:
        tell(
            f"--import {file}: it registers no mechanism, rule or offer; call feduca.mechanisms.register(name, class), or that of"
            ' feduca.client.registry, in it, and not only where __name__ == "__main__"'
        )


def _registered() -> set[str]:
    from feduca.client import registry
    from feduca.mechanisms import registry as mechanisms

    return {*mechanisms, *registry.rules.describe(), *registry.offers.describe()}


def _complaint(error: BaseException, path: str) -> str:
    """One line: what was raised, and where in the file."""
    words = " ".join(str(error).split())
    if isinstance(error, FeducaError):
        return words
    if isinstance(error, SyntaxError):
        line = error.lineno
        words = error.msg
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = lines[-1] if lines else None
    where = "" if line is None else f" in line {line}"
    return f"{type(error).__name__}{where}: {words}; repair the file (`feduca --debug ...` shows more)"
