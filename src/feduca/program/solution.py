"""What a solver hands back before it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from feduca.types import Floats


@dataclass(frozen=True)
class Solution:
    """A feasible point and a proved lower bound on the optimal value."""

    R: Floats  # [n_s, N]
    bound: float
    iterations: int
    trouble: str = ""  # what the solver noticed on the way, if anything
