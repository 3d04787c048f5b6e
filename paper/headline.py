"""The first tables a reader meets, from the committed summaries: `python -m paper.headline [RESULTS [TARGET ...]]`.

README's five rows, the demo's table on docs/start.md, and the long tables of docs/results.md. Each stands between
`<!-- table NAME -->` and `<!-- end -->`; what is there is replaced. Nothing is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from feduca.cli.progress import comparison
from feduca.core.wording import percent, points
from feduca.studies.cell_summary import CellSummary
from feduca.studies.summarise import alone
from paper import real_page
from paper.claims import Summaries
from paper.figures.style import title
from paper.page import filled, read
from paper.tables import known, markdown
from paper.writer import main

TARGETS = ("README.md", "docs/start.md", "docs/results.md", "docs/choosing.md")
TERMINAL = {
    "demo": "tailored",
    "quickstart": "quickstart",
}  # tables as `feduca compare` prints them, and their summaries
FIRST = {  # a row of the first table: what it is called on natural silos, and on the paper's split
    "alone": ("alone", "local"),
    "free to leave (FedAvg, Eq. 1)": ("fedavg, Eq. 1", "fedavg"),
    "forced in (FedAvg)": ("forced", "forced"),
    "FedUCA, Eq. 2": ("feduca-fresh, Eq. 2", "feduca-fresh"),
    "**our offer: each its own mixture**": ("stack, everybody trains", "stack, everybody trains"),
}
PAPERS = ("cifar10", "fmnist")  # data of the paper's split on which every row of the first table has run
COLUMNS = [(data, split) for data in PAPERS for split in ("0.5,1.0", "1.0,1.0")]
ROWS = (  # what the long table calls it, the study, the method
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


@dataclass(frozen=True)
class Standing:
    """One row of the first table on one kind of silos, as fractions."""

    inside: float  # mean over rounds and silos
    deployed: float  # accuracy of what silos deploy, on data no decision saw
    better: float  # silos whose model is more accurate there than the one they would have had alone
    worst: float  # of the silo that comes off worst, what it deploys minus what it would have had alone


def standing(cells: Sequence[CellSummary], everything: Sequence[CellSummary], same_silos: bool) -> Standing:
    """A method's cells as one row: means over cells, the worst over all.

    Natural silos are the same in every split, so that each is judged by its mean over the splits; the paper's are drawn
    anew with every seed.
    """
    gains = [_gains(cell, everything) for cell in cells]
    if same_silos:
        gains = [each.mean(axis=0) for each in gains]
    return Standing(
        mean(known(cell.participation_mean for cell in cells)),
        mean(known(cell.deployed_test_mean for cell in cells)),
        mean(float((each > 1e-9).mean()) for each in gains),
        min(float(each.min()) for each in gains),
    )


def _gains(cell: CellSummary, everything: Sequence[CellSummary]) -> np.ndarray:
    """By seed and silo, what is deployed minus what the silo would have had alone."""
    deployed = cell.deployed_test
    without = cell.alone_test or (deployed if cell.rule == "never" else alone(cell, everything))
    return np.asarray(deployed, float) - np.asarray(without, float)


def first(results: Path) -> dict[str, tuple[Standing, Standing]]:
    """The rows of the first table: on natural silos, and on the paper's split."""
    natural, papers = (_main(results, study) for study in ("real", "offers"))
    common = real_page.everywhere(real_page.rows(results, "main"))
    natural, papers = [c for c in natural if c.data in common], [c for c in papers if c.data in PAPERS]
    return {
        called: (
            standing([c for c in natural if c.method == one], natural, same_silos=True),
            standing([c for c in papers if c.method == other], papers, same_silos=False),
        )
        for called, (one, other) in FIRST.items()
    }


def _main(results: Path, study: str) -> list[CellSummary]:
    cells = json.loads((results / f"{study}.json").read_text(encoding="utf-8"))
    return [CellSummary.of(cell) for cell in cells if cell["labels"]["study"] == "main"]


def first_table(rows: Mapping[str, tuple[Standing, Standing]]) -> str:
    lines = []
    for called, both in rows.items():
        line = [called]
        for one in both:
            who = "-" if called == "alone" else percent(one.inside, decimals=0)
            gained = ["-", "-"] if called == "alone" else [percent(one.better, decimals=0), points(one.worst)]
            line += [who, percent(one.deployed), *gained]
        lines.append([f"**{word.strip('*')}**" if called.startswith("**") else word for word in line])
    titles = ("in %", "accuracy %", "better off %", "worst silo")
    heads = [[f"{where}: {titles[0]}", *titles[1:]] for where in ("natural silos", "the paper's split")]
    return markdown(["", *heads[0], *heads[1]], lines, 1)


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
    """The table called `name`."""
    if name == "first":
        return first_table(first(results))
    if name in TERMINAL:
        rows = json.loads((results / f"{TERMINAL[name]}.json").read_text(encoding="utf-8"))
        return f"```text\n{comparison(rows)}\n```"
    return real_page.block(results, name) if name == "natural" else table(read(results))


def write(results: Path, target: Path) -> list[str]:
    text = filled(target.read_text(encoding="utf-8"), lambda name: block(results, name))
    target.write_text(text, encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    main("headline", "Write the first tables anew, between their marks, from the summaries.", TARGETS, write)
