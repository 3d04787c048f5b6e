"""What a silo adds to the sum: its weighted update, no longer than it allows itself, minus the one it added last."""

from __future__ import annotations

import numpy as np

from feduca.privacy.encoding import Ring, encode


def contribution(delta: np.ndarray, weight: float, parameters: int, bound: float = 0.0) -> Ring:
    """`weight * delta` as integers. Entries beyond `parameters` are buffers, whose plain mean the server takes: unweighted.

    `bound` is the norm to which a silo shortens its update; 0 = none.
    """
    values = delta.astype(np.float64)
    length = float(np.linalg.norm(values))
    scale = min(1.0, bound / length) if bound and length > 0 else 1.0
    values[:parameters] *= weight * scale
    values[parameters:] *= scale
    return encode(values)


def kept(added: Ring, parameters: int) -> Ring:
    """What of a contribution stays in the sum when the silo sits a round out: buffers do not."""
    stays = added.copy()
    stays[parameters:] = 0
    return stays
