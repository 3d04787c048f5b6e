"""Every option of the server reaches a simulation and the drop-in strategy alike, or is refused in one line."""

from __future__ import annotations

import typing
from dataclasses import replace

import pytest
from pydantic import BaseModel

from feduca.core.rounds import Server
from feduca.errors import ConfigError, InputError
from feduca.flower import FedUCAStrategy
from feduca.mechanisms import registry
from feduca.recipes.build import make_mechanism, make_server
from feduca.recipes.schema import Recipe, load
from needed import needed

COMPANIONS = {  # without which an option means nothing
    "offer": {"offer": {"kind": "least-concession"}},
    "participation.confidence": {"participation": {"rule": "accuracy"}},
}
APPS_OWN = {"rounds", "seeds", "local", "task", "engine", "checkpoint"}
DOES_NOTHING = {"name", "compare", "axes", "smoke", "study", "also", "own", "mechanism"}


def others(annotation: object, now: object) -> list[object]:
    """Values an option might have instead of this one."""
    if typing.get_origin(annotation) is typing.Literal:
        return [value for value in typing.get_args(annotation) if value != now]
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int | float):
        return [now + 1, now / 2 + 0.125, 1, 0.125]
    return {"family": ["power", "log", "exponential", "quadratic"]}.get(str(annotation), [])


def changed() -> list[tuple[str, dict]]:
    """Every option of every table with another value that a recipe accepts, as trees."""
    found = []
    for table, field in Recipe.model_fields.items():
        if table in DOES_NOTHING:
            continue
        now = field.get_default(call_default_factory=True)
        inner = type(now).model_fields if isinstance(now, BaseModel) else {"": field}
        for key, option in inner.items():
            name = f"{table}.{key}".rstrip(".")
            value = getattr(now, key) if key else now
            for other in others(option.annotation, value):
                base = COMPANIONS.get(name, COMPANIONS.get(table, {}))
                tree = {**base, table: {**base.get(table, {}), key: other} if key else other}
                try:
                    load(tree)
                except ConfigError:
                    continue
                found.append((name, tree))
                break
    return found


def like_for_like(server: Server) -> Server:
    """Without what the app decides (how many rounds) and what names the run."""
    return replace(server, run="", rounds=0, parameters=None)


CHANGED = changed()


def of_the_server() -> set[str]:
    """The options that change the server a simulation builds."""
    seen = set()
    for name, tree in CHANGED:
        base = {table: COMPANIONS.get(name, COMPANIONS.get(table, {})).get(table, {}) for table in tree}
        plain = load({k: v for k, v in base.items() if v})
        if replace(make_server(load(tree), 0), run="") != replace(make_server(plain, 0), run=""):
            seen.add(name)
    return seen


def test_the_walk_finds_what_a_server_has():
    assert of_the_server() >= {
        "rounds", "local.lr", "local.lr_decay", "memory.kind", "utility.metric", "participation.threshold",
        "aggregation.kind", "aggregation.trim", "aggregation.clip", "aggregation.clip_median", "aggregation.eta_s",
        "gate.on", "gate.norm", "gate.plausible", "gate.plausible_tolerance", "gate.plausible_window",
        "reporting.round", "reporting.noise",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "tree"), CHANGED, ids=[name for name, _ in CHANGED])
def test_every_option_reaches_the_strategy_or_is_refused(name, tree):
    if name.partition(".")[0] in APPS_OWN and name != "task.clients":
        with pytest.raises(ConfigError, match="the app's to decide"):
            FedUCAStrategy(tree)
    elif name == "standing.kind":
        with pytest.raises(ConfigError, match=r"standing\.kind is 'work', and an app's own wrappers and mods"):
            FedUCAStrategy(tree)
    elif name == "alone":
        with pytest.raises(ConfigError, match="leave alone out"):
            FedUCAStrategy(tree)
    elif name == "privacy.secure_aggregation":
        with pytest.raises(ConfigError, match="hold no registered keys"):
            FedUCAStrategy(tree)
    else:
        assert like_for_like(FedUCAStrategy(tree)._server) == like_for_like(make_server(load(tree), 0))


@pytest.mark.parametrize("name", sorted(registry))
def test_mechanisms_that_train_a_second_model_are_refused(name):
    tree = {**needed(name), "mechanism": {"name": name}}
    mechanism = make_mechanism(load(tree))
    if getattr(mechanism, "personal", None) is None:
        assert FedUCAStrategy(tree)._server.mechanism == mechanism
    else:
        with pytest.raises(InputError, match=f"mechanism.name is '{name}', which trains a second model"):
            FedUCAStrategy(tree)


def test_incfl_without_a_second_model_works():
    assert FedUCAStrategy({"mechanism": {"name": "incfl", "rho": "own"}})
