"""The table of docs/findings.md: `python -m paper.findings_page [RESULTS [TARGET]]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feduca.core import wording
from paper.claims.look import place
from paper.page import filled, read
from paper.tables import NOTHING, markdown
from paper.writer import main

FROM = 20  # rounds at the start that are left out
METHODS = {"FedUCA, lagged": "feduca", "FedUCA, fresh": "feduca-fresh", "random weights": "random"}

Summaries = Mapping[str, Any]


def succession(cell: Mapping[str, Any]) -> tuple[float, float]:
    """Participation from round 21 on: its mean, and the correlation of each round with the next."""
    shares = np.array(cell["participation_by_round"][FROM:], float)
    return float(shares.mean()), float(np.corrcoef(shares[:-1], shares[1:])[0, 1])


def period(summaries: Summaries) -> str:
    """Who is in, and how a round's participation goes with the next one's: the paper's columns, then other deltas and n_s."""
    columns: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell in summaries["table1"]:
        if cell["method"] in METHODS.values():
            columns.setdefault(place(cell["data"], cell["split"]), {})[cell["method"]] = cell
    rows = [[name, *(_said(found.get(method)) for method in METHODS.values())] for name, found in columns.items()]
    rows += [
        [f"CIFAR-10 (0.5,1.0), delta = {cell['labels']['delta']}", _said(cell), NOTHING, NOTHING]
        for cell in summaries["delta"]
        if cell["labels"]["delta"] != "0.5"
    ]
    rows += [
        [f"{place(cell['data'], cell['split'])}, n_s = {cell['labels']['n_s']}", _said(cell), NOTHING, NOTHING]
        for cell in summaries["strategies"]
        if (cell["labels"]["schedule"], cell["labels"]["n_s"]) in (("lagged", "1"), ("lagged", "10"))
    ]
    return markdown(["in %, correlation", *METHODS], rows, 1)


def _said(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NOTHING
    mean, along = succession(cell)
    return f"{wording.percent(mean, decimals=1)}, {along:+.2f}"


def write(results: Path, target: Path) -> Sequence[str]:
    summaries = read(results)
    text = filled(target.read_text(encoding="utf-8"), lambda name: {"period": period}[name](summaries))
    target.write_text(text, encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    main("findings_page", "Write the table of the findings from the summaries.", ["docs/findings.md"], write)
