"""Under which other readings of the paper a claim that fails was tried, and whether it holds under one.

The confirmation on CIFAR-10 (`feduca reproduce readings`, parts cifar10 and cifar10-mixtures) has FedUCA's cells under other
readings. For each reading the claims are judged again as if those cells were ours: CIFAR-10 alone, baselines and controls as
they are. A claim counts as tried if its verdict rests on FedUCA's cells, and not for want of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paper.claims.compare import DIRECTION, FAILS, HOLDS, NONE, UNDER, UNTESTED
from paper.claims.judging import Claim, Summaries, Verdict
from paper.tables import Cell

PARTS = ("cifar10", "cifar10-mixtures")
MAIN = "0.5,1.0"
APART = 1000  # added to seeds: theirs share a split, so that they are no pairs with the seeds of other tables

_DELTAS = {f"delta = {delta}": delta for delta in ("0.01", "0.1", "1", "10", "100", "1000")} | {"default": "0.5"}
_STRATEGIES = {"n_s = 1": "1", "default": "5", "n_s = 10": "10"}
_INFLATED = {"default": "0", "inflated by 5 %": "5", "inflated by 10 %": "10"}


def tried(summaries: Summaries) -> dict[str, tuple[Summaries, Summaries]]:
    """By reading: the summaries as if its cells were ours, and the same without FedUCA's cells. Empty until it was run."""
    found: dict[str, list[Cell]] = {}
    for cell in summaries.get("readings", ()):
        if cell["labels"]["study"] in PARTS:
            name = ", ".join(v for k, v in cell["labels"].items() if k not in ("study", "split", "cell"))
            found.setdefault(name, []).append(cell)
    beside = [c for c in summaries.get("table1", ()) if c["data"] == "cifar10" and c["mechanism"] != "feduca"]
    return {name: ({**_ours(cells), "table1": [*beside, *_columns(cells)]}, {"table1": beside})
            for name, cells in found.items()}  # fmt: skip


def with_readings(claim: Claim, summaries: Summaries, others: Mapping[str, tuple[Summaries, Summaries]]) -> Verdict:
    """A claim's verdict; where it fails, also what it is under other readings."""
    verdict = claim.judge(summaries)
    if verdict.word != FAILS:
        return verdict
    words = {name: found.word for name, pair in others.items() if (found := _under(claim, *pair)) is not None}
    if not words:
        return verdict
    holds = [name for name, word in words.items() if word == HOLDS]
    partly = [name for name, word in words.items() if word == DIRECTION]
    said = f"; in direction under {'; '.join(partly)}" if partly else ""
    if holds:
        return Verdict(UNDER, f"{verdict.why}; holds under {' and under '.join(holds)}{said}")
    return Verdict(NONE, f"{verdict.why}; tried under {' and under '.join(words)}{said}")


def _under(claim: Claim, theirs: Summaries, without: Summaries) -> Verdict | None:
    """The verdict under a reading; None where the claim asks nothing of the reading's cells, or asks for more."""
    found = claim.judge(theirs)
    return None if found.word == UNTESTED or found == claim.judge(without) else found


def _ours(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """A reading's cells of the main split in the places that the studies have them."""
    by = {c["labels"]["cell"]: c for c in cells if c["labels"]["split"] == MAIN}

    def placed(labels: Mapping[str, str], axis: str, **more: str) -> list[Cell]:
        return [_as(by[cell], {axis: label, **more}) for cell, label in labels.items() if cell in by]

    return {
        "delta": placed(_DELTAS, "delta"),
        "strategies": placed(_STRATEGIES, "n_s", data="cifar10", schedule="lagged"),
        "misreporting": placed(_INFLATED, "inflation"),
    }


def _columns(cells: Sequence[Cell]) -> list[Cell]:
    """A reading's default cells as FedUCA's columns of the table of accuracies."""
    defaults = [c for c in cells if c["labels"]["cell"] == "default"]
    return [_as(c, {"data": "cifar10", "split": c["split"], "method": "feduca"}) for c in defaults]


def _as(cell: Cell, labels: Mapping[str, str]) -> Cell:
    """A cell in another place, whose seeds are nobody else's."""
    return {**cell, "method": "feduca", "labels": dict(labels), "seeds": [seed + APART for seed in cell["seeds"]]}
