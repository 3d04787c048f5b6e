"""What any mechanism's weights must be, whoever wrote it: checked where the loop takes them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from feduca.errors import ConfigError, RunError
from feduca.types import Allocation, Mechanism

TOLERANCE = 1e-6  # what rounding explains


def checked(mechanism: Mechanism, given: Any, silos: int, round: int) -> tuple[Any, Allocation]:
    """What `init` (round 0) or `allocate` returned, as it is; where it is wrong, a RunError names the mechanism and the round.

    A mechanism whose weights carry a step of the server's own says `scaled = True`: they need not sum to 1.
    """
    if complaint := _complaint(given, silos, getattr(mechanism, "scaled", False)):
        kept = isinstance(given, tuple) and given[0] is not None and getattr(mechanism, "per_silo", None) is None
        if round and kept and complaint.startswith("gave weights of shape"):
            complaint += " (if its state has a row per silo, declare it: per_silo, docs/your-mechanism.md)"
        where = f"in round {round}" if round else "for round 1 (init)"
        raise RunError(f"the mechanism {name_of(mechanism)} {where} {complaint}")
    return given


def _complaint(given: Any, silos: int, scaled: bool) -> str | None:
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Allocation):
        what = " and ".join(type(one).__name__ for one in given) if isinstance(given, tuple) else type(given).__name__
        return f"returned {what}; return its state and a feduca.Allocation"
    alpha = given[1].alpha
    if not isinstance(alpha, np.ndarray) or alpha.shape != (silos,) or alpha.dtype.kind not in "fiu":
        seen = f"of shape {alpha.shape}" if isinstance(alpha, np.ndarray) else f"as {type(alpha).__name__}"
        return f"gave weights {seen}; give a numpy array with one for each of the {silos} silos"
    for wrong, word in ((~np.isfinite(alpha), "finite"), (alpha < -TOLERANCE, "0 or more")):
        if wrong.any():
            k = int(np.argmax(wrong))
            return f"gave the weight {alpha[k]:g} (number {k + 1} of {silos}); weights must be {word}"
    if not scaled and abs(alpha.sum() - 1) > TOLERANCE:
        return f"gave weights that sum to {alpha.sum():.6g}, not to 1; divide by their sum (or say scaled = True if it is meant)"
    return None


def name_of(mechanism: Mechanism) -> str:
    """What users call it, quoted; its class where it is not registered."""
    from feduca.mechanisms import registry  # which knows mechanisms of all kinds

    for name in registry:
        with contextlib.suppress(ConfigError):  # of somebody else's plug-in
            if registry[name] is type(mechanism):
                return repr(name)
    return type(mechanism).__name__
