"""The tables of docs/which-reading.md and its tables' page: `python -m paper.readings_page [RESULTS [TARGET ...]]`.

A reading is scored by how far its participation is from what the paper prints, with a penalty for a default accuracy that is
off. The rule was committed before the first run of the search; the page has it in words, this file in code.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feduca.core import wording
from feduca.studies.cell_summary import CellSummary
from paper import printed as paper
from paper.claims.compare import Difference, t95
from paper.page import filled
from paper.tables import markdown
from paper.writer import main

PRINTED: Mapping[
    str, float
] = {  # participation by cell of the recipes readings*.toml: CIFAR-10's, the paper has no others
    "default": paper.STRATEGIES["cifar10", "5"][1],
    "n_s = 1": paper.STRATEGIES["cifar10", "1"][1],
    "delta = 0.01": paper.DELTA_PARTICIPATION["0.01"],
    "delta = 1": paper.DELTA_PARTICIPATION["1"],
    "delta = 1000": paper.DELTA_PARTICIPATION["1000"],
    "inflated by 5 %": paper.MISREPORTING["5"][1],
    "inflated by 10 %": paper.MISREPORTING["10"][1],
}
SCORED = tuple(cell for cell in PRINTED if cell != "delta = 1")  # all weigh the same
ORDERS = (  # what the paper's text makes of them: the first keeps more than the second
    ("default", "n_s = 1"),
    ("delta = 1", "delta = 0.01"),
    ("delta = 1", "delta = 1000"),
    ("default", "inflated by 5 %"),
    ("inflated by 5 %", "inflated by 10 %"),
)
FREE = 0.03  # how far the default accuracy may be off without a penalty
GOOD = 0.08  # a mean distance of participation that would settle it
FIRST = (
    42 + 27
)  # readings of the first pass: all of `fmnist` but realised announce-next, which is lagged, and all of `mixtures`
AGAIN = 14  # how many of them are run with all seeds
SEEDS = 3  # that is all
FINALISTS, ALIKE = 4, 2  # how many of those go on to CIFAR-10, at most so many of one check and threshold
TODAY = {"check": "fitted", "threshold": "previous-weight", "schedule": "lagged", "start": "random"}
SEARCHED = ("fmnist", "mixtures")
NOT_YET = "*Not run yet.*"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reading:
    """One reading in one part and split: its cells, by what is varied in them."""

    part: str
    labels: Labels
    cells: Mapping[str, CellSummary]

    @property
    def called(self) -> str:
        return ", ".join(value for name, value in self.labels if name != "split")

    @property
    def kind(self) -> tuple[str, ...]:
        """Check and threshold, or the base that has them."""
        told = dict(self.labels)
        return (told.get("base") or f"{told['check']}, {told['threshold']}",)

    @property
    def complete(self) -> bool:
        return all(cell in self.cells for cell in SCORED)

    def distance(self, seed: int | None = None) -> float:
        """The mean distance of participation to the printed figures, over seeds or of one."""
        return statistics.fmean(abs(participation(self.cells[cell], seed) - PRINTED[cell]) for cell in SCORED)

    def accuracy_off(self, seed: int | None = None) -> float:
        """How far the default accuracy is from the printed one."""
        cell = self.cells["default"]
        return accuracy(cell, seed) - paper.ACCURACY[cell.data, cell.split, "feduca"][0]

    def score(self, seed: int | None = None) -> float:
        """What readings are ranked by: the smaller, the nearer to the paper."""
        return self.distance(seed) + max(0.0, abs(self.accuracy_off(seed)) - FREE)

    @property
    def orders(self) -> int:
        """How many of the printed orders have the paper's sign."""
        known = [pair for pair in ORDERS if set(pair) <= set(self.cells)]
        return sum(participation(self.cells[a]) > participation(self.cells[b]) for a, b in known)

    @property
    def seeds(self) -> list[int]:
        return sorted(set.intersection(*(set(self.cells[cell].seeds) for cell in SCORED)))


def participation(cell: CellSummary, seed: int | None = None) -> float:
    return _of(cell, seed, cell.participations, cell.participation_mean)


def accuracy(cell: CellSummary, seed: int | None = None) -> float:
    return _of(cell, seed, cell.accuracies, cell.accuracy_mean)


def _of(cell: CellSummary, seed: int | None, each: Sequence[float | None] | None, mean: float | None) -> float:
    value = mean if seed is None or each is None else each[list(cell.seeds).index(seed)]
    return float("nan") if value is None else value


def read(results: Path) -> list[CellSummary]:
    """The cells of the search, none where it has not been run."""
    path = results / "readings.json"
    return [CellSummary.of(cell) for cell in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def readings(cells: Iterable[CellSummary], *parts: str) -> list[Reading]:
    """The readings of which every scored cell is there, the best first; equal scores: the one with more of the orders."""
    found: dict[tuple[str, Labels], dict[str, CellSummary]] = {}
    for cell in cells:
        if cell.labels["study"] in parts:
            labels = tuple((k, v) for k, v in cell.labels.items() if k not in ("study", "cell"))
            found.setdefault((cell.labels["study"], labels), {})[cell.labels["cell"]] = cell
    there = [Reading(part, labels, mine) for (part, labels), mine in found.items()]
    return sorted((r for r in there if r.complete), key=lambda r: (round(r.score(), 6), -r.orders))


def is_today(reading: Reading) -> bool:
    """Whether it is the reading that the paper's recipes have."""
    return {k: v for k, v in reading.labels if k != "split"} in (TODAY, {k: TODAY[k] for k in TODAY if k != "start"})


def again(cells: Iterable[CellSummary]) -> list[Reading]:
    """Which readings are run with all seeds: the best of one seed, and today's; nobody before all have one."""
    ranked = readings(cells, *SEARCHED)
    if len(ranked) < FIRST:
        return []
    seed = min((seed for r in ranked for seed in r.seeds), default=0)
    first = sorted(
        ranked, key=lambda r: (round(r.score(seed), 6), -r.orders)
    )  # the same, whoever has more seeds by now
    return first[:AGAIN] + [reading for reading in first[AGAIN:] if is_today(reading)]


def finalists(cells: Iterable[CellSummary]) -> list[Reading]:
    """Which readings go on to CIFAR-10: the best of those with all seeds, not all of a kind, and today's."""
    found = readings(cells, *SEARCHED)
    ranked = [reading for reading in found if len(reading.seeds) >= SEEDS]
    chosen: list[Reading] = []
    for reading in ranked:
        if len(chosen) < FINALISTS and sum(r.kind == reading.kind for r in chosen) < ALIKE:
            chosen.append(reading)
    return chosen + [reading for reading in ranked if is_today(reading) and reading not in chosen]


def command(reading: Reading, part: str, lockstep: int) -> str:
    """What runs a reading in another part of the search, or in its own with all seeds."""
    only = [f"--only {shlex.quote(f'{k}={v}')}" for k, v in (("study", part), *reading.labels)]
    return (
        f"$ feduca reproduce readings {' '.join(only)} --device cuda --set engine.precision=bf16 --lockstep {lockstep}"
    )


def commands(lines: Sequence[str]) -> str:
    return f"```console\n{chr(10).join(lines)}\n```" if lines else NOT_YET


def against_today(reading: Reading, today: Reading) -> Difference:
    """How much smaller its score is than today's, seed by seed."""
    seeds = sorted(set(reading.seeds) & set(today.seeds))
    gaps = [today.score(seed) - reading.score(seed) for seed in seeds]
    if len(gaps) < 2:
        return Difference(today.score() - reading.score(), float("inf"))
    return Difference(statistics.fmean(gaps), t95(len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5)


def winner(cells: Iterable[CellSummary]) -> Reading | None:
    """The reading that wins on CIFAR-10: the best score, if it is clearly better than today's; None where none is."""
    ranked = [r for r in readings(cells, "cifar10", "cifar10-mixtures") if dict(r.labels)["split"] == "0.5,1.0"]
    today = next((r for r in ranked if is_today(r)), None)
    if today is None or not ranked or ranked[0] is today:
        return None
    better = against_today(ranked[0], today)
    return ranked[0] if better.clear and better.value > 0 else None


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def progress(cells: Sequence[CellSummary]) -> str:
    """How far the first pass is."""
    done = len(readings(cells, *SEARCHED))
    return (
        "The first pass is done."
        if done >= FIRST
        else f"*So far {done} of the {FIRST} readings of the first pass have been run.*"
    )


def scored(found: Sequence[Reading]) -> str:
    """Readings against the printed figures, with distance and rank."""
    if not found:
        return NOT_YET
    names = [name for name, _ in found[0].labels]
    cells = [cell for cell in PRINTED if any(cell in r.cells for r in found)]
    rows = [["", "*paper*", *[""] * (len(names) - 1), *(_pct(PRINTED[c]) for c in cells), "", "", "", "", ""]]
    for place, reading in enumerate(found, 1):
        kept = [_pct(participation(reading.cells[c])) if c in reading.cells else "-" for c in cells]
        off = f"{_pct(accuracy(reading.cells['default']))} ({100 * reading.accuracy_off():+.1f})"
        numbers = [f"{100 * value:.1f}" for value in (reading.distance(), reading.score())]
        mark = " (today's)" if is_today(reading) else ""
        values = [value for _, value in reading.labels]
        rows.append(
            [f"{place}{mark}", *values, *kept, off, *numbers, f"{reading.orders} of 5", str(len(reading.seeds))]
        )
    titles = ["rank", *names, *cells, "accuracy (off)", "distance", "score", "orders", "seeds"]
    return markdown(titles, rows, 1 + len(names))


def baselines(cells: Sequence[CellSummary]) -> str:
    """The paper's baselines by what decliners tell and what stands in for them: accuracy and participation."""
    mine = [c for c in cells if c.labels["study"] == "baselines"]
    if not mine:
        return NOT_YET
    columns = list(dict.fromkeys((c.labels["split"], c.labels["method"]) for c in mine))
    kinds = list(dict.fromkeys((c.labels["decliners"], c.labels["memory"]) for c in mine))
    by = {
        (c.labels["decliners"], c.labels["memory"], c.labels["split"], c.labels["method"]): c
        for c in mine
        if c.accuracy_mean is not None
    }
    rows = []
    for split, method in columns:
        theirs = paper.ACCURACY["fmnist", split, method][0]
        shown = [by.get((*kind, split, method)) for kind in kinds]
        rows.append([split, method, _pct(theirs), *("-" if c is None else _both(c) for c in shown)])
    off = [_mean_off(by, kind, columns) for kind in kinds]
    rows.append(["", "mean distance of accuracy", "", *off])
    return markdown(["split", "method", "paper", *(f"{d}, {m}" for d, m in kinds)], rows, 2)


def controls(cells: Sequence[CellSummary]) -> str:
    """What weights that solve nothing keep, and how accurate they are, under each check and threshold."""
    mine = [c for c in cells if c.labels["study"] == "controls"]
    if not mine:
        return NOT_YET
    weights = list(dict.fromkeys(c.labels["weights"] for c in mine))
    by = {(c.labels["check"], c.labels["threshold"], c.labels["weights"]): c for c in mine}
    rows = [
        [*kind, *("-" if (c := by.get((*kind, one))) is None else _both(c) for one in weights)]
        for kind in dict.fromkeys(key[:2] for key in by)
    ]
    return markdown(["check", "threshold", *weights], rows, 2)


def _mean_off(
    by: Mapping[tuple[str, str, str, str], CellSummary], kind: tuple[str, str], columns: Sequence[tuple[str, str]]
) -> str:
    there = [(by[(*kind, *one)], paper.ACCURACY["fmnist", *one][0]) for one in columns if (*kind, *one) in by]
    return f"{100 * statistics.fmean(abs(accuracy(c) - theirs) for c, theirs in there):.1f}" if there else "-"


def unexplained(cells: Sequence[CellSummary]) -> str:
    """What the score leaves out, for every reading that was run on CIFAR-10."""
    found = [r for r in readings(cells, "cifar10", "cifar10-mixtures") if dict(r.labels)["split"] == "0.5,1.0"]
    if not found:
        return NOT_YET
    rows = [["*paper*", "63.8", "63.9", "10.8", "grows, then flat"]]
    for reading in found:
        accuracies = [
            _pct(accuracy(reading.cells[cell])) for cell in ("n_s = 1", "inflated by 5 %", "inflated by 10 %")
        ]
        rows.append([reading.called, *accuracies, _growth(reading.cells["default"])])
    titles = ["reading", "accuracy, n_s = 1", "accuracy, +5 %", "accuracy, +10 %", "discrepancy, rounds 1-5 / 61-100"]
    return markdown(titles, rows, 1)


def _growth(cell: CellSummary) -> str:
    curve = [value for value in cell.discrepancy or () if value is not None]
    return f"{np.mean(curve[:5]):.3f} / {np.mean(curve[60:]):.3f}" if len(curve) > 60 else "-"


def verdict(cells: Sequence[CellSummary]) -> str:
    """Which reading wins, in a sentence."""
    ranked = [r for r in readings(cells, "cifar10", "cifar10-mixtures") if dict(r.labels)["split"] == "0.5,1.0"]
    if not ranked:
        return "*The confirmation on CIFAR-10 has not been run: no reading has won yet.*"
    best, won = ranked[0], winner(cells)
    text = f"The best of {len(ranked)} on CIFAR-10 is *{best.called}*: participation is {100 * best.distance():.1f} points off on"
    text += f" average, the default accuracy {100 * best.accuracy_off():+.1f}."
    if won is None:
        return f"{text} No reading is clearly nearer to the paper than today's."
    settled = won.distance() <= GOOD and abs(won.accuracy_off()) <= FREE
    return (
        f"{text} It is clearly nearer than today's{'' if settled else ', and still farther off than 8 and 3 points'}."
    )


def going_on(cells: Sequence[CellSummary]) -> str:
    """The commands for CIFAR-10 of the readings that go on."""
    parts = {"mixtures": "cifar10-mixtures"}
    return commands([command(reading, parts.get(reading.part, "cifar10"), 7) for reading in finalists(cells)])


def second_pass(cells: Sequence[CellSummary]) -> str:
    """The commands of the readings that are run with all seeds."""
    return commands([command(reading, reading.part, 36) for reading in again(cells)])


def block(results: Path, name: str) -> str:
    """The block called `name`."""
    cells = read(results)
    blocks: dict[str, Callable[[Sequence[CellSummary]], str]] = {
        "baselines": baselines,
        "controls": controls,
        "unexplained": unexplained,
        "verdict": verdict,
        "again": second_pass,
        "progress": progress,
        "going-on": going_on,
    }
    if name == "printed":
        return printed()
    return blocks[name](cells) if name in blocks else scored(readings(cells, name))


def printed() -> str:
    """The figures that readings are scored against."""
    rows = [[cell, _pct(share), "yes" if cell in SCORED else "order only"] for cell, share in PRINTED.items()]
    for data in ("fmnist", "cifar10"):
        name = {"fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}[data]
        theirs = _pct(paper.ACCURACY[data, "0.5,1.0", "feduca"][0])
        rows.append([f"accuracy at the default, {name}", theirs, "beyond 3 points"])
    return markdown(["cell", "printed %", "scored"], rows, 1)


def _pct(value: float) -> str:
    return wording.percent(value, decimals=1)


def _both(cell: CellSummary) -> str:
    return f"{_pct(accuracy(cell))} ({_pct(participation(cell))})"


def write(results: Path, target: Path) -> list[str]:
    text = filled(target.read_text(encoding="utf-8"), lambda name: block(results, name))
    target.write_text(text, encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    pages = [f"docs/which-reading{part}.md" for part in ("", "-tables", "-mixtures")]
    main("readings_page", "Write the tables of the search for the paper's reading.", pages, write)
