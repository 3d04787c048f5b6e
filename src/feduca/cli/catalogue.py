"""What a recipe may name, with one line each, for `feduca list`. Read from the code, so that it cannot fall behind it."""

from __future__ import annotations

from feduca import config, memory, offers, participation, reporting, utility
from feduca.mechanisms import registry


def _line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


_OWN_WORDS = {  # names that share their code with another
    "uniform": "Fixed equal weights, FedAvg's, under whatever rule the others have: the control beside every method."
}


NOTES = {"data sets": "DIR is task.data_dir, else the folder that FEDUCA_DATA names, else ./data"}

_PRECISIONS = {
    "fp32": "Single precision throughout: the reference.",
    "tf32": "Products of inputs rounded to 10 bits of mantissa; CUDA only.",
    "bf16": "Products in bfloat16, weights and sums in single precision; for GPUs (a CPU leaves its compiled code for it).",
}
_OPTIMISERS = {
    "sgd": "Stochastic gradient descent, with momentum if local.momentum is set: the paper's.",
    "adam": "Adam, anew in every round.",
}


def catalogue() -> dict[str, dict[str, str]]:
    """Names by kind, each with the first line of what it does."""
    from feduca.tasks import datasets, models, optimisers, task  # torch from here on

    return {
        "recipes": config.recipes(),
        "mechanisms": {**registry.describe(), **_OWN_WORDS},
        "rules": {
            "always": _line(participation.Always),
            "accuracy": _line(participation.AccuracyImproves),
            "utility": _line(participation.UtilityThreshold),
            "never": _line(participation.Never),
        },
        "participation options": {
            "participation.warm_start = N": _line(participation.WarmStart).replace("`rounds`", "N"),
            "participation.quits = N": _line(participation.Quits).replace("`rounds`", "N"),
        },
        "thresholds": {
            "previous-weight": "A silo asks for what its last weight was worth to it, gamma = u(alpha) (Algorithm 1).",
            "local-baseline": "A silo asks for what its own model alone is worth to it, gamma = u(1).",
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
        "data sets": {name: f"{_line(load)} Files: {datasets.FILES[name]}." for name, load in datasets.LOADERS.items()},
        "models": dict(models.ABOUT),
        "optimisers": {name: _OPTIMISERS[name] for name in optimisers.OPTIMISERS},
        "engines": {name: _line(engine) for name, engine in reversed(task.ENGINES.items())},
        "precisions": {name: _PRECISIONS[name] for name in task.PRECISIONS},
    }
