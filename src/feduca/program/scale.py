"""In what units a client's utilities are, so that tolerances mean the same in all of them."""

from __future__ import annotations

import numpy as np

from feduca.types import Floats, UtilityFamily

SMALL, LARGE = 1e-2, 1e3  # sizes of utilities between which a tolerance is taken as it is
LEAST = 1e-90  # squares of tolerances have to be numbers, too


def scale(family: UtilityFamily, zeta: Floats, gamma: Floats) -> Floats:
    """What a tolerance is multiplied by, `[N]`: 1 for curves of ordinary size, in proportion to the size for all others."""
    zeros = np.zeros(len(zeta))
    return scale_of(family.value(zeta, zeros), family.value(zeta, zeros + 1), family.slope(zeta, zeros), gamma)


def scale_of(base: Floats, full: Floats, first: Floats, gamma: Floats) -> Floats:
    """The same from u(0), u(1), u'(0) and gamma.

    A client's size is the largest of their moduli: a concave curve for which the first three vanish is zero.
    """
    size = np.maximum(np.maximum(np.abs(base), np.abs(full)), np.abs(first))
    size = np.maximum(size, np.abs(np.where(gamma == -np.inf, 0.0, gamma)))
    if size.min() >= SMALL and size.max() <= LARGE:
        return np.ones(len(size))
    return np.maximum(size / np.clip(size, SMALL, LARGE), LEAST)
