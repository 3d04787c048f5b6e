"""Names of mechanisms: feduca's own, those of installed packages, and those a program registers itself.

A package joins by declaring an entry point; nothing of it is imported before a recipe names it:

    [project.entry-points."feduca.mechanisms"]
    mine = "my_package:MyMechanism"

A built-in name is never taken over: the built-in stays and one warning names the package. A plug-in that cannot be
loaded, or is not a mechanism, gives one line when it is named, and does not get in the way of anything else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

from feduca.core.roster import check_declaration
from feduca.errors import ConfigError

GROUP = "feduca.mechanisms"
PARTS = ("needs", "schedule", "local", "init", "allocate")  # of types.Mechanism


class Registry(Mapping[str, Any]):
    """A mapping from names to mechanism classes that also knows what is installed."""

    def __init__(self, own: Mapping[str, type]) -> None:
        self._own = dict(own)
        self._registered: dict[str, type] = {}

    @cached_property
    def _installed(self) -> dict[str, list[metadata.EntryPoint]]:
        found: dict[str, list[metadata.EntryPoint]] = {}
        for point in metadata.entry_points(group=GROUP):
            if point.name in self._own:
                warnings.warn(
                    f"{_package(point)} names its mechanism {point.name!r}, which is feduca's own; feduca's is used:"
                    " rename the entry point",
                    stacklevel=2,
                )
            else:
                found.setdefault(point.name, []).append(point)
        return found

    def __getitem__(self, name: str) -> Any:
        for known in (self._own, self._registered):
            if name in known:
                return known[name]
        points = self._installed[name]  # KeyError where there is none, as of any mapping
        if len(points) > 1:
            rivals = " and ".join(sorted(map(_package, points)))
            raise ConfigError(f"mechanism {name!r} is offered by {rivals}; uninstall one of them")
        return _loaded(points[0])

    def __iter__(self) -> Iterator[str]:
        yield from {**self._own, **self._registered, **self._installed}

    def __len__(self) -> int:
        return len(set(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._registered or name in self._installed

    def register(self, name: str, cls: type) -> None:
        """Make `cls` known as `name` in this process, without installing anything."""
        if name in self:
            raise ConfigError(f"there is a mechanism {name!r} already; register {cls.__name__} under another name")
        self._registered[name] = _checked(cls, f"the mechanism registered as {name!r}")

    def describe(self) -> dict[str, str]:
        """Every name with the first line of its module, or with what is wrong with it."""
        import sys

        lines = {}
        for name in self:
            try:
                cls = self[name]
                lines[name] = (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip().splitlines()[0]
            except ConfigError as error:
                lines[name] = f"unusable: {error}"
        return lines


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _loaded(point: metadata.EntryPoint) -> type:
    who = f"mechanism {point.name!r} of package {_package(point)}"
    try:
        cls = point.load()
    except Exception as error:  # whatever a stranger's import does, its user needs one line
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{who} cannot be loaded ({what}); repair or uninstall the package") from error
    return _checked(cls, who)


def _checked(cls: Any, who: str) -> type:
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise ConfigError(f"{who} is {cls!r}, not a dataclass; write it like examples/custom_mechanism.py")
    missing = [part for part in PARTS if not hasattr(cls, part)]
    if missing:
        raise ConfigError(f"{who} lacks {', '.join(missing)}; a mechanism has {', '.join(PARTS)}")
    check_declaration(getattr(cls, "per_silo", None), who)
    return cls
