"""What a recipe may name, with one line each, for `feduca list`. Read from the code, so that it cannot fall behind it."""

from __future__ import annotations

from feduca.client import offers, participation, registry, reporting, stack
from feduca.core import memory, utility
from feduca.mechanisms import registry as mechanisms
from feduca.recipes import schema as config


def _line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


_OWN_WORDS = {  # names that share their code with another
    "uniform": "Fixed equal weights, FedAvg's, under whatever rule the others have: the control beside every method."
}


STARTERS = ("tailored", "clinics", "quickstart", "real", "table1")  # the first is what we recommend

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


def _natural(name: str) -> str:
    """What a set is about, how many silos it has, and whether its file is here."""
    from feduca.recipes.folders import NATURAL
    from feduca.tasks.data import natural

    found, wanted = natural.place(name), natural.SETS[name]
    where = f"Here: {found}." if found is not None else f"Not here: {wanted.source.remedy}."
    return f"{_line(wanted.read)} {NATURAL[name]} silos. {where}"


def catalogue() -> dict[str, dict[str, str]]:
    """Names by kind, each with the first line of what it does."""
    from feduca.tasks import data as datasets
    from feduca.tasks import models, task
    from feduca.tasks.data import natural
    from feduca.tasks.engines import optimisers  # torch from here on

    there = config.recipes()
    return {
        "recipes": {name: there[name] for name in dict.fromkeys((*STARTERS, *there))},
        "mechanisms": {**mechanisms.describe(), **_OWN_WORDS},
        "rules": {
            "always": _line(participation.Always),
            "accuracy": _line(participation.AccuracyImproves),
            "loss": "Eq. 1 with the loss in place of accuracy: no ties, and no need for many validation examples.",
            "utility": _line(participation.UtilityThreshold),
            "never": _line(participation.Never),
            **registry.rules.describe(),
        },
        "participation options": {
            "participation.warm_start = N": _line(participation.WarmStart).replace("`rounds`", "N"),
            "participation.quits = N": _line(participation.Quits).replace("`rounds`", "N"),
        },
        "what an offer has to beat": {
            "participation.against = current": "The model a silo has now, which earlier offers have shaped.",
            "participation.against = outside": "What it has without the federation, kept alive (outside.kind).",
        },
        "outside options": {
            "private": "A model that trains alone whatever is accepted, every outside.every rounds: up to twice the training.",
            "best-kept": "The best of a silo's own models so far, by its validation data: no second training.",
        },
        "thresholds": {
            "previous-weight": "A silo asks for what its last weight was worth to it, gamma = u(alpha) (Algorithm 1).",
            "local-baseline": "A silo asks for what its curve says of its own model alone, gamma = u(1).",
            "own-accuracy": "A silo asks for what its own model measures on its validation data.",
        },
        "checks of Eq. 2": {
            "fitted": "Last round's curve at the announced weight has to reach the threshold (Algorithm 1).",
            "realised": "The model that came has to reach it on the silo's validation data.",
        },
        "offers": {
            "global": _line(offers.Global),
            "least-concession": _line(offers.LeastConcession),
            "best-mixture": _line(offers.BestMixture),
            "stack": _line(stack.Stack),
            **registry.offers.describe(),
        },
        "reporting": {
            "truthful": _line(reporting.Truthful),
            "inflate": _line(reporting.Inflate),
            "understate": _line(reporting.Understate),
            "round, noise": _line(reporting.Blurred),
        },
        "what decliners tell": {
            "all": "Everything that participants tell but their model.",
            "curve": "Status, curve and threshold; methods that weigh by loss go on with the last ones heard.",
            "silent": "Their status alone.",
        },
        "memories": {name: _line(type(m)) for name, m in memory.memories.items()},
        "families": {name: _line(type(f)) for name, f in utility.families.items()},
        "data sets": {name: f"{_line(load)} Files: {datasets.FILES[name]}." for name, load in datasets.LOADERS.items()},
        "data sets with natural silos": {name: _natural(name) for name in natural.SETS},
        "models": dict(models.ABOUT),
        "optimisers": {name: _OPTIMISERS[name] for name in optimisers.OPTIMISERS},
        "engines": {name: _line(engine) for name, engine in reversed(task.ENGINES.items())},
        "precisions": {name: _PRECISIONS[name] for name in task.PRECISIONS},
    }
