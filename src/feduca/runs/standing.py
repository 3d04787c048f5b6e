"""Where silos stand in the end: better off than alone or not, still in or gone for good, with standing or without; and the
sentences that say so.

"Better off" compares what a silo deploys with the model it would have had alone, on data that no decision ever saw, mean over the
last ten rounds. It is computed here for everybody: a run's summary, a study's, the console and the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from feduca.core.records import WITHOUT, mean
from feduca.core.wording import points, scored
from feduca.runs.lines import columns

LAST = 10  # accuracy is the mean over the last ten rounds, as in the paper
NAMED = 10  # silos that a sentence names

Number = float | None


def short(value: Number) -> Number:
    """Five digits: what a summary keeps."""
    return None if value is None else float(f"{value:.5g}")


def last(clients: Sequence[Mapping[str, Any]], column: str) -> list[Number] | None:
    """A column of the silos' records, one number per silo: its mean over the last ten rounds; None where nothing was recorded."""
    seen = [values for record in clients[-LAST:] if (values := record.get(column)) is not None]
    silos = zip_longest(*seen)  # a silo may have come later
    found = [short(mean([np.nan if value is None else value for value in silo])) for silo in silos]
    return None if all(value is None for value in found) else found


def figures(deployed: Sequence[Sequence[Number]], alone: Sequence[Sequence[Number]]) -> dict[str, float]:
    """Who is better off: silos of all runs together (a row of silos per run), the worst one also as the mean over runs.

    Silos without untouched data are not judged; nothing where there is nobody to judge.
    """
    without = np.array(alone, float)
    gains = np.array(deployed, float) - without
    judged = np.isfinite(gains)
    if not judged.any():
        return {}
    each = gains[judged]
    return {
        "alone_test_mean": float(without[judged].mean()),
        "better_off_share": float((each > 0).mean()),
        "not_worse_share": float((each >= 0).mean()),
        "gain_mean": float(each.mean()),
        "gain_worst": float(each.min()),
        "gain_worst_mean": float(np.mean([row[known].min() for row, known in zip(gains, judged) if known.any()])),
    }


def each(clients: Sequence[Mapping[str, Any]]) -> tuple[list[Number], list[Number]] | None:
    """What every silo deploys and what it would have had alone; None where a run did not record both."""
    deployed, alone = last(clients, "test_deployed"), last(clients, "test_alone")
    return None if deployed is None or alone is None else (deployed, alone)


def gain(deployed: Number, alone: Number) -> Number:
    """Of one silo, where both are known."""
    return None if deployed is None or alone is None else deployed - alone


def summary(clients: Sequence[Mapping[str, Any]], silos: Sequence[str]) -> dict[str, Any]:
    """What the summary of one run says about it; nothing where the models alone were not recorded."""
    found = each(clients)
    said = {} if found is None else figures([found[0]], [found[1]])
    if found is None or not said:
        return {}
    gains = [gain(*pair) for pair in zip(*found)]
    worst = min((k for k, g in enumerate(gains) if g is not None), key=lambda k: gains[k] or 0.0)
    return {
        "alone": said["alone_test_mean"],
        "better_off": said["better_off_share"],
        "gain_mean": said["gain_mean"],
        "gain_worst": said["gain_worst"],
        "gain_worst_silo": _name(worst, silos),
    }


def better_off(clients: Sequence[Mapping[str, Any]], silos: Sequence[str], metric: str = "accuracy") -> str:
    """The same as a sentence; empty where there is nothing to say."""
    found, said = each(clients), summary(clients, silos)
    if found is None or not said:
        return ""
    judged = [g for pair in zip(*found) if (g := gain(*pair)) is not None]
    better, all_of_them = sum(g > 0 for g in judged), len(judged)
    whose = "silos" if all_of_them == len(found[0]) else f"silos with such data (of {len(found[0])})"
    return (
        f"deployed {scored(said['alone'] + said['gain_mean'], metric, unit=' %')} against"
        f" {scored(said['alone'], metric, unit=' %')} alone on"
        f" untouched data: {better} of {all_of_them} {whose} better off, mean {points(said['gain_mean'], metric)}"
        f"{' points' if metric == 'accuracy' else ''}, worst {said['gain_worst_silo']} {points(said['gain_worst'], metric)}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Gone for good


def left(statuses: Iterable[tuple[int, Sequence[str]]]) -> dict[int, int]:
    """Who has left for good, and in which round: from each round's number and statuses (or their first letters)."""
    found: dict[int, int] = {}
    for round, words in statuses:
        for k, word in enumerate(words):
            if word in ("left", "l"):
                found.setdefault(k, round)
    return found


def membership(
    rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], silos: Sequence[str]
) -> dict[str, Any]:
    """What the summary of one run says about it: the share of silos still in, and when others left by their own decision.

    A silo may also be taken out by its operator; the share counts that, too.
    """
    gone = left((record["round"], record["status"]) for record in columns(clients, "round", "status"))
    n = len(clients[-1]["status"]) if clients else 0
    members = rounds[-1].get("members")  # None in records of before there was such a count
    return {
        "still_in": (n - len(gone) if members is None else members) / n if n else None,
        "left": {_name(k, silos): gone[k] for k in sorted(gone)},
    }


def _name(k: int, silos: Sequence[str]) -> str:
    return silos[k] if k < len(silos) else f"silo-{k}"


def departed(gone: Mapping[int, int], silos: Sequence[str]) -> str:
    """Who quit, and when, as a sentence that cannot be read the other way round; empty where nobody did."""
    if not gone:
        return ""
    order = sorted(gone, key=lambda k: (gone[k], k))
    named = ", ".join(f"{_name(k, silos)} (round {gone[k]})" for k in order[:NAMED])
    more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
    said = f"{len(order)} of {len(silos)} silos quit for good: {named}{more}"
    if len(order) < len(silos):
        return said
    return f"{said}; the federation is empty since round {gone[order[-1]]}, and its shared model stands still"


def unheard(clients: Sequence[Mapping[str, Any]], silos: Sequence[str]) -> str:
    """Who has no standing after the last round, and why, as a sentence; empty where all have one, or nobody asks."""
    said = clients[-1].get("advice") if clients else None
    said = said if isinstance(said, list) else []
    found = {k: why for k, text in enumerate(said) if isinstance(text, str) and (why := text.partition(WITHOUT)[2])}
    if not found:
        return ""
    named = "; ".join(f"{_name(k, silos)} ({why})" for k, why in list(found.items())[:NAMED])
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{len(found)} of {len(said)} silos {'has' if len(found) == 1 else 'have'} no standing: {named}{more}"
