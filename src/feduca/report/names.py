"""What runs are called: as in the terminal where a recipe's table has a row for them, else by their mechanism and rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from feduca.errors import InputError
from feduca.report.reading import Run

MECHANISMS = {"feduca": "FedUCA", "fedavg": "FedAvg", "uniform": "uniform weights", "random": "random weights"}
RULES = {"accuracy": "Eq. 1", "utility": "Eq. 2", "always": "everybody forced in", "never": "everybody alone"}
OFFERS = {
    "least-concession": "least concession",
    "best-mixture": "best mixture",
    "stack": "stack of models",
}
LABEL, SETTING = 300, 60  # characters of a run's name, and of a setting in it
KINDS = ("mechanism.name", "participation.rule", "offer.kind")  # a row that differs in one of these is another method


def labels(runs: Sequence[Run]) -> list[str]:
    """One name per run: its row's or its method's, then whatever else tells the runs apart. Seeds do not: they form a band.

    Runs of one name are shown as seeds of one method, so what is configured otherwise must have another name.
    """
    flat = [_flat({k: v for k, v in run.config.items() if k not in ("name", "seeds", "compare")}) for run in runs]
    bases = [_row(run) or _method(run) for run in runs]
    shown = {"mechanism.name", "participation.rule", "participation.warm_start", "offer.kind"}
    keys = [_differ(base, bases, flat) - shown for base in bases]
    said = _said(flat, set().union(*keys))
    short = [_told(*one, set()) for one in zip(bases, said, keys)]
    # Three settings may not be enough: what tells namesakes apart comes first then, where a legend does not cut it off.
    names = [_told(base, own, some, _differ(s, short, flat)) for base, own, some, s in zip(bases, said, keys, short)]
    kinds = [frozenset(config.items()) for config in flat]
    return [_numbered(name, names, kind, kinds) for name, kind in zip(names, kinds)]


def _differ(name: str, names: Sequence[str], flat: Sequence[Mapping[str, str]]) -> set[str]:
    """The settings in which runs of one name differ."""
    alike = [config for other, config in zip(names, flat) if other == name]
    return {key for key in set().union(*alike) if len({config.get(key) for config in alike}) > 1}


def _said(flat: Sequence[Mapping[str, str]], keys: set[str]) -> list[dict[str, str]]:
    """What each run's settings that tell runs apart are called: by the last word, with the table where two share that.

    A run of own data has none of the settings of a data set: the fingerprint of its data stands for them.
    """
    words = Counter(key.rpartition(".")[2] for key in keys)
    several = len({config["own"] for config in flat if "own" in config}) > 1
    found = []
    for config in flat:
        said = {}
        for key in keys:
            word = key.rpartition(".")[2]
            said[key] = f"{key if words[word] > 1 else word} = {config.get(key, 'unset')}"
            if key == "own":
                said[key] = f"own data{f' {config[key][:6]}' * several}" if key in config else ""
            elif key.startswith("task.") and "own" in config and key not in config:
                said[key] = ""
        found.append(said)
    return found


def _told(base: str, said: Mapping[str, str], keys: set[str], first: set[str]) -> str:
    """A name with some of these settings: all of those that come `first`, of others as many as make three."""
    order = [*sorted(first), *sorted(keys - first)]
    extra = [said[key][:SETTING] for key in order if said[key]]
    most = max(3, len(first))
    return ", ".join([base, *extra[:most], *(["and more"] if len(extra) > most else [])])[:LABEL]


def _numbered(name: str, names: Sequence[str], kind: frozenset, kinds: Sequence[frozenset]) -> str:
    """With a number where other configurations have the name, too: values may differ in what does not fit it."""
    namesakes = list(dict.fromkeys(other for own, other in zip(names, kinds) if own == name))
    return name if len(namesakes) == 1 else f"{namesakes.index(kind) + 1}: {name}"


def _method(run: Run) -> str:
    mechanism, rule, warm, offer = (
        run.setting("mechanism", "name", "?"),
        run.setting("participation", "rule", "?"),
        run.setting("participation", "warm_start", "0"),
        run.setting("offer", "kind", "global"),
    )
    parts = [MECHANISMS.get(mechanism, mechanism), "everybody trains along" if run.chosen else RULES.get(rule, rule)]
    if warm not in ("0", ""):
        parts.append(f"warm start {warm}")
    if offer not in ("global", ""):
        parts.append(OFFERS.get(offer, offer))
    return ", ".join(parts)


def _row(run: Run) -> str:
    """The row of its recipe's table that a run is, named as `feduca compare` names it; empty where it is none.

    A row is what some rows set. A run that differs from the nearest row in one such entry, no matter of its method, has the
    entry said after the name, as `feduca compare --set` does.
    """
    own = _flat(run.config)
    best: tuple[int, str] = (2, "")
    for label, entries in _table(run.name):
        other = [key for key, value in entries.items() if own.get(key, value) != value]
        if len(other) < best[0] and not any(key in KINDS for key in other):
            best = (len(other), ", ".join([label, *(f"{key}={own[key]}"[:SETTING] for key in other)]))
    return best[1]


@cache
def _table(name: str) -> list[tuple[str, dict[str, str]]]:
    """The rows of an embedded recipe's table: each row's label, and its value of every entry that some row sets."""
    from feduca.recipes.schema import load
    from feduca.recipes.source import recipes
    from feduca.studies.cells import cells

    if name not in recipes():
        return []
    try:
        rows = cells(recipe := load(name))
    except InputError:
        return []
    if not recipe.compare and not recipe.axes:
        return []
    flat = [_flat(row.recipe.plain()) for row in rows]
    by = {f"{key}." for one in (*recipe.compare, *(v for axis in recipe.axes for v in axis.values)) for key in one.set}
    about = sorted(key for key in set().union(*flat) if any(f"{key}.".startswith(start) for start in by))
    return [(row.label, {key: one[key] for key in about if key in one}) for row, one in zip(rows, flat)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = str(value)
    return out
