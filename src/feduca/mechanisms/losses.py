"""For methods that weigh by loss: the losses of a round, with a stand-in where a silo did not answer."""

from __future__ import annotations

from feduca.errors import RunError
from feduca.types import Floats, Round


def losses(round: Round) -> Floats:
    """`F_k(theta)` of every silo, training data, before training. Whoever was not heard counts with the mean of the others."""
    return filled(round.train_loss, f"round {round.round}: no silo reported its training loss")


def filled(values: Floats, complaint: str) -> Floats:
    """`values` with the mean of the defined ones in place of NaN."""
    known = values == values  # NaN is not
    if not known.any():
        raise RunError(f"{complaint}; the mechanism must declare needs = Needs(train_loss=True), or tell it itself")
    out = values.copy()
    out[~known] = values[known].mean()
    return out
