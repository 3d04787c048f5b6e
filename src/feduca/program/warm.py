"""`python -m feduca.program.warm`: compile the solver once, so that no solve of a later process has to.

numba keeps the machine code next to the installed package (or in the user's cache directory where that is read-only).
"""

from __future__ import annotations

import sys
import time

from feduca.program import allocate
from feduca.program.instances import draw
from feduca.utility import Quadratic, Spline, nodes


def warm() -> float:
    """Solve one small program per compiled curve type; the seconds it took."""
    started = time.perf_counter()
    program = draw("previous", 4, 2, 0)
    allocate(**program)
    r, weights = nodes(8)
    curves = Quadratic().value(program["zeta"], r[:, None]).T
    allocate(Spline().fit(r, curves, weights), program["gamma"], program["s"], family="spline")
    return time.perf_counter() - started


if __name__ == "__main__":
    print(f"feduca: solver compiled and cached in {warm():.1f} s", file=sys.stderr)
