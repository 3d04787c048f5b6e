"""Participation rules and offers of one's own, by name, beside those of the library.

    from feduca.client import registry
    registry.rules.register("patient", Patient)     participation.rule = "patient"
    registry.offers.register("half-way", HalfWay)   offer.kind = "half-way"

Where a class has a field `better` (participation.Comparison), it is given what "better" means in the recipe.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from feduca.client.participation import Comparison
from feduca.errors import ConfigError


class Own:
    """Classes of one kind that were registered in this process."""

    def __init__(self, kind: str, theirs: tuple[str, ...], method: str) -> None:
        self._kind, self._theirs, self._method = kind, theirs, method
        self._registered: dict[str, type] = {}

    def register(self, name: str, cls: type) -> None:
        """Make `cls` known as `name` in this process."""
        if not isinstance(name, str) or not name or name in self._theirs or name in self._registered:
            raise ConfigError(
                f"there is a {self._kind} {name!r} already, or it is no name; register it under another one"
            )
        if not (isinstance(cls, type) and is_dataclass(cls)):
            raise ConfigError(
                f"the {self._kind} registered as {name!r} is {cls!r}, not a dataclass; see docs/your-mechanism.md"
            )
        if missing := [part for part in ("needs", self._method) if not hasattr(cls, part)]:
            raise ConfigError(f"the {self._kind} registered as {name!r} lacks {' and '.join(missing)}")
        self._registered[name] = cls

    def __contains__(self, name: object) -> bool:
        return name in self._registered

    def describe(self) -> dict[str, str]:
        """Every name with the first line of what it says of itself."""
        return {name: (cls.__doc__ or name).strip().splitlines()[0] for name, cls in self._registered.items()}

    def make(self, name: str, better: Comparison) -> Any:
        """The part called `name`."""
        cls = self._registered[name]
        return cls(better=better) if any(field.name == "better" for field in fields(cls)) else cls()


rules = Own("rule", ("always", "accuracy", "loss", "utility", "never"), "decide")
offers = Own("offer", ("global", "least-concession", "best-mixture", "stack"), "of")
