"""From weights and updates to the next global model."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from feduca.core.arrays import combine, concatenate, like, numbers, repeat, sort_columns, take, zeros
from feduca.core.optimiser import Moments, ServerOptimiser
from feduca.errors import RunError
from feduca.types import Array, Bools, Floats, Ints


def target(examples: Ints, beta: str) -> Floats:
    """The target weights beta: uniform, or by number of examples."""
    examples = np.asarray(examples, dtype=float)
    return examples / examples.sum() if beta == "examples" else np.full(len(examples), 1 / len(examples))


@dataclass(frozen=True)
class Weighted:
    """`theta - eta_s * (fresh . Delta + stored . remembered)`; `eta_c` and `tau` of Algorithm 1 cancel.

    That is the step of `optimiser` sgd; the others make one of the same sum and of what they remember (optimiser.py).

    `kind` says what the dot is. `mean` is the paper's weighted sum. `trimmed` leaves out, coordinate by coordinate, the share
    `trim` of the *weight* at either end and averages the rest; `median` takes the weighted middle. Both scale by the sum of
    the weights, so that with equal updates all three agree whatever alpha is. `clip` shortens every participant's update to that
    norm first, `clip_median` to that multiple of the participants' median norm (of two, the smaller); 0 = neither.

    The tail of theta beyond `parameters` holds frozen parameters and buffers (running statistics). A weighted or stale
    combination can make a variance negative, so buffers become the plain mean (or median, trimmed mean) over the round's
    participants; what none of them moved stays to the last bit.
    """

    eta_s: float = 1.0
    kind: str = "mean"
    trim: float = 0.2
    clip: float = 0.0
    clip_median: float = 0.0
    optimiser: str = "sgd"
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def clipped(self, delta: Array, joined: Bools) -> Array:
        """The participants' updates, none longer than allowed. What is remembered of them is shortened, too."""
        if not (self.clip or self.clip_median) or not joined.any():
            return delta
        length = norms(delta)
        bounds = [self.clip] if self.clip else []
        if self.clip_median:
            bounds.append(self.clip_median * middle(length[joined]))
        scale = np.minimum(1.0, min(bounds) / np.maximum(length, np.finfo(float).tiny))
        return delta if (scale == 1).all() else like(delta, scale)[:, None] * delta

    def next(
        self,
        theta: Array,
        fresh: Floats,
        delta: Array,
        stored: Floats,
        recalled: Array,
        joined: Bools,
        parameters: int,
        moments: Moments = MappingProxyType({}),
        shift: Array | None = None,
    ) -> tuple[Array, Moments]:
        """The next model, and the server optimiser's state after it; `shift` is what a method adds to the combined update."""
        if self.kind == "mean":
            step = combine(fresh, delta) + combine(stored, recalled)
        else:
            weights, updates = np.concatenate([fresh, stored]), concatenate([delta, recalled])
            step = self._middle(weights[weights != 0], take(updates, np.flatnonzero(weights)))
        step = step if shift is None else step + shift
        optimiser = ServerOptimiser(self.optimiser, self.eta_s, self.beta1, self.beta2, self.tau)
        moved, moments = optimiser.step(theta, step, moments)
        if parameters < len(theta):
            moved[parameters:] = theta[parameters:]
            if joined.any():
                models = (repeat(theta, len(joined)) - delta)[:, parameters:]
                if self.kind == "mean":
                    moved[parameters:] = combine(joined / joined.sum(), models)
                else:
                    moved[parameters:] = self._middle(np.full(joined.sum(), 1 / joined.sum()), models[joined])
                still = (delta[joined][:, parameters:] == 0).all(0)
                moved[parameters:][still] = theta[parameters:][still]
        return moved, moments

    def _middle(self, weights: Floats, rows: Array) -> Array:
        """`sum(weights)` times the weighted trimmed mean or median of each column."""
        if (weights < 0).any():
            raise RunError(
                f"aggregation.kind = {self.kind!r} wants weights of 0 or more, got {weights.min():.4g};"
                " use 'mean' with this mechanism"
            )
        total = weights.sum()
        if not total > 0:
            return zeros(rows, rows.shape[-1])
        if self.kind == "median":
            low, high = 0.5, 0.5
        else:
            low, high = self.trim, 1 - self.trim
        values, sorted_weights = sort_columns(rows, weights / total)
        upper = sorted_weights.cumsum(0)
        lower = upper - sorted_weights
        if high - low < 1e-9:  # the middle: one value, or the mean of two when the weights split evenly there
            hit = numbers((upper >= 0.5 - 1e-6) & (lower <= 0.5 + 1e-6), rows)
        else:  # how much of a value's weight lies between the two cuts
            hit = (upper.clip(max=high) - lower.clip(min=low)).clip(min=0)
        return float(total) * (hit * values).sum(0) / hit.sum(0)


def middle(lengths: Floats) -> float:
    """The median; of two the smaller, since their mean follows one that is wrong as far as it goes. 0 of none."""
    if not len(lengths):
        return 0.0
    return float(lengths.min() if len(lengths) == 2 else np.median(lengths))


def norms(delta: Array) -> Floats:
    """The length of each client's update; infinite where it is too long to compute."""
    if delta.dtype.itemsize < 4:
        delta = delta.float() if hasattr(delta, "float") else delta.astype(np.float32)
    squares = (delta * delta).sum(-1)
    return np.sqrt(np.asarray(squares.cpu() if hasattr(squares, "cpu") else squares, dtype=np.float64))
