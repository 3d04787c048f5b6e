"""The few array operations the core needs, for numpy arrays and torch tensors alike, without importing torch.

Rows are taken from, and put into, what lies in a store (rows.py), too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feduca.core.rows import Rows
from feduca.types import Array, Bools, Floats, Ints


def like(x: Array, values: Floats | Bools) -> Array:
    """`values` as an array of the kind, dtype and device of `x`."""
    if hasattr(x, "new_tensor"):
        return x.new_tensor(values)
    return np.asarray(values, dtype=x.dtype)


def zeros(x: Array, *shape: int) -> Array:
    """Zeros of the kind, dtype and device of `x`."""
    return x.new_zeros(shape) if hasattr(x, "new_zeros") else np.zeros(shape, dtype=x.dtype)


def repeat(theta: Array, k: int) -> Array:
    """`theta[P]` as `[k, P]` without a copy (read-only); one that is `[k, P]` already as it is."""
    if theta.ndim == 2:
        return theta
    return theta.expand(k, -1) if hasattr(theta, "expand") else np.broadcast_to(theta, (k, *theta.shape))


def select(mask: Bools, yes: Array, no: Array) -> Array:
    """Row by row: `yes` where the mask holds, `no` elsewhere."""
    column = like(yes, mask)[:, None] != 0
    return yes.where(column, no) if hasattr(yes, "where") else np.where(column, yes, no)


def columns(mask: Bools, yes: Array, no: Array) -> Array:
    """Column by column: `yes` where the mask holds, `no` elsewhere."""
    row = like(yes, mask) != 0
    return yes.where(row, no) if hasattr(yes, "where") else np.where(row, yes, no)


def differ(one: Array, other: Array) -> Bools:
    """Row by row: whether two arrays differ anywhere."""
    unequal = (one != other).any(1)
    return unequal.cpu().numpy() if hasattr(unequal, "cpu") else unequal


def mix(start: Array, end: Array, places: Floats) -> Array:
    """Row by row `(1 - c) * start + c * end`; exact at both ends."""
    c = like(end, places)[:, None]
    return (1 - c) * start + c * end


def combine(weights: Floats, rows: Array) -> Array:
    """`sum_k weights_k rows_k`."""
    return like(rows, weights) @ rows


def take(x: Array, index: Ints) -> Array:
    """Rows of `x`; `x` itself when all rows are asked for in order."""
    if isinstance(x, Rows):
        return x.take(index)
    if len(index) == len(x) and np.array_equal(index, np.arange(len(x))):
        return x
    return x[index]


def part(theta: Array, index: Ints) -> Array:
    """What some clients have of `theta`: the same `[P]` for all, or their rows of `[K, P]`."""
    return theta if theta.ndim == 1 else take(theta, index)


def put(x: Array, index: Ints, rows: Array) -> Array:
    """A copy of `x` with `rows` written at `index`; `rows` itself when they are all of it."""
    if isinstance(x, Rows):
        return x.put(index, rows)
    if len(index) == len(x) and np.array_equal(index, np.arange(len(x))):
        return rows
    out = x.clone() if hasattr(x, "clone") else x.copy()
    out[index] = rows
    return out


def double(x: Array) -> Array:
    """In double precision."""
    return x.double() if hasattr(x, "double") else np.asarray(x, float)


def cast(x: Array, to: Array) -> Array:
    """In the precision of `to`."""
    return x.to(to.dtype) if hasattr(x, "to") else x.astype(to.dtype)


def numbers(mask: Array, x: Array) -> Array:
    """A mask as ones and zeros of the dtype of `x`."""
    return mask.to(x.dtype) if hasattr(mask, "to") else mask.astype(x.dtype)


def sign(x: Array) -> Array:
    """1, 0 or -1 with the sign of each entry."""
    return numbers(x > 0, x) - numbers(x < 0, x)


def sort_columns(rows: Array, weights: Floats) -> tuple[Array, Array]:
    """Each column in ascending order, and the weights of its entries in that order; both `[K, P]`."""
    if hasattr(rows, "gather"):
        values, order = rows.sort(dim=0, stable=True)
        return values, like(rows, weights)[order]
    order = np.argsort(rows, axis=0, kind="stable")
    return np.take_along_axis(rows, order, 0), like(rows, weights)[order]


def finite(x: Array) -> bool:
    """Whether every entry is a number."""
    return bool(x.isfinite().all()) if hasattr(x, "isfinite") else bool(np.isfinite(x).all())


def concatenate(parts: Sequence[Array]) -> Array:
    """Rows of all parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if not hasattr(first, "new_empty"):
        return np.concatenate(parts)
    out = first.new_empty((sum(len(part) for part in parts), *first.shape[1:]))
    row = 0
    for part in parts:
        out[row : row + len(part)] = part
        row += len(part)
    return out
