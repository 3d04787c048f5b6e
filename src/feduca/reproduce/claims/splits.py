"""What the paper asks of a split, and what its heat maps show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    BASELINES,
    DATA,
    FAILS,
    HOLDS,
    NAMES,
    UNDECIDED,
    Cell,
    Claim,
    Summaries,
    Verdict,
    accuracy,
    entry,
    from_runs,
    need,
    pct,
    points,
    share,
    table,
)

WHERE = "Appendix, data preparation"
IMAGES = ("cifar10", "fmnist", "cifar100")
SIZES = {"cifar100": 20}  # classes of a client, where the paper says how many

Counts = Sequence[Sequence[int]]


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / max(1, sum(counts)) for count in counts]  # an empty silo has none of anything


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Total variation: the share of examples that would have to change class."""
    return sum(abs(a - b) for a, b in zip(first, second)) / 2


def _groups(counts: Counts) -> list[set[int]]:
    """The sets of classes that silos share: those of silos with a class in common are joined."""
    groups: list[set[int]] = []
    for silo in counts:
        own = {label for label, count in enumerate(silo) if count}
        joined = [group for group in groups if group & own]
        groups = [group for group in groups if not group & own] + [own.union(*joined)]
    return groups


def _skew(counts: Counts) -> float:
    """How far silos are from holding the classes of their group equally, mean total variation."""
    groups = _groups(counts)
    found = []
    for silo in counts:
        if not any(silo):
            continue
        own = next(group for group in groups if any(silo[label] for label in group))
        even = [1 / len(own) if label in own else 0.0 for label in range(len(silo))]
        found.append(_distance(_shares(silo), even))
    return statistics.fmean(found) if found else 0.0


def _split(summaries: Summaries, data: str, split: str) -> Cell:
    return need(summaries, "splits", data=data, split=split)


def _disjoint(data: str) -> Claim:
    size = SIZES.get(data)

    def judge(summaries: Summaries) -> Verdict:
        found = {split: _groups(_split(summaries, data, split)["train"]) for split in paper.SPLITS}
        fits = all(len(g) > 1 and all(len(s) == (size or len(s)) for s in g) for g in found.values())
        listed = "; ".join(
            f"{split}: groups of {', '.join(str(len(s)) for s in g)} classes" for split, g in found.items()
        )
        whose = "" if size else "; how many groups there are is our choice"
        return Verdict(HOLDS if fits else FAILS, f"our split, made as the paper describes it: {listed}{whose}")

    text = f"clients of {DATA[data]} hold disjoint sets of classes" + (f" of {size}" if size else "")
    several = "several groups of silos without a common class" + (f", {size} classes each" if size else "")
    return from_runs(WHERE, text, f"{several}, in both splits", judge)


def _differ(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        found = {}
        for split in paper.SPLITS:
            cell = _split(summaries, data, split)
            pairs = zip(cell["train"], cell["validation"])
            found[split] = statistics.fmean(_distance(_shares(a), _shares(b)) for a, b in pairs)
        word = HOLDS if all(value >= 0.1 for value in found.values()) else FAILS
        return Verdict(word, "mean total variation: " + ", ".join(f"{s}: {value:.2f}" for s, value in found.items()))

    text = f"training and validation data of a client are distributed differently on {DATA[data]}"
    return from_runs(
        WHERE,
        text,
        "mean total variation of their classes at least .1 (our measure), in both splits",
        judge,
    )


def _more_skewed(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        half, one = (_skew(_split(summaries, data, split)["train"]) for split in paper.SPLITS)
        word = HOLDS if half > one + 0.02 else FAILS if one > half + 0.02 else UNDECIDED
        return Verdict(word, f"mean total variation from even: {half:.2f} against {one:.2f}; one draw of each")

    text = f"training data are less even at concentration .5 than at 1 on {DATA[data]}"
    return from_runs("Appendix, heat maps", text, "larger by .02 or more; undecided within .02", judge)


def _not_automatic(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        words, fine = [], True
        for split in paper.SPLITS:
            kept = {m: share(table(summaries, data, split, m)) for m in BASELINES}
            low, high = min(kept, key=lambda m: kept[m]), max(kept, key=lambda m: kept[m])
            fine = fine and kept[high] < 0.9
            words.append(f"{split}: {pct(kept[low])} ({NAMES[low]}) to {pct(kept[high])} ({NAMES[high]})")
        return Verdict(HOLDS if fine else FAILS, "; ".join(words))

    text = f"clients do not participate whatever the method is on {DATA[data]}"
    return from_runs(WHERE, text, "every method under Eq. 1 keeps fewer than 90 % (our measure), in both splits", judge)


def _offers(summaries: Summaries, data: str, split: str, method: str) -> Cell:
    return need(summaries, "offers", study="main", data=data, split=split, method=method)


def _able(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        alone = {s: entry(_offers(summaries, data, s, "local"), "deployed_test_mean") for s in paper.SPLITS}
        word = HOLDS if all(value >= 0.5 for value in alone.values()) else FAILS
        listed = ", ".join(f"{split}: {pct(value)}" for split, value in alone.items())
        return Verdict(word, f"trained alone, on untouched data of its own: {listed}")

    text = f"a client alone trains a reasonable model on {DATA[data]}"
    return from_runs(WHERE, text, "at least half right on its own untouched data (our measure), in both splits", judge)


def _worthwhile(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        gains = {s: entry(_offers(summaries, data, s, "forced"), "gain_mean") for s in paper.SPLITS}
        word = HOLDS if all(value > 0.01 for value in gains.values()) else FAILS
        listed = ", ".join(f"{split}: {points(value)}" for split, value in gains.items())
        return Verdict(word, f"the shared model with everybody in, against one's own alone: {listed}")

    text = f"clients have something to gain from the federation on {DATA[data]}"
    return from_runs(
        WHERE, text, "a mean gain above a point (our measure) on untouched data of their own, in both splits", judge
    )


def _limited(data: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        found = {}
        for split in paper.SPLITS:
            alone = accuracy(_offers(summaries, data, split, "local")).mean
            found[split] = (alone, accuracy(_offers(summaries, data, split, "forced")).mean)
        word = HOLDS if all(forced - alone > 0.1 for alone, forced in found.values()) else FAILS
        listed = ", ".join(f"{split}: {pct(a)} against {pct(f)}" for split, (a, f) in found.items())
        return Verdict(word, f"global model if nobody joins after the first round, against everybody: {listed}")

    text = f"if clients keep to themselves the server's model is poor on {DATA[data]}"
    return from_runs(WHERE, text, "more than 10 points (our measure) below everybody forced in, in both splits", judge)


CLAIMS = [
    *(_disjoint(data) for data in IMAGES),
    *(_more_skewed(data) for data in IMAGES),
    *(_differ(data) for data in IMAGES),
    *(_able(data) for data in ("cifar10", "fmnist")),
    *(_worthwhile(data) for data in ("cifar10", "fmnist")),
    *(_limited(data) for data in ("cifar10", "fmnist")),
    *(_not_automatic(data) for data in IMAGES),
]
