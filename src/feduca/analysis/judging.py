"""Who is better off than alone, judged with errors: paired tests on data that no decision saw.

What a silo deploys and the model it would have had alone answer the same untouched examples. Of these answers only sums leave the
silo (`Paired`). Accuracy is judged by McNemar's exact test on the examples that one model alone got right, log-loss by a paired
t-test on the differences. Runs over several seeds are pooled; p-values are corrected for the number of silos (Holm 1979).

    better, worse   significant at 5 % after the correction
    same            not significant, and the 95 % interval of the difference lies within 5 points (0.05 of log-loss)
    undecided       neither: too few examples to say, which is not the same as "no worse"

Untouched parts of several splits overlap. With a share q of a silo's examples in each of J parts, an example that is in one is in
1 + (J - 1) q of them on average. Counts are divided by that, as if the repeated answers were no news: conservative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from feduca.types import Floats

LEVEL = 0.05
MARGIN = 0.05  # of accuracy, or of log-loss: below it a difference does not matter here
VERDICTS = ("better", "worse", "same", "undecided")
ABSURD = 1e12  # no count and no loss is that large
SHARES = tuple(f"{by}{verdict}_share" for by in ("", "loss_") for verdict in VERDICTS)
FIGURES = frozenset((*SHARES, "loss_gain_mean", "loss_gain_worst"))  # what a summary may say
COLUMNS = ("examples", "gained", "lost", "loss_gain", "loss_variance")


@dataclass(frozen=True)
class Paired:
    """Silos' answers with what they deploy against those alone, `[N]` each."""

    examples: Floats
    gained: Floats  # answered correctly only by what the silo deploys
    lost: Floats  # ... only alone
    loss_gain: Floats  # mean loss alone minus deployed
    loss_variance: Floats  # of that difference, over the examples

    @staticmethod
    def of(columns: Mapping[str, Any]) -> Paired:
        """From a record's columns; NaN where a silo said nothing, or what cannot be."""
        found = np.array([np.array(columns[name], float) for name in COLUMNS])
        possible = (np.nan_to_num(found[[0, 1, 2, 4]]) >= 0).all(0) & (np.abs(np.nan_to_num(found)) < ABSURD).all(0)
        possible &= found[0] >= np.nan_to_num(found[1] + found[2])
        examples, gained, lost, gain, variance = np.where(possible, found, np.nan)
        return Paired(examples, gained, lost, gain, variance)

    def columns(self) -> dict[str, list[float | None]]:
        """As a record or a summary keeps them."""
        return {name: [None if np.isnan(v) else float(f"{v:.5g}") for v in getattr(self, name)] for name in COLUMNS}


@dataclass(frozen=True)
class Judged:
    """Per silo: what it gains, the corrected p-value, and the verdict ("" where it has no untouched data)."""

    gain: Floats
    p: Floats
    verdicts: tuple[str, ...]

    def share(self, verdict: str) -> float | None:
        """The share of silos with that verdict, among those judged."""
        said = [one for one in self.verdicts if one]
        return said.count(verdict) / len(said) if said else None


def pooled(runs: Sequence[Paired], overlap: float = 1.0) -> Paired:
    """Several runs as one: counts summed and divided by `overlap`, the variance over all examples of all runs."""
    counts = {name: np.array([getattr(run, name) for run in runs]) for name in COLUMNS}
    n = np.nansum(counts["examples"], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.nansum(counts["examples"] * counts["loss_gain"], 0) / n
        around = counts["loss_variance"] + (counts["loss_gain"] - gain) ** 2
        variance = np.nansum(counts["examples"] * around, 0) / n

    def total(name: str) -> Floats:
        return np.where(np.isnan(counts[name]).all(0), np.nan, np.nansum(counts[name], 0) / overlap)

    return Paired(total("examples"), total("gained"), total("lost"), gain, variance)


def overlap(runs: int, share: float) -> float:
    """How many of `runs` untouched parts an example is in that is in one, each having this share of a silo's examples."""
    return 1 + (runs - 1) * share


def poolable(
    ends: Sequence[Mapping[str, Any] | None], task: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], float] | None:
    """The last records' columns `paired` of runs over several seeds, and their overlap under the recipe's `[task]`.

    None where a run has none, or has other silos.
    """
    columns = [one for one in ends if one is not None]
    if not columns or len(columns) < len(ends) or len({len(one["examples"]) for one in columns}) > 1:
        return None
    again = "test_share" not in task or task.get("split_seed") is not None  # every run has the same untouched parts
    return columns, overlap(len(columns), 1.0 if again else task["validation_share"] * task["test_share"])


def accuracy(seen: Paired) -> Judged:
    """McNemar's exact test; the interval is Agresti and Min's (2005), which half an example in each cell makes cautious."""
    n, b, c = seen.examples, seen.gained, seen.lost
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = (b - c) / n
        centre = (b - c) / (n + 2)
        error = np.sqrt(np.maximum(0, (b + c + 1) - (b - c) ** 2 / (n + 2))) / (n + 2)
    more, all_of_them = np.maximum(b, c), b + c
    # P(X >= more) for X ~ Binomial(b + c, 1/2), also for counts that were divided by an overlap.
    p = np.minimum(1, 2 * special.betainc(np.maximum(more, 1e-12), all_of_them - more + 1, 0.5))
    return _judged(
        gain, np.where(all_of_them > 0, p, 1), centre, stats.norm.ppf(1 - LEVEL / 2) * error, _identical(seen)
    )


def log_loss(seen: Paired) -> Judged:
    """A paired t-test on the mean difference in loss."""
    n, gain = seen.examples, seen.loss_gain
    df = np.maximum(n - 1, 1e-9)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(seen.loss_variance / df)  # the variance is over n, its estimate over n - 1
        t = np.where(error > 0, gain / error, 0.0)
    p = np.where(n > 1, 2 * stats.t.sf(np.abs(t), df), 1.0)
    half = np.where(n > 1, stats.t.ppf(1 - LEVEL / 2, df) * error, np.inf)
    return _judged(gain, p, gain, half, _identical(seen))


def _identical(seen: Paired) -> Floats:
    """Where both models answer everything alike, to the digit: one and the same model."""
    return (seen.gained + seen.lost == 0) & (seen.loss_gain == 0) & (seen.loss_variance == 0)


def _judged(gain: Floats, p: Floats, centre: Floats, half: Floats, identical: Floats) -> Judged:
    known = np.isfinite(gain)
    corrected = np.full(len(gain), np.nan)
    corrected[known] = holm(p[known])
    small = identical | ((centre - half > -MARGIN) & (centre + half < MARGIN))
    words = []
    for k in range(len(gain)):
        if not known[k]:
            words.append("")
        elif corrected[k] < LEVEL:
            words.append("better" if gain[k] > 0 else "worse")
        else:
            words.append("same" if small[k] else "undecided")
    return Judged(gain, corrected, tuple(words))


def holm(p: Floats) -> Floats:
    """p-values corrected for being many (Holm 1979): the k-th smallest of m times m - k + 1, never below a smaller one's."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    out = np.empty(len(p))
    out[order] = scaled
    return out


def figures(runs: Sequence[Mapping[str, Any]], parts: float = 1.0) -> dict[str, Any]:
    """What a summary says of silos' columns `paired` in one or several runs; nothing where nobody is judged."""
    seen = pooled([Paired.of(run) for run in runs], parts)
    by_accuracy, by_loss = accuracy(seen), log_loss(seen)
    if not any(by_loss.verdicts):
        return {}
    shares = [judged.share(verdict) for judged in (by_accuracy, by_loss) for verdict in VERDICTS]
    return {
        **dict(zip(SHARES, shares)),
        "loss_gain_mean": float(np.nanmean(by_loss.gain)),
        "loss_gain_worst": float(np.nanmin(by_loss.gain)),
    }
