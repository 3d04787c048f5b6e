"""What secure aggregation cannot be had with: refused in one line that names the alternative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feduca import mechanisms
from feduca.errors import ConfigError
from feduca.recipes.tables import PrivacyTable

if TYPE_CHECKING:
    from feduca.recipes.schema import Recipe

BOUND = "let silos shorten their own updates: privacy.bound"
# Mechanisms that look at single updates, or whose weights on old ones change every round.
LOOKS = {
    "qfedavg": "weighs silos by the lengths of their updates; use 'afl' or 'term', which need losses alone",
    "scaffold": "keeps a control variate of single updates; use 'fedprox'",
    "feddyn": "keeps a memory of single updates of its own; use 'fedprox'",
    "fedvarp": "weighs old updates anew every round; use 'fedavg', which keeps their weights",
    "mifa": "gives weights of its own to old updates; use 'fedavg' with memory.kind = 'update', which computes the same",
}


def check_secure(recipe: Recipe) -> None:
    """Refuse what would need a single update, and options that nobody asks."""
    p, g, a, defaults = recipe.privacy, recipe.gate, recipe.aggregation, PrivacyTable()
    if not p.secure_aggregation:
        for key in ("least", "bound"):
            if (value := getattr(p, key)) != getattr(defaults, key):
                raise ConfigError(
                    f"privacy.{key} is {value:g} with privacy.secure_aggregation false, which has no use for it; set"
                    " privacy.secure_aggregation = true"
                )
        return
    name = recipe.mechanism["name"]
    refused: list[tuple[bool, str, Any, str]] = [
        (g.on and g.norm > 0, "gate.norm", g.norm, f"set it to 0 and {BOUND}"),
        (g.on and recipe.outlier > 0, "gate.outlier", g.outlier, f"leave it out and {BOUND}"),
        (a.clip > 0, "aggregation.clip", a.clip, f"set it to 0 and {BOUND}"),
        (a.clip_median > 0, "aggregation.clip_median", a.clip_median, f"set it to 0 and {BOUND}"),
        (a.kind != "mean", "aggregation.kind", a.kind, f"use 'mean' and {BOUND}"),
        (recipe.standing.kind != "off", "standing.kind", recipe.standing.kind, "use 'off'"),
        (recipe.memory.kind == "model", "memory.kind", recipe.memory.kind, "use 'update', or 'none'"),
    ]
    for wrong, key, value, instead in refused:
        if wrong:
            raise ConfigError(
                f"{key} is {value!r} with privacy.secure_aggregation, under which the server sees no single update; {instead}"
            )
    if name in LOOKS:
        raise ConfigError(f"mechanism.name is {name!r} with privacy.secure_aggregation: it {LOOKS[name]}")
    if any(hasattr(mechanisms.registry[name], hook) for hook in ("control", "shift")):
        raise ConfigError(
            f"mechanism.name is {name!r} with privacy.secure_aggregation: it has a vector of its own beside the sum; use another"
        )
    if name == "incfl" and (eta := recipe.mechanism.get("eta_g", 1.0)) > 1:
        raise ConfigError(
            f"mechanism.eta_g is {eta:g} with privacy.secure_aggregation, whose weights add up to at most 1; use"
            " aggregation.eta_s, which acts on the sum"
        )
    size = recipe.cohort.size
    if size is not None and size < p.least:
        raise ConfigError(
            f"cohort.size is {size} with privacy.secure_aggregation, which releases nothing of fewer than {p.least} silos"
            f" (privacy.least); ask at least {p.least}"
        )
    clients = recipe.task.clients
    if clients < p.least or clients > 4095:
        raise ConfigError(
            f"task.clients is {clients} with privacy.secure_aggregation, which adds up the updates of {p.least} (privacy.least)"
            " to 4095 silos; change task.clients, or use privacy.secure_aggregation = false"
        )
