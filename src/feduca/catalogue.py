"""What a recipe may name, with one line each, for `feduca list`. Read from the code, so that it cannot fall behind it."""

from __future__ import annotations

from feduca import config, memory, offers, participation, reporting, utility
from feduca.mechanisms import registry


def _line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def catalogue() -> dict[str, dict[str, str]]:
    """Names by kind, each with the first line of what it does."""
    return {
        "recipes": config.recipes(),
        "mechanisms": registry.describe(),
        "rules": {
            "always": _line(participation.Always),
            "accuracy": _line(participation.AccuracyImproves),
            "utility": _line(participation.UtilityThreshold),
            "never": _line(participation.Never),
            "warm_start": _line(participation.WarmStart),
            "quits": _line(participation.Quits),
        },
        "offers": {
            "global": _line(offers.Global),
            "least-concession": _line(offers.LeastConcession),
            "best-mixture": _line(offers.BestMixture),
        },
        "reporting": {
            "truthful": _line(reporting.Truthful),
            "inflate": _line(reporting.Inflate),
            "understate": _line(reporting.Understate),
            "round, noise": _line(reporting.Blurred),
        },
        "memories": {name: _line(type(m)) for name, m in memory.memories.items()},
        "families": {name: _line(type(f)) for name, f in utility.families.items()},
    }
