"""The figures of docs/paper and docs/offers*.md, from the committed summaries: `python -m paper.figures [RESULTS [TARGET]]`.

    drawing.py     a figure before it is drawn, and how it becomes an SVG
    dark.py        the colours of a dark page
    style.py       colours, names, panels and keys that all figures share
    accuracy.py    accuracy and participation per method, and over the rounds
    mechanism.py   delta, Jensen's gap, the discrepancy, strategies, inflated thresholds, utility curves
    cost.py        time and memory
    offers.py      tailored offers

What there is to draw is decided without matplotlib (`drawings`), so that the page can name the files; `write` draws them.
The same summaries give the same files: no dates, no random names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from paper.claims import Summaries
from paper.figures import accuracy, cost, mechanism, offers
from paper.figures.drawing import Drawing, svg
from paper.tables import Cells

__all__ = ["DRAWN", "Drawing", "drawings", "svg", "write"]

DRAWN: Mapping[str, Callable[[Any], list[Drawing]]] = {
    "table1": accuracy.table1,
    "participation": accuracy.participation,
    "delta": mechanism.delta,
    "jensen": mechanism.jensen,
    "discrepancy": mechanism.discrepancy,
    "strategies": mechanism.strategies,
    "misreporting": mechanism.misreporting,
    "cost": cost.cost,
    "concavity": mechanism.concavity,
    "text": accuracy.text,
    "offers": lambda cells: offers.offers(cells, "offers"),
    "offers-quickstart": lambda cells: offers.offers(cells, "offers-quickstart"),
    "offers-validation": lambda cells: offers.offers(cells, "offers-validation"),
}


def drawings(name: str, cells: Cells) -> list[Drawing]:
    """What there is to draw of a study's cells."""
    return DRAWN[name](cells) if cells and name in DRAWN else []


def write(summaries: Summaries, folder: str | Path) -> list[Path]:
    """Draw everything; figures that no summary asks for any more are removed. Returns the files."""
    from feduca.studies.execute import STUDIES
    from paper.page import shown  # the page names our files: it imports us

    folder = Path(folder)
    found = [one for name in STUDIES for one in drawings(name, shown(name, summaries))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ours = (*STUDIES, "rounds")  # how names of our figures begin
        for old in {path.name for path in folder.glob("*.svg")} - {f"{one.name}.svg" for one in found}:
            if old.startswith(ours):
                (folder / old).unlink()
        written = [folder / f"{one.name}.svg" for one in found]
        for one, path in zip(found, written):
            path.write_text(svg(one), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write figures to {folder}: {error.strerror}; choose another folder") from None
    return written
