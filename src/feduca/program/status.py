"""The words an `Allocation.status` can hold. Only OPTIMAL claims anything about optimality."""

from __future__ import annotations

OPTIMAL = "optimal"
"""Proved: the certificate's slack error is within the tolerance, or the gap within 1e-9 of the objective."""

INACCURATE = "inaccurate"
"""Feasible weights whose gap is above the tolerance; the reason says by how much and what to do."""

DEGENERATE = "degenerate"
"""As INACCURATE, and the data explain it: strategies with next to no probability, or curves with next to no curvature."""

FAILED = "failed"
"""The arithmetic broke down; the weights are the target weights beta, which are always feasible."""

FALLBACK = "fallback"
"""Weights from the fallback, because the program satisfied nobody; no claim of optimality."""

STATUSES = (OPTIMAL, INACCURATE, DEGENERATE, FAILED, FALLBACK)
RELATIVE_GAP = 1e-9
