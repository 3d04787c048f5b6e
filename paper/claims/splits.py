"""What the paper asks of a split, and what its heat maps show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.csgraph import connected_components

from paper import printed as paper
from paper.claims import look
from paper.claims.compare import FAILS, HOLDS, Difference
from paper.claims.judging import Seen, Summaries, Verdict
from paper.claims.look import NAMES
from paper.tables import Cell

SIZES = {"cifar100": 20}  # classes of a client, where the paper says how many


def _groups(counts: np.ndarray) -> list[np.ndarray]:
    """The sets of classes that silos share, as masks: those of silos with a class in common are joined."""
    has = (counts > 0).astype(int)
    n, labels = connected_components(has.T @ has, directed=False)
    held = has.any(axis=0)
    return [mask for k in range(n) if (mask := (labels == k) & held).any()]


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """Total variation: the share of examples that would have to change class."""
    return float(np.abs(first - second).sum() / 2)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / max(1, counts.sum())  # an empty silo has none of anything


def _skew(cell: Cell) -> float:
    """How far silos are from holding the classes of their group equally, mean total variation."""
    counts = np.asarray(cell["train"])
    groups = _groups(counts)
    found = []
    for silo in counts[counts.any(axis=1)]:
        own = next(group for group in groups if silo[group].any())
        found.append(_distance(_shares(silo), own / own.sum()))
    return float(np.mean(found)) if found else 0.0


def _between(cell: Cell) -> float:
    """Mean total variation between a silo's training and validation classes."""
    pairs = zip(np.asarray(cell["train"]), np.asarray(cell["validation"]))
    return float(np.mean([_distance(_shares(a), _shares(b)) for a, b in pairs]))


def _split(summaries: Summaries, data: str, split: str) -> Cell:
    return look.need(summaries, "splits", data=data, split=split)


def disjoint(summaries: Summaries, data: str) -> Verdict:
    """Several groups, of as many classes as the paper says where it does."""
    size = SIZES.get(data)
    found = {
        split: [int(group.sum()) for group in _groups(np.asarray(_split(summaries, data, split)["train"]))]
        for split in paper.SPLITS
    }
    fits = all(len(groups) > 1 and set(groups) <= {size or n for n in groups} for groups in found.values())
    listed = "; ".join(f"{split}: groups of {', '.join(map(str, groups))} classes" for split, groups in found.items())
    whose = "" if size else "; how many groups there are is our choice"
    return Verdict(HOLDS if fits else FAILS, f"our split, made as the paper describes it: {listed}{whose}")


def skew(summaries: Summaries, data: str) -> Seen:
    half, one = (_skew(_split(summaries, data, split)) for split in paper.SPLITS)
    behind = f": mean total variation from even {half:.2f} against {one:.2f}; one draw of each"
    return Seen(Difference(half - one, 0.02), behind=behind)


def _in_both(of: Callable[[str], float]) -> dict[str, float]:
    """A figure of each split."""
    return {f"{split}:": of(split) for split in paper.SPLITS}


def _offers(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    return look.need(summaries, "offers", study="main", data=data, split=split, method=method)


def differ(summaries: Summaries, data: str) -> dict[str, float]:
    return _in_both(lambda split: _between(_split(summaries, data, split)))


def able(summaries: Summaries, data: str) -> dict[str, float]:
    return _in_both(lambda split: look.entry(_offers(summaries, data, split, "local"), "deployed_test_mean"))


def worthwhile(summaries: Summaries, data: str) -> dict[str, float]:
    return _in_both(lambda split: 100 * look.entry(_offers(summaries, data, split, "forced"), "gain_mean"))


def limited(summaries: Summaries, data: str) -> dict[str, float]:
    def lacks(split: str) -> float:
        alone, forced = (look.accuracy(_offers(summaries, data, split, method)).mean for method in ("local", "forced"))
        return 100 * (forced - alone)

    return _in_both(lacks)


def not_automatic(summaries: Summaries, data: str) -> dict[str, float]:
    most = {}
    for split in paper.SPLITS:
        kept = {method: look.share(look.table(summaries, data, split, method)) for method in look.BASELINES}
        high = max(kept, key=lambda method: kept[method])
        most[f"{split}: {NAMES[high]}"] = kept[high]
    return most


def _sized(data: str) -> dict[str, str]:
    size = SIZES.get(data)
    return {"of": f" of {size}", "each": f", {size} classes each"} if size else {"of": "", "each": ""}


WORDS = {"disjoint": _sized}
