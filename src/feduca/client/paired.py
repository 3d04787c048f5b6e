"""What a silo deploys against the model it would have had alone, on the same untouched examples.

No answer to a single example leaves the silo: it tells how often only one of the two was right, and mean and variance of the
difference in loss. That is all a paired test needs (analysis/judging.py).
"""

from __future__ import annotations

import numpy as np

from feduca.client.requests import Answers, Steps
from feduca.types import Answered, Array, Floats, Ints


def against_alone(ours: Answered | None, alone: Array, clients: Ints, split: str = "test") -> Steps[dict[str, Floats]]:
    """Columns `[K]` for the record: `ours` is how what is deployed answered; empty where the task answers no single example."""
    if ours is None:
        return {}
    theirs: Answered | None = yield Answers(alone, clients, split)  # a task may answer for mixtures only
    return {} if theirs is None else sums(ours, theirs)


def sums(ours: Answered, theirs: Answered) -> dict[str, Floats]:
    """Silo by silo over its own examples, so that nobody's sums depend on who else was asked."""
    columns = {name: np.full(len(ours.counts), np.nan) for name in ("gained", "lost", "loss_gain", "loss_variance")}
    for k, n in enumerate(ours.counts.tolist()):
        if n:
            better = ours.right[k, :n] - theirs.right[k, :n]  # NaN where answers are not right or wrong
            gain = theirs.loss[k, :n] - ours.loss[k, :n]
            unknown = np.isnan(better).any()
            columns["gained"][k] = np.nan if unknown else (better > 0).sum()
            columns["lost"][k] = np.nan if unknown else (better < 0).sum()
            columns["loss_gain"][k], columns["loss_variance"][k] = gain.mean(), gain.var()
    return {"examples": np.where(ours.counts > 0, ours.counts, np.nan).astype(float), **columns}
