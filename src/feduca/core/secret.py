"""Randomness that nobody can repeat: the system's. What a deployed silo hides its examples with."""

from __future__ import annotations

import math
import os

import numpy as np

from feduca.types import Floats

PARTS = (
    4  # normals of which each one is the mean, so that its last digits tell nothing (Holohan and Braghin, 2107.10138)
)


def uniform(size: int) -> Floats:
    """Numbers of [0, 1), with 53 bits."""
    return (np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(11)) * 2.0**-53


def normal(size: int) -> Floats:
    """Standard normals (Box and Muller), each the sum of four over two."""
    half = -(-PARTS * size // 2)
    radius = np.sqrt(-2 * np.log1p(-uniform(half)))
    angle = 2 * math.pi * uniform(half)
    each = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: PARTS * size]
    return each.reshape(PARTS, size).sum(0) / math.sqrt(PARTS)
