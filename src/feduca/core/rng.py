"""Seeded random streams.

Every draw is a function of (seed, purpose, path), where the path is usually (round, client). Nothing depends on the order
of calls, so adding a client, or a client that declines, leaves everybody else's randomness as it was.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """A generator of its own for one purpose at one place (for instance `stream(seed, "batches", round, client)`)."""
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path]))


def derive(seed: int, purpose: str, *path: int) -> int:
    """A 63-bit seed for libraries that want an integer (torch)."""
    return int(stream(seed, purpose, *path).integers(2**63))
