"""`python -m feduca.cli.warm`: compile solver, weights of mixtures and training once, so that no run of a later process has to.

numba keeps the machine code next to the installed package (or in the user's cache directory where that is read-only).
"""

from __future__ import annotations

import sys
import time


def warm() -> float:
    """Solve one small program per compiled curve type, weigh two models, train one small perceptron; the seconds it took."""
    started = time.perf_counter()
    solver()
    training()
    return time.perf_counter() - started


def solver() -> None:
    import numpy as np

    from feduca.client.simplex import likeliest
    from feduca.core.utility import Quadratic, Spline, nodes
    from feduca.program import allocate
    from feduca.program.instances import draw

    program = draw("previous", 4, 2, 0)
    allocate(**program)
    r, weights = nodes(8)
    curves = Quadratic().value(program["zeta"], r[:, None]).T
    allocate(Spline().fit(r, curves, weights), program["gamma"], program["s"], family="spline")
    likeliest(np.full((1, 2, 2), 0.5), np.ones((1, 2)))


def training() -> None:
    import numpy as np

    from feduca.tasks import build_task
    from feduca.types import LocalSpec

    task = build_task(clients=2, classes_per_client=10, max_examples=100)
    task.train(task.init(0).expand(2, -1), np.arange(2), LocalSpec(epochs=1, batch_size=10, lr=0.1), 0, 0)


if __name__ == "__main__":
    print(f"feduca: solver, mixtures and training compiled and cached in {warm():.1f} s", file=sys.stderr)
