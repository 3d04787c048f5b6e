"""Finding what our runs have: cells of a study, their figures, pairs of them, blocks of rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from feduca.core import wording
from paper import printed as paper
from paper.claims.compare import ONE_SEED, ONE_SEED_EQ1, Figure
from paper.claims.judging import Missing, Summaries
from paper.tables import Cell, known

DATA = {"cifar10": "CIFAR-10", "fmnist": "F-MNIST", "cifar100": "CIFAR-100", "20news": "20 Newsgroups"}
NAMES = {
    "fedavg": "FedAvg",
    "incfl": "IncFL",
    "fedprox": "FedProx",
    "aaggff": "AAggFF-S",
    "fedavg-ws": "FedAvg-WS",
    "feduca": "FedUCA",
}
BASELINES = tuple(name for name in NAMES if name != "feduca")
COLUMNS = [(data, split) for data in ("cifar10", "fmnist", "cifar100") for split in paper.SPLITS]
TEXT = ("20news", "0.5,1.0")

Quantity = Callable[[Cell], Figure]


def pct(value: float) -> str:
    return wording.percent(value, unit=" %")


def points(value: float) -> str:
    return wording.points(value, unit=" points")


def place(data: str, split: str) -> str:
    """A column of the paper's tables; its text has one split only."""
    return f"{DATA[data]} ({split})" if data != "20news" else DATA[data]


def title(data: str) -> str:
    """Where the paper prints its accuracies on these data."""
    return "Table 2" if data != "20news" else "Appendix, table on text"


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def cells(summaries: Summaries, study: str) -> list[Cell]:
    """The cells of a study; none where it was not run."""
    return list(summaries.get(study, ()))


def find(summaries: Summaries, study: str, /, **wanted: str) -> Cell | None:
    """The cell of a study at a place, by its fields or labels."""
    for cell in cells(summaries, study):
        if all(value in (str(cell.get(key)), cell["labels"].get(key)) for key, value in wanted.items()):
            return cell
    return None


def where(cell: Cell) -> str:
    """A cell's place in words."""
    return ", ".join(cell["labels"].values())


def need(summaries: Summaries, study: str, /, **wanted: str) -> Cell:
    """The cell of a study at a place; `Missing` where there is none."""
    cell = find(summaries, study, **wanted)
    if cell is None:
        raise Missing(f"run of {study}: {', '.join(wanted.values())}")
    return cell


def study(data: str) -> str:
    """The study of the paper's Table 2, or the one about text."""
    return "text" if data == "20news" else "table1"


def table(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    """A cell of the paper's tables of accuracies."""
    return need(summaries, study(data), data=data, split=split, method=method)


def entry(cell: Cell, key: str) -> Any:
    """A field of a cell; `Missing` where it was not recorded."""
    if cell.get(key) is None:
        raise Missing(f"{key} in the summary of {where(cell)}")
    return cell[key]


def columns(summaries: Summaries, *methods: str) -> Iterator[tuple[str, list[Cell]]]:
    """The columns of the paper's Table 2 that have all these methods, with their names; `Missing` where there is none."""
    found = 0
    for data, split in COLUMNS:
        row = [find(summaries, "table1", data=data, split=split, method=method) for method in methods]
        there = [cell for cell in row if cell is not None]
        if len(there) == len(row):
            found += 1
            yield place(data, split), there
    if not found:
        raise Missing(f"column of table1 with {', '.join(methods)}")


def near(summaries: Summaries, beside: Cell) -> Cell | None:
    """The control with random weights about as far from uniform as FedUCA's, in the column of another cell, where it was run."""
    return find(summaries, "table1", data=beside["data"], split=beside["split"], method="random-near")


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _by_seed(cell: Cell, key: str) -> dict[int, float]:
    values = cell.get(key) or ()
    return {} if None in values else dict(zip(cell["seeds"], values))


def accuracy(cell: Cell) -> Figure:
    mean = entry(cell, "accuracy_mean")
    return Figure(mean, cell.get("accuracy_std"), len(cell["seeds"]), _by_seed(cell, "accuracies"))


def share(cell: Cell) -> float:
    return entry(cell, "participation_mean")


def shares(cell: Cell) -> Figure:
    """Participation; older summaries hold only its mean."""
    by_seed = _by_seed(cell, "participations")
    std = statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None
    return Figure(share(cell), std, len(cell["seeds"]), by_seed, _assumed(cell))


def _assumed(cell: Cell) -> float:
    """How far participation may be off by seeds that a summary does not show; near 0 and 1 it cannot be off by much."""
    ends = 2 * min(share(cell), 1 - share(cell))
    return min(ONE_SEED_EQ1, max(ONE_SEED, ends)) if cell.get("rule") == "accuracy" else ONE_SEED


def printed(data: str, split: str, method: str) -> Figure:
    """The paper's accuracy, over its three seeds."""
    return Figure(*paper.ACCURACY[data, split, method], 3)


# ---------------------------------------------------------------------------------------------------------------------
# Curves over rounds


def curve(cell: Cell, key: str) -> list[float | None]:
    """A quantity by round, of runs of full length."""
    values = entry(cell, key)
    if len(values) < 100:
        raise Missing(f"run of 100 rounds for {where(cell)}")
    return values


def block(values: Sequence[float | None], first: int, last: int) -> Figure:
    """Mean and spread over rounds `first` to `last`, counted from 1."""
    found = known(values[first - 1 : last])
    if len(found) < 2:
        raise Missing(f"values in rounds {first} to {last}")
    return Figure(statistics.fmean(found), statistics.stdev(found), len(found))


def blocks(cell: Cell, key: str, *spans: tuple[int, int]) -> list[Figure]:
    """A quantity over several blocks of rounds of a run of full length."""
    values = curve(cell, key)
    return [block(values, *span) for span in spans]
