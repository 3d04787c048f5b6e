"""The model that a silo may deploy now: kept on its disk with every decision, and exported from there. Nobody else is asked.

FOLDER/deployed.safetensors holds what it chose in its last round (its own, the offer it took, or the models of a mixture with
their weights), named as PyTorch names it, and in its header what it is and how it scored on this silo's data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from feduca._version import __version__
from feduca.client.decision import Choice
from feduca.core.records import plain
from feduca.errors import InputError
from feduca.flower.store import SiloStore
from feduca.recipes.schema import Recipe
from feduca.report.export import SCHEMA, Exported, architecture_of, load_exported, named, write_models
from feduca.runs import files
from feduca.runs.directory import without_none
from feduca.types import Announcements, Task

FILE = "deployed.safetensors"
WHAT = {"own": "its own model", "offer": "the offer it took", "mixture": "a mixture of several models' outputs"}


def keep(store: SiloStore, recipe: Recipe, task: Task, name: str, asked: Announcements, choice: Choice) -> None:
    """Write what the silo deploys from now on; whole or not at all."""
    from safetensors.numpy import save

    models, weights = _models(task, choice)
    uses = bool(choice.uses[0])
    what = "mixture" if weights else "offer" if uses else "own"
    own = {"accuracy": choice.own_scores.accuracy[0], "loss": choice.own_scores.loss[0]}
    judged = {"accuracy": choice.judged.accuracy[0], "loss": choice.judged.loss[0]}
    about = getattr(task, "describe", dict)()
    card = plain(
        {
            "silo": name,
            "run": asked.run,
            "round": asked.round,
            "what": what,
            "reason": choice.reason[0],
            "validation": {"deployed": judged if uses else own, "own": own, "offered": judged},
            "weights": weights,
            "config_hash": recipe.hash(),
            "seed": recipe.seeds[0],
            "config": without_none(recipe.plain()),
            "name": recipe.name,
            "share": recipe.share,
            "data": about.get("data"),
            "metric": about.get("metric", "accuracy"),
            "parameters": int(task.size),
            "architecture": architecture_of(task),
        }
    )
    files.write_whole(store.folder / FILE, save(models, metadata={"feduca": json.dumps(card)}))


def _models(task: Task, choice: Choice) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """What has weight, and where that is more than one model their weights."""
    if choice.mixture is None:
        return named(task, choice.deployed[0]), {}
    mixture = choice.mixture
    weights = {name: float(w) for name, w in zip(mixture.models, mixture.weights[0]) if w > 0}
    theirs = {name: named(task, mixture.models[name][0]) for name in weights}
    if len(theirs) == 1:
        return theirs.popitem()[1], {}
    return {f"{name}/{key}": array for name, arrays in theirs.items() for key, array in arrays.items()}, weights


def about(store: SiloStore) -> dict[str, Any] | None:
    """What is known of the model that the silo deploys; None where it has decided nothing yet."""
    found = _read(store.folder / FILE, models=False)
    return None if found is None else found[1]


def export(silo: Path, out: Path) -> Exported:
    """The silo's model as `feduca export` writes models: safetensors, a card for people and one for programs, checksums."""
    from feduca.flower.folder import read_silo

    mine = read_silo(silo)
    found = _read(mine.state / FILE)
    if found is None:
        raise InputError(f"{mine.state} holds no model yet: {mine.name} keeps one from its first decision on")
    models, card = found
    if card["silo"] != mine.name:
        raise InputError(f"{mine.state / FILE} is of silo {card['silo']!r}, and here is {mine.name!r}; move it away")
    store, run = SiloStore(mine.state), card["run"]
    recipe, scores = card["config"], card["validation"]
    nothing = dict.fromkeys(("accuracy", "final_accuracy", "participation"))
    whole = {
        "schema": SCHEMA,
        "feduca": __version__,
        **{
            key: card[key]
            for key in ("name", "config_hash", "seed", "share", "data", "metric", "parameters", "architecture")
        },
        "rounds": card["round"],
        "mechanism": recipe["mechanism"]["name"],
        "rule": recipe["participation"]["rule"],
        "offer": recipe["offer"]["kind"],
        "summary": nothing,  # of the federation a silo knows nothing
        "silos": [mine.name],
        "scores": {
            "validation": {key: [scores["deployed"][key]] for key in ("accuracy", "loss")},
            "own_model": [card["what"] == "own"],
        },
        "config": recipe,
        "note": f"one silo's model, {WHAT[card['what']]} after round {card['round']} of {run}; the shared model is not here",
        "silo": {key: card[key] for key in ("silo", "run", "round", "what", "reason", "validation")}
        | {"rounds": store.worked},
    }
    if card["weights"]:
        whole["mixtures"] = {mine.name: card["weights"]}
    write_models(out, {mine.name: models}, whole)
    return load_exported(out)


def _read(path: Path, models: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The models and what is known of them, checked; the silo's own code wrote them, but who knows who did since."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    try:
        with files.opened(path, files.LARGE) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= files.SMALL:
                raise ValueError("its header is too long")
            card = json.loads(json.loads(file.read(length))["__metadata__"]["feduca"])
        if not isinstance(card, dict) or card["what"] not in WHAT or not isinstance(card["round"], int):
            raise ValueError("its header says nothing of a model")
        for key in ("silo", "run", "reason", "name", "config_hash"):
            if not isinstance(card[key], str):
                raise TypeError(f"its {key} is no text")
        return (decode(files.read(path, files.LARGE)) if models else {}), card
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it: the next decision writes it anew") from None
