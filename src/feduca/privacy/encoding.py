"""Numbers as integers modulo 2^64, so that sums of masked ones are exact.

A number is a multiple of 2^-36 (1.5e-11) of at most 2^14 = 16384 in length; what is longer is refused where it is encoded. A
change is the difference of two, and 4095 of those stay below 2^63: no sum can wrap around unnoticed.
"""

from __future__ import annotations

import numpy as np

from feduca.errors import RunError
from feduca.types import Floats

BITS = 36
LIMIT = 2.0**14
MOST_SILOS = 4095

Ring = np.ndarray  # uint64: numpy adds and subtracts these modulo 2^64


class OutOfRange(RunError):
    """A number that has no place in a sum."""


def encode(values: Floats) -> Ring:
    """`values` to the nearest multiple of 2^-36."""
    values = np.asarray(values, dtype=np.float64)
    longest = float(np.abs(values).max(initial=0.0))
    if not longest <= LIMIT:  # NaN, too
        raise OutOfRange(
            f"the weighted update has an entry of {longest:.6g}; at most {LIMIT:g} can be added up securely"
        )
    return np.rint(np.ldexp(values, BITS)).astype(np.int64).view(np.uint64)


def decode(total: Ring) -> Floats:
    """What a sum stands for."""
    return np.ldexp(total.view(np.int64).astype(np.float64), -BITS)


def plausible(total: Ring, silos: int) -> bool:
    """Whether so many changes can add up to this; a mask that was not taken off nearly never does."""
    bound = int(2 * silos * LIMIT * 2.0**BITS)
    return bool((np.abs(total.view(np.int64).astype(np.float64)) <= bound).all())
