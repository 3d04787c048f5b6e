"""The tables of docs/real.md, of docs/real-more.md beside it and README's on natural silos.

`python -m paper.real_page [RESULTS [TARGET]]`. Each table stands between `<!-- table NAME -->` and `<!-- end -->`; what is there
is replaced. Nothing is typed by hand. (Tables of benchmarks on that second page: `python benchmarks/natural.py tables`.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np

from feduca.core import wording
from feduca.studies.cell_summary import CellSummary
from paper.page import filled
from paper.tables import known, markdown
from paper.writer import main

SETS = ("heart", "randhie", "fars", "vowel", "star", "exam", "azpro", "insteval")
HEADLINE = {  # README's rows: what they are called there, and the row of the study
    "alone": "alone",
    "everybody forced in": "forced",
    "free to leave (FedAvg, Eq. 1)": "fedavg, Eq. 1",
    "FedUCA, Eq. 2": "feduca-fresh, Eq. 2",
    "best mixture, against the model of now": "best mixture, from consensus",
    "stack, only who gains trains": "stack",
    "**our offer: stack, everybody trains**": "stack, everybody trains",
    "stack, everybody trains, folds, output bias local": "stack, everybody trains, folds, output bias local",
}

RECOMMENDED = "stack, everybody trains, folds, output bias local"
RIVALS = ("ditto, ties by loss", "apfl, ties by loss", "fedper, forced", "fine-tuned, forced")
BESIDE = "real-more.md"

Rows = dict[str, dict[str, CellSummary]]  # method -> set -> cell


def rows(results: Path, study: str) -> Rows:
    found: Rows = {}
    for cell in json.loads((results / "real.json").read_text(encoding="utf-8")):
        if cell["study"] == study:
            found.setdefault(cell["method"], {})[cell["labels"]["data"]] = CellSummary.of(cell)
    return found


def everywhere(found: Rows) -> list[str]:
    """The sets on which every method has run: means are over these."""
    return [name for name in SETS if all(name in cells for cells in found.values())]


def gains(found: Rows) -> str:
    """Mean gain over the model alone in points of test accuracy, and the share of silos that are surely worse off."""
    common = everywhere(found)
    lines = []
    for method, cells in found.items():
        shown = [_gain(cells.get(name)) for name in SETS]
        mine = [cells[name] for name in common]
        lines.append([method, *shown, _signed(mean(known(c.gain_mean for c in mine)))])
    return markdown(["method", *SETS, f"mean of {len(common)}"], lines, 1)


def against(found: Rows, ours: str) -> str:
    """How far one method is ahead of others, in points of what silos deploy, split by split; errors are over splits.

    In the last column they are over the sets, and the last row is the best of the others on each set, picked afterwards.
    """
    there = [name for name in RIVALS if name in found]
    common = [name for name in everywhere(found) if name in found[ours]]
    ahead = {rival: {n: _ahead(found[ours][n], found[rival][n]) for n in common} for rival in there}
    ahead["the best of these on each set"] = {n: min((ahead[r][n] for r in there), key=np.mean) for n in common}
    lines = []
    for rival, by_set in ahead.items():
        means = np.array([values.mean() for values in by_set.values()])
        shown = [_within(by_set[name]) if name in by_set else "" for name in SETS]
        lines.append([rival, *shown, _within(means)])
    return markdown(["ahead of", *SETS, f"mean of {len(common)}"], lines, 1)


def _ahead(ours: CellSummary, theirs: CellSummary) -> np.ndarray:
    """The mean difference over silos, split by split."""
    assert ours.deployed_test is not None
    assert theirs.deployed_test is not None
    assert ours.seeds == theirs.seeds
    return (np.array(ours.deployed_test, float) - np.array(theirs.deployed_test, float)).mean(1)


def _within(values: np.ndarray) -> str:
    """A mean in points and its standard error."""
    return f"{_signed(values.mean())} ± {100 * values.std(ddof=1) / np.sqrt(len(values)):.1f}"


def dealt(found: Rows) -> str:
    """The study where a recipe deals the data: who is in, the shared model, what silos deploy, and who is better off."""
    lines = []
    for name in dict.fromkeys(name for cells in found.values() for name in cells):
        for method, cells in found.items():
            c = cells[name]
            shared = "" if c.accuracy_mean is None else wording.percent(c.accuracy_mean, decimals=1)
            deployed = wording.percent(c.deployed_test_mean, decimals=1)
            gain, worst = (_signed(v) for v in known((c.gain_mean, c.gain_worst)))
            lines.append([name, method, _share([c], "participation_mean"), shared, deployed, gain, worst])
    titles = ("in %", "shared model, accuracy %", "silos deploy %", "gain over alone", "worst silo")
    return markdown(["data", "method", *titles], lines, 2)


def judged(found: Rows) -> str:
    """Who takes part, and who is surely better or worse off, by accuracy and by log-loss: means over the sets."""
    common = everywhere(found)
    lines = []
    for method, cells in found.items():
        mine = [cells[name] for name in common]
        shares = [
            _share(mine, name) for name in ("participation_mean", "better_share", "worse_share", "undecided_share")
        ]
        loss = [_share(mine, name) for name in ("loss_better_share", "loss_worse_share")]
        lost = known(c.loss_gain_mean for c in mine)
        lines.append([method, *shares, *loss, f"{mean(lost):+.3f}" if lost else ""])
    titles = ("in %", "better %", "worse %", "undecided %", "loss better %", "loss worse %", "gain in log-loss")
    return markdown(["method", *titles], lines, 1)


def levels(found: Rows) -> str:
    """Test accuracy of deployed models, set by set, for a few methods."""
    lines = []
    for called, method in {**HEADLINE, "pooled (no federation could)": "pooled"}.items():
        cells = found[method]
        shown = [wording.percent(cells[n].deployed_test_mean, decimals=1) if n in cells else "" for n in SETS]
        lines.append([called, *shown])
    return markdown(["silos deploy, accuracy %", *SETS], lines, 1)


def headline(found: Rows) -> str:
    """README's table: a line per method, means over the sets."""
    common = everywhere(found)
    lines = []
    for called, method in HEADLINE.items():
        mine = [found[method][name] for name in common]
        worst = min(known(c.gain_mean for c in mine))
        inside = "" if method == "alone" else _share(mine, "participation_mean")
        worse = max(known(c.worse_share for c in mine))
        lines.append(
            [
                called,
                inside,
                wording.percent(mean(known(c.deployed_test_mean for c in mine)), decimals=1),
                _signed(mean(known(c.gain_mean for c in mine))),
                _signed(worst),
                wording.percent(worse, decimals=0),
            ]
        )
    titles = ("in %", "silos deploy, accuracy %", "gain over alone", "its worst set", "surely worse off, at most %")
    return markdown(["", *titles], lines, 1)


def _gain(cell: CellSummary | None) -> str:
    if cell is None or cell.gain_mean is None:
        return ""
    worse = cell.worse_share
    return _signed(cell.gain_mean) + (f" ({wording.percent(worse, decimals=0)} worse)" if worse else "")


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def _share(cells: Sequence[CellSummary], name: str) -> str:
    shares = known(getattr(cell, name) for cell in cells)
    return wording.percent(mean(shares), decimals=0) if shares else ""


def block(results: Path, name: str) -> str:
    """The table called `name`."""
    main_part, networks, digits = (rows(results, study) for study in ("main", "networks", "digits"))
    tables = {
        "levels": lambda: levels(main_part),
        "gains": lambda: gains(main_part),
        "judged": lambda: judged(main_part),
        "against": lambda: against(main_part, RECOMMENDED),
        "network-against": lambda: against(networks, "stack, everybody trains, folds"),
        "dealt": lambda: dealt(digits),
        "network-gains": lambda: gains(networks),
        "network-judged": lambda: judged(networks),
        "natural": lambda: headline(main_part),
    }
    return tables[name]()


def write(results: Path, target: Path) -> list[str]:
    pages = [target, target.with_name(BESIDE)]
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), lambda name: block(results, name)), encoding="utf-8")
    return [f"written to {page}" for page in pages]


if __name__ == "__main__":
    main("real_page", f"Write the tables about natural silos into docs/real.md and {BESIDE}.", ["docs/real.md"], write)
