"""`feduca export`: the models of a run as safetensors files with a model card, and how to read them back.

    DIR/global.safetensors          the shared model
    DIR/silos/<silo>.safetensors    what each silo deploys: what it is offered if its rule takes it, otherwise its own
    DIR/README.md                   the model card, for people
    DIR/card.json                   the same for programs, with a checksum of every model
    DIR/SHA256SUMS                  a checksum of every file, for `feduca.load` and `sha256sum -c`

The silo's model is the one it would deploy now: the last checkpoint's server announces, each silo looks at its offer (or at its
personal model, where the method keeps one) on its own validation data and decides. Where silos deploy mixtures of outputs, a
file holds all models that have weight (mixtures.py), or one that was trained to match them (`distil`). In a deployment silos keep
their models to themselves: only the shared one is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feduca._version import __version__
from feduca.client.requests import drive
from feduca.core.records import plain
from feduca.errors import InputError
from feduca.federation import InProcess
from feduca.report.card import readme
from feduca.runs import checkpoint, files
from feduca.runs import directory as runs
from feduca.runs.checkpoint import Checkpoint
from feduca.runs.directory import RunResult
from feduca.runs.vouched import last, read_back
from feduca.types import Array, Task

if TYPE_CHECKING:
    from torch import nn

    from feduca.client.decision import Choice
    from feduca.recipes.build import Experiment
    from feduca.recipes.schema import Recipe

Models = dict[str, dict[str, np.ndarray]]
SCHEMA = 1
CARD, ABOUT, SUMS = "card.json", "README.md", "SHA256SUMS"
MOST = 256 << 20  # bytes of a card

log = logging.getLogger("feduca")


@dataclass(frozen=True)
class Exported:
    """What `feduca.load` returns for an exported folder."""

    path: Path
    card: Mapping[str, Any]
    models: Mapping[str, Mapping[str, np.ndarray]]  # "global" and every silo's name -> arrays by name

    def module(self, name: str = "global", into: nn.Module | None = None) -> nn.Module:
        """One of the models as a PyTorch module in evaluation mode; one of your own is loaded `into` a module you made."""
        import torch

        from feduca.tasks import models

        if name not in self.models:
            raise InputError(f"there is no model {name!r} in {self.path}; there are {', '.join(self.models)}")
        a, weights = self.card["architecture"], self.card.get("mixtures", {}).get(name)

        def filled(blank: nn.Module) -> nn.Module:
            if weights is not None:
                from feduca.report.mixtures import mixed

                return mixed(weights, self.models[name], blank).eval()
            blank.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in self.models[name].items()})
            return blank.eval()

        if into is not None:
            try:
                return filled(into)
            except RuntimeError as error:
                why = " ".join(str(error).split())[:160]
                raise InputError(f"{self.path} holds another model than the one given ({why})") from error
        if not a or a["model"] not in models.NAMES:
            raise InputError(
                f"{self.path} holds a model of your own ({a.get('model') if a else 'unknown'}); make one and pass it: "
                f"module({name!r}, into=...)"
            )
        make, _ = models.factory(
            a["model"],
            tuple(a["example_shape"]),
            a["classes"],
            hidden=a["hidden"] if a["model"] in models.LAYERED else None,
            vocabulary=a.get("vocabulary", 0),
        )
        return filled(make())


def export_models(run: str | Path, out: str | Path, *, task: Task | None = None, distil: bool = False) -> Exported:
    """Write the models of the run directory `run` to the folder `out`.

    `task` is the run's own, where it was not the recipe's. `distil`: where silos deploy a mixture of several models' outputs,
    train one for each, on its own training data, that answers alike, and export that.
    """
    from feduca import api
    from feduca.recipes.build import build

    out, run = files.place(out, "folder for the models"), files.place(run)
    result = runs.load(run)
    chosen = api.described(run)
    api.same_data(chosen, run)
    if not chosen.checkpoint.keep and not checkpoint.existing(run / "checkpoint"):
        raise InputError(
            f"{run} kept no models (checkpoint.keep = false): repeat it with"
            f" `feduca run {run}/config.toml --out {run.parent.parent} --again --set checkpoint.keep=true`"
        )
    point, note = last(run, f"{chosen.hash()}-s{result.seed}", len(result.rounds))
    if note:
        log.warning("%s", note)
        result = _until(result, point.state.round - 1)
    experiment = build(chosen, result.seed, task)
    silos = _distinct(experiment.federation.silos)
    if len(experiment.theta) != len(point.state.theta) or len(silos) != len(point.state.examples):
        raise InputError(
            f"{run} was run with another task ({len(point.state.examples)} silos, {len(point.state.theta)} numbers in a model): "
            "export it from Python with that one, feduca.export_models(RUN, DIR, task=...)"
        )
    models: Models = {"global": named(experiment.task, point.state.theta)}
    scores: dict[str, Any] = {}
    more: dict[str, Any] = {"note": note}
    if point.clients:
        choice = _chosen(chosen, result.seed, experiment, point)
        scores = _scores(experiment.task, choice)
        files_of = _mixtures if choice.mixture is not None else _plain
        theirs, about = files_of(experiment.task, choice, silos)
        if distil:
            theirs, about = _distilled(experiment.task, choice, silos, theirs, about, scores, result.seed)
        models, more = models | theirs, more | about
    elif distil:
        raise InputError(f"{run} holds no silo's model to distil: in a deployment silos keep them; leave out distil")
    card = _card(chosen.hash(), result, experiment.task, silos, scores) | more
    write_models(out, models, card)
    return load_exported(out)


def load(path: str | Path) -> RunResult | Exported:
    """Read a run directory (a RunResult, with its shared model where a checkpoint has it) or an exported folder (Exported)."""
    path = files.place(path)
    if (path / CARD).is_file():
        return load_exported(path)
    return read_back(path)


def _until(result: RunResult, done: int) -> RunResult:
    """The run as it was after round `done`: the figures beside a model are those of its round."""
    rounds, clients = result.rounds[:done], result.clients[:done]
    summary = runs.summarise(rounds, clients, result.silos)
    summary |= {key: result.summary[key] for key in ("metric",) if key in result.summary}
    return replace(result, rounds=rounds, clients=clients, summary=summary)


def _distinct(silos: Sequence[str]) -> list[str]:
    """Names for the silos' models, none of them twice: the shared one is called "global"."""
    names: list[str] = []
    for silo in silos:
        name = silo
        while name == "global" or name in names or (name != silo and name in silos):
            name = f"silo {name}"
        names.append(name)
    return names


def load_exported(path: str | Path) -> Exported:
    """Read what `export_models` wrote; every file is checked against the card."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    path = Path(path)
    try:
        content = files.read(path / CARD, MOST)
        _check_sums(path, content)
        card = json.loads(content)
        if card["schema"] != SCHEMA:
            raise InputError(f"{path} has schema {card['schema']!r}, this version reads {SCHEMA}; export the run again")
        models = {}
        for name, entry in card["files"].items():
            file = path / entry["file"]
            if not file.resolve().is_relative_to(path.resolve()):
                raise InputError(
                    f"{path}/{CARD} names {entry['file']!r}, which is outside the folder; export the run again"
                )
            content = files.read(file, files.LARGE)
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise InputError(f"{file} is not what its card says (checksum); export the run again")
            models[name] = decode(content)
        return Exported(path, card, models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"{path} is not an exported folder ({error}); write one with `feduca export`") from None


def _check_sums(path: Path, card: bytes) -> None:
    """The card and the page beside it are those that were written. Exports of before there were such checksums have none."""
    try:
        lines = files.read(path / SUMS, MOST).decode().splitlines()
    except FileNotFoundError:
        return
    known = {file: said for said, _, file in (line.partition("  ") for line in lines)}
    for file, found in ((CARD, hashlib.sha256(card).hexdigest()), (ABOUT, files.digest(path / ABOUT))):
        if known.get(file) != found:
            raise InputError(f"{path / file} is not what {SUMS} says (checksum); export the run again")


def _chosen(chosen: Recipe, seed: int, experiment: Experiment, point: Checkpoint) -> Choice:
    """What silos would deploy now."""
    from feduca.core.rounds import announce
    from feduca.recipes.build import behaviour_of

    federation = InProcess(experiment.task, behaviour_of(chosen, seed, experiment.task))
    federation.restore(point.clients)
    return drive(federation.choices(announce(experiment.server, point.state)), experiment.task)


def _scores(task: Task, choice: Choice) -> dict[str, Any]:
    """How well what silos deploy does, and whether it is their own model."""
    from feduca.recipes.build import has_test_parts

    found: dict[str, Any] = {}
    for split in ("validation", *(["test"] if has_test_parts(task) else [])):
        measured = drive(choice.score(np.arange(len(choice.join)), split), task)
        if np.isfinite(measured.accuracy).any():
            found[split] = {"accuracy": measured.accuracy, "loss": measured.loss}
    if choice.mixture is not None:
        found["own_model"] = [bool(w[-1] == 1) for w in choice.mixture.weights]
    else:
        found["own_model"] = [bool((choice.deployed[k] == choice.own[k]).all()) for k in range(len(choice.join))]
    return found


def _plain(task: Task, choice: Choice, silos: Sequence[str]) -> tuple[Models, dict[str, Any]]:
    return {name: named(task, choice.deployed[k]) for k, name in enumerate(silos)}, {}


def _mixtures(task: Task, choice: Choice, silos: Sequence[str]) -> tuple[Models, dict[str, Any]]:
    """Every silo's models that have weight; what has all of it stands alone, as in any other run."""
    from feduca.report.mixtures import used

    models: Models = {}
    weights: dict[str, dict[str, float]] = {}
    assert choice.mixture is not None
    for k, silo in enumerate(silos):
        w = used(choice.mixture, k)
        theirs = {name: named(task, choice.mixture.models[name][k]) for name in w}
        if len(theirs) == 1:
            models[silo] = theirs.popitem()[1]
        else:
            models[silo] = {f"{name}/{key}": a for name, arrays in theirs.items() for key, a in arrays.items()}
            weights[silo] = w
    return models, {"mixtures": weights}


def _distilled(
    task: Task,
    choice: Choice,
    silos: Sequence[str],
    models: Models,
    about: dict[str, Any],
    scores: dict[str, Any],
    seed: int,
) -> tuple[Models, dict[str, Any]]:
    """One network in place of every mixture; `scores` then has, as `distilled`, what silos' single networks score."""
    from feduca.report.mixtures import distilled
    from feduca.tasks import TorchTask

    weights = about.get("mixtures")
    if not weights or choice.mixture is None:
        raise InputError(
            "no silo of this run deploys a mixture of outputs, so there is nothing to distil; leave out distil"
        )
    if not isinstance(task, TorchTask):
        raise InputError(f"distil trains a PyTorch model, and the task is a {type(task).__name__}; leave out distil")
    models = dict(models)
    found: dict[str, Any] = {split: {} for split in ("validation", "test") if split in scores}
    for k, silo in enumerate(silos):
        if silo in weights:
            theta = distilled(task, choice.mixture, k, seed)
            models[silo] = named(task, theta)
            for split, into in found.items():
                measured = task.evaluate(theta[None], np.array([k]), split)
                into[silo] = {"accuracy": float(measured.accuracy[0]), "loss": float(measured.loss[0])}
    scores["distilled"] = found
    return models, {"distilled": weights}


def named(task: Task, theta: Array) -> dict[str, np.ndarray]:
    """The entries of a flat model by name, where the task knows them."""
    layout = getattr(task, "layout", None)
    if layout is None:
        return {"theta": np.ascontiguousarray(theta)}
    return {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in layout.unpack(theta).items()}


def architecture_of(task: Task) -> dict[str, Any] | None:
    """What `Exported.module` makes the task's model from; None where it is not one of ours."""
    pool, about = getattr(task, "pool", None), getattr(task, "describe", dict)()
    if pool is None:
        return None
    return {
        "model": about.get("model"),
        "example_shape": list(pool.example_shape),
        "classes": about.get("classes"),
        "hidden": about.get("hidden"),
        "vocabulary": about.get("vocabulary", 0),
    }


def _card(
    config_hash: str, result: RunResult, task: Task, silos: list[str], scores: Mapping[str, Any]
) -> dict[str, Any]:
    about = getattr(task, "describe", dict)()
    return plain(
        {
            "schema": SCHEMA,
            "feduca": __version__,
            "name": result.name,
            "config_hash": config_hash,
            "seed": result.seed,
            "rounds": len(result.rounds),
            "mechanism": result.config["mechanism"]["name"],
            "rule": result.config["participation"]["rule"],
            "offer": result.config["offer"]["kind"],
            "data": about.get("data"),
            "metric": about.get("metric", "accuracy"),
            "share": result.config.get("share", "all"),
            "parameters": int(task.size),
            "architecture": architecture_of(task),
            "summary": result.summary,
            "silos": silos,
            "scores": scores,
            "config": result.config,
        }
    )


def write_models(out: Path, models: Mapping[str, Mapping[str, np.ndarray]], card: dict[str, Any]) -> None:
    """Everything or nothing: first into a hidden folder, then moved, the card last. A run gives the same bytes each time."""
    from safetensors.numpy import save

    earlier = _earlier(out)
    entries: dict[str, dict[str, str]] = {}
    made = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".export-", dir=out))
        try:
            (part / "silos").mkdir()
            used: set[str] = set()
            for name, arrays in models.items():
                file = "global.safetensors" if name == "global" else f"silos/{_file_name(name, used)}.safetensors"
                words = {"run": f"{card['config_hash']}-s{card['seed']}", "model": name}
                # One entry: safetensors writes several in any order.
                content = save(dict(arrays), metadata={"feduca": json.dumps({"feduca": __version__, **words})})
                (part / file).write_bytes(content)
                entries[name] = {"file": file, "sha256": hashlib.sha256(content).hexdigest()}
            card = {**card, "files": entries}
            (part / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
            (part / ABOUT).write_text(readme(card), encoding="utf-8")
            sums = {file: files.digest(part / file) for file in (*(e["file"] for e in entries.values()), ABOUT, CARD)}
            (part / SUMS).write_text("".join(f"{said}  {file}\n" for file, said in sums.items()), encoding="utf-8")
            for file in (CARD, SUMS, *earlier):  # from here on it is no export until the new card is there
                (out / file).unlink(missing_ok=True)
            (out / "silos").mkdir(exist_ok=True)
            for file in (*(entry["file"] for entry in entries.values()), ABOUT, SUMS, CARD):
                (part / file).replace(out / file)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise InputError(f"cannot write to {out}: {error.strerror or error}; choose another folder with -o") from None


def _earlier(out: Path) -> list[str]:
    """The files of an earlier export into `out`. InputError where something else is there, which would be mixed up with it."""
    if not out.is_dir() or not any(out.iterdir()):
        return []
    try:
        entries = json.loads(files.read(out / CARD, MOST))["files"].values()
        there = [str(entry["file"]) for entry in entries]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise InputError(f"{out} is not empty and holds no earlier export; choose a new folder with -o") from None
    ours = re.compile(r"(global|silos/[^/]+)\.safetensors")
    return [file for file in there if ours.fullmatch(file) and not (out / "silos").is_symlink()]


def _file_name(silo: str, used: set[str]) -> str:
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", silo).lstrip(".")[:80] or "silo"
    name, i = base, 1
    while name.lower() in used:
        i += 1
        name = f"{base}-{i}"
    used.add(name.lower())
    return name
