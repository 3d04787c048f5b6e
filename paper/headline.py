"""README's one table of results, from the committed summaries: `python -m feduca.reproduce.headline [RESULTS [TARGET]]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feduca.reproduce.claims import Summaries
from feduca.reproduce.figures.style import title
from feduca.reproduce.page import filled, read
from feduca.reproduce.tables import markdown
from feduca.reproduce.writer import main

COLUMNS = [(data, split) for data in ("cifar10", "fmnist") for split in ("0.5,1.0", "1.0,1.0")]
ROWS = (  # what README calls it, the study, the method
    ("FedAvg, Eq. 1", "table1", "fedavg"),
    ("FedProx, Eq. 1", "table1", "fedprox"),
    ("IncFL, Eq. 1", "table1", "incfl"),
    ("AAggFF-S, Eq. 1", "table1", "aaggff"),
    ("FedAvg-WS, Eq. 1", "table1", "fedavg-ws"),
    ("FedUCA lagged, Eq. 2", "table1", "feduca"),
    ("FedUCA fresh, Eq. 2", "table1", "feduca-fresh"),
    ("FedUCA fresh, exact maximum, Eq. 2", "table1", "feduca-maximum"),
    ("uniform control, Eq. 2", "table1", "uniform"),
    ("random control, Eq. 2", "table1", "random"),
    ("random control, as far from uniform as FedUCA, Eq. 2", "table1", "random-near"),
    ("tailored offers, least concession, Eq. 1 [^1]", "offers", "least-concession"),
    ("tailored offers, best mixture from consensus, Eq. 1 [^1]", "offers", "best-mixture, from consensus"),
    ("everybody forced in", "table1", "forced"),
)


def table(summaries: Summaries) -> str:
    """One row per method, one column per data set and split; a row without any run is left out."""
    rows = []
    for label, study, method in ROWS:
        found = {(c["data"], c["split"]): c for c in summaries.get(study, ()) if _is(c, method)}
        if found:
            rows.append([label, *(_cell(found.get(column)) for column in COLUMNS)])
    return markdown(["", *map(title, COLUMNS)], rows, 1)


def _is(cell: Mapping[str, Any], method: str) -> bool:
    return cell["labels"].get("method") == method and cell["labels"].get("study", "main") == "main"


def _cell(cell: Mapping[str, Any] | None) -> str:
    """Accuracy and its spread, the paper's in brackets, and who is in."""
    if cell is None:
        return "not run yet"
    spread = "" if cell["accuracy_std"] is None else f" ± {100 * cell['accuracy_std']:.1f}"
    theirs = "" if cell["paper_accuracy"] is None else f" ({100 * cell['paper_accuracy']:.1f})"
    return f"{100 * cell['accuracy_mean']:.1f}{spread}{theirs}, {100 * cell['participation_mean']:.0f} % in"


def write(results: Path, target: Path) -> list[str]:
    target.write_text(filled(target.read_text(), lambda name: table(read(results))))
    return [f"written to {target}"]


if __name__ == "__main__":
    main("headline", "Write README's table of results anew, between its marks, from the summaries.", "README.md", write)
