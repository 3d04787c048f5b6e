"""What silos told in a round: their training losses and a method's own numbers, by name, `[N]` each.

Where decliners tell the server nothing of the kind, the last that was heard of them stands. It is kept in the state's history,
as columns that start at zero for silos that come later: beside each number stands whether it was ever heard.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feduca.types import JOINED, REFUSED, Array, Floats, Ints, Reports

LOSS = "train_loss"


def of_round(
    history: Mapping[str, Array], reports: Reports, n: int, *, lasting: bool
) -> tuple[Mapping[str, Array], dict[str, Floats]]:
    """The history and this round's numbers, NaN where there are none; `lasting`: with the last ones heard in their place."""
    seen = reports.measurements
    now = {name: spread(values, reports.clients, n) for name, values in {LOSS: seen.train_loss, **seen.told}.items()}
    if not lasting:
        return history, now
    names = dict.fromkeys([*now, *(key.removeprefix("last_") for key in history if key.startswith("last_"))])
    history = dict(history)
    for name in names:
        values = now.get(name, np.full(n, np.nan))
        new = np.isfinite(values)
        last = np.where(new, values, history.get(f"last_{name}", np.zeros(n)))
        ever = np.where(new, 1.0, history.get(f"ever_{name}", np.zeros(n)))
        history |= {f"last_{name}": last, f"ever_{name}": ever}
        now[name] = np.where(ever > 0, last, np.nan)
    return history, now


def validation_loss(reports: Reports, n: int, all_tell: bool) -> Floats:
    """Of the model that was announced, on silos' own validation data; NaN for decliners where these do not tell.

    And for whoever was refused: without standing a silo is sent an older model, so that is what its loss is of.
    """
    told = np.array([status != REFUSED and (all_tell or status == JOINED) for status in reports.status], bool)
    loss = np.where(told, reports.measurements.global_.loss, np.nan)
    return spread(loss, reports.clients, n)


def spread(values: Floats, clients: Ints, n: int) -> Floats:
    """Columns of those who answered as columns of all silos."""
    full = np.full(n, np.nan)
    full[clients] = values
    return full
