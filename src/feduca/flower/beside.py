"""What both sides of the drop-in strategy agree on: the recipe, and how feduca's words travel beside an app's own.

Flower's mods and wrappers look for exactly one record of each kind in a message, so what FedUCA tells a client is one entry of
the app's own configuration, and every reply holds one ArrayRecord, one ConfigRecord (ours) and one MetricRecord.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from feduca.client.personal import Nothing
from feduca.core.messages import alone
from feduca.errors import ConfigError, InputError
from feduca.flower import codec
from feduca.recipes.build import make_mechanism
from feduca.recipes.schema import Recipe, load
from feduca.types import Announcements

Source = Recipe | str | Path | Mapping[str, object]

SMALL = "feduca"  # the entry of a configuration, and the record of a reply, that are FedUCA's
METRICS = "metrics"
APPS_OWN = {  # what a recipe says of these, the app decides
    "rounds": "`start` has num_rounds",
    "seeds": "give seed to FedUCAStrategy and `rational`",
    "task": "the app has its own model and data",
    "local": "`fit` is the local training",
    "engine": "`fit` computes where it likes",
    "checkpoint": "Flower's loop keeps none",
}


def recipe_of(source: Source) -> Recipe:
    """The recipe of an app; what cannot work in one is refused. (An embedded recipe or a file may say more than an app takes.)"""
    if isinstance(source, Mapping):
        for table, why in APPS_OWN.items():
            said = source.get(table)
            if table in source and not (table == "task" and isinstance(said, Mapping) and said.keys() <= {"clients"}):
                raise ConfigError(f"recipe: {table} is {said!r}, but that is the app's to decide ({why}): leave it out")
    chosen = source if isinstance(source, Recipe) else load(source if isinstance(source, Mapping) else str(source))
    chosen = chosen.single()
    personal = getattr(make_mechanism(chosen), "personal", Nothing())
    if not isinstance(personal, Nothing) and getattr(personal, "source", None) != "own":
        raise ConfigError(
            f"mechanism.name is {chosen.mechanism['name']!r}, which trains a second model on every silo in a way that `fit`"
            " cannot be told; use another mechanism (incfl: mechanism.rho = 'own'), or `feduca deploy`"
        )
    if chosen.standing.kind != "off":
        raise ConfigError(
            f"standing.kind is {chosen.standing.kind!r}, and an app's own wrappers and mods change what is sent and read; use"
            " standing.kind = 'off', or `feduca deploy`"
        )
    if chosen.privacy.secure_aggregation:
        raise ConfigError(
            "privacy.secure_aggregation is true, but an app's own clients hold no registered keys to sign those of a round with;"
            " use a deployment (docs/deploy.md), or leave it out"
        )
    if chosen.privacy.dp != "off":
        raise ConfigError(
            f"privacy.dp is {chosen.privacy.dp!r}, but `fit` is the app's own training, whose gradients nobody clips; use"
            " Flower's LocalDpMod around `rational`, or a deployment (docs/deploy.md), or leave it out"
        )
    if chosen.alone:
        raise ConfigError(
            "alone is true, but an app's functions score no untouched data to compare on; leave alone out"
        )
    return chosen


def tell(config: ConfigRecord, asked: Announcements, place: int) -> ConfigRecord:
    """The app's configuration for one client, with what FedUCA announces to it."""
    words = codec.announcement(alone(asked, place), str(place))["announcement"]
    return ConfigRecord({**config, SMALL: json.dumps(dict(words))})  # type: ignore[dict-item, call-overload]


def told(config: ConfigRecord) -> tuple[RecordDict, ConfigRecord]:
    """The inverse of `tell`: our words, and the app's own configuration."""
    own = {name: value for name, value in config.items() if name != SMALL}
    try:
        words = json.loads(str(config[SMALL]))
    except (KeyError, ValueError):
        raise InputError("this message is not from FedUCAStrategy; use that strategy in the ServerApp") from None
    return RecordDict({"announcement": ConfigRecord(words)}), ConfigRecord(own)
