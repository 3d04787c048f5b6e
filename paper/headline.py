"""README's tables of results, from the committed summaries: `python -m paper.headline [RESULTS [TARGET]]`."""

from __future__ import annotations

from pathlib import Path

from feduca.core.wording import percent
from feduca.studies.cell_summary import CellSummary
from paper import real_page
from paper.claims import Summaries
from paper.figures.style import title
from paper.page import filled, read
from paper.tables import markdown
from paper.writer import main

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
        cells = [CellSummary.of(cell) for cell in summaries.get(study, ())]
        found = {(c.data, c.split): c for c in cells if _is(c, method)}
        if found:
            rows.append([label, *(_cell(found.get(column)) for column in COLUMNS)])
    return markdown(["", *map(title, COLUMNS)], rows, 1)


def _is(cell: CellSummary, method: str) -> bool:
    return cell.labels.get("method") == method and cell.labels.get("study", "main") == "main"


def _cell(cell: CellSummary | None) -> str:
    """Accuracy and its spread, the paper's in brackets, and who is in."""
    if cell is None:
        return "not run yet"
    theirs = "" if cell.paper_accuracy is None else f" ({percent(cell.paper_accuracy)})"
    return (
        f"{percent(cell.accuracy_mean, cell.accuracy_std)}{theirs}, {percent(cell.participation_mean, decimals=0)} % in"
    )


def block(results: Path, name: str) -> str:
    """README's table called `name`: on natural silos, or on the paper's split."""
    return real_page.block(results, name) if name == "natural" else table(read(results))


def write(results: Path, target: Path) -> list[str]:
    text = filled(target.read_text(encoding="utf-8"), lambda name: block(results, name))
    target.write_text(text, encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    main(
        "headline",
        "Write README's tables of results anew, between their marks, from the summaries.",
        "README.md",
        write,
    )
