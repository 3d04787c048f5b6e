"""For tests that walk the registry of methods: what a method cannot do without."""

from __future__ import annotations

from typing import Any


def needed(name: str) -> dict[str, Any]:
    """Settings a recipe with this mechanism must have."""
    return {"share": "body"} if name == "fedrep" else {}
