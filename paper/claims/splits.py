"""What the paper asks of a split, and what its heat maps show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.csgraph import connected_components

from paper import printed as paper
from paper.claims import look
from paper.claims.compare import FAILS, HOLDS, Difference
from paper.claims.judging import Case, Seen, Summaries, Verdict
from paper.claims.look import DATA, NAMES
from paper.tables import Cell

IMAGES = ("cifar10", "fmnist", "cifar100")
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
    return look.at("splits", data=data, split=split)(summaries)


def _disjoint(data: str) -> Case:
    size = SIZES.get(data)

    def see(summaries: Summaries) -> Verdict:
        found = {
            s: [int(g.sum()) for g in _groups(np.asarray(_split(summaries, data, s)["train"]))] for s in paper.SPLITS
        }
        fits = all(len(g) > 1 and set(g) <= {size or n for n in g} for g in found.values())
        listed = "; ".join(f"{split}: groups of {', '.join(map(str, g))} classes" for split, g in found.items())
        whose = "" if size else "; how many groups there are is our choice"
        return Verdict(HOLDS if fits else FAILS, f"our split, made as the paper describes it: {listed}{whose}")

    sized = {"of": f" of {size}", "each": f", {size} classes each"} if size else {"of": "", "each": ""}
    return Case(see, fill={"data": DATA[data], **sized})


def skew(summaries: Summaries, data: str) -> Seen:
    half, one = (_skew(_split(summaries, data, split)) for split in paper.SPLITS)
    beside = f": mean total variation from even {half:.2f} against {one:.2f}; one draw of each"
    return Seen({"": Difference(half - one, 0.02)}, beside=beside)


def _in_both(about: str, of: Callable[[str], float]) -> Seen:
    """A figure of each split."""
    return Seen({f"{split}:": of(split) for split in paper.SPLITS}, about=about)


def _offers(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    return look.at("offers", study="main", data=data, split=split, method=method)(summaries)


def differ(summaries: Summaries, data: str) -> Seen:
    return _in_both("mean total variation: ", lambda split: _between(_split(summaries, data, split)))


def able(summaries: Summaries, data: str) -> Seen:
    def of(split: str) -> float:
        return look.entry(_offers(summaries, data, split, "local"), "deployed_test_mean")

    return _in_both("trained alone, on untouched data of its own: ", of)


def worthwhile(summaries: Summaries, data: str) -> Seen:
    about = "the shared model with everybody in minus one's own alone, in points: "
    return _in_both(about, lambda split: 100 * look.entry(_offers(summaries, data, split, "forced"), "gain_mean"))


def limited(summaries: Summaries, data: str) -> Seen:
    def of(split: str) -> float:
        alone, forced = (look.accuracy(_offers(summaries, data, split, method)).mean for method in ("local", "forced"))
        return 100 * (forced - alone)

    return _in_both("points that the global model lacks if nobody joins after the first round: ", of)


def not_automatic(summaries: Summaries, data: str) -> Seen:
    most = {}
    for split in paper.SPLITS:
        kept = {method: look.share(look.table(data, split, method)(summaries)) for method in look.BASELINES}
        high = max(kept, key=lambda method: kept[method])
        most[f"{split}: {NAMES[high]}"] = kept[high]
    return Seen(most, about="the most that a baseline keeps: ")


CASES = {"disjoint": [_disjoint(data) for data in IMAGES]}
