"""`feduca export`: the models of a run as safetensors files with a model card, and how to read them back.

    DIR/global.safetensors          the shared model
    DIR/silos/<silo>.safetensors    what each silo deploys: what it is offered if its rule takes it, otherwise its own
    DIR/README.md                   the model card, for people
    DIR/card.json                   the same for programs, with a checksum of every file

The silo's model is the one it would deploy now: the last checkpoint's server announces, each silo looks at its offer (or at its
personal model, where the method keeps one) on its own validation data and decides. In a deployment silos keep their models to
themselves: only the shared one is here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feduca import checkpoint, runs
from feduca._version import __version__
from feduca.checkpoint import Checkpoint
from feduca.errors import CheckpointError, InputError
from feduca.federation import InProcess
from feduca.records import mean, plain
from feduca.runs import RunResult
from feduca.types import Array, Task
from feduca.work import Evaluate

if TYPE_CHECKING:
    from torch import nn

    from feduca.config import Recipe
    from feduca.experiment import Experiment

SCHEMA = 1
CARD = "card.json"


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
        state = {key: torch.from_numpy(value.copy()) for key, value in self.models[name].items()}
        a = self.card["architecture"]
        if into is not None:
            try:
                into.load_state_dict(state)
            except RuntimeError as error:
                why = " ".join(str(error).split())[:160]
                raise InputError(f"{self.path} holds another model than the one given ({why})") from error
            return into.eval()
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
        module = make()
        module.load_state_dict(state)
        return module.eval()


def export_models(run: str | Path, out: str | Path, *, task: Task | None = None) -> Exported:
    """Write the models of the run directory `run` to the folder `out`.

    `task` is the run's own, where it was not the recipe's.
    """
    from feduca import api
    from feduca.experiment import build

    out = Path(out)
    result = runs.load(run)
    chosen, directory = api.recorded(run)
    api.same_data(chosen, directory.path)
    if not chosen.checkpoint.keep and not checkpoint.existing(directory.checkpoints):
        raise InputError(
            f"{run} kept no models (checkpoint.keep = false): repeat it with"
            f" `feduca run {run}/config.toml --out {Path(run).parent.parent} --again --set checkpoint.keep=true`"
        )
    point = _checkpoint(directory.checkpoints)
    experiment = build(chosen, result.seed, task)
    silos = [f"silo {name}" if name == "global" else name for name in experiment.federation.silos]
    if len(experiment.theta) != len(point.state.theta) or len(silos) != len(point.state.examples):
        raise InputError(
            f"{run} was run with another task ({len(point.state.examples)} silos, {len(point.state.theta)} numbers in a model): "
            "export it from Python with that one, feduca.export_models(RUN, DIR, task=...)"
        )
    models = {"global": _named(experiment.task, point.state.theta)}
    scores: dict[str, Any] = {}
    if point.clients:
        deployed, decisions = _deployed(chosen, result.seed, experiment, point)
        everyone = np.arange(len(silos))
        for split in ("validation", "test"):
            measured = experiment.task.evaluate(deployed, everyone, split)
            if np.isfinite(measured.accuracy).any():
                scores[split] = {"accuracy": measured.accuracy, "loss": measured.loss}
        for k, name in enumerate(silos):
            models[name] = _named(experiment.task, deployed[k])
        scores["own_model"] = decisions
    card = _card(chosen.hash(), result, experiment.task, silos, scores, point.state.round - 1)
    _write(out, models, card)
    return load_exported(out)


def load(path: str | Path) -> RunResult | Exported:
    """Read a run directory (a RunResult, with its shared model where a checkpoint has it) or an exported folder (Exported)."""
    path = Path(path)
    if (path / CARD).is_file():
        return load_exported(path)
    result = runs.load(path)
    try:
        return replace(result, theta=_checkpoint(path / "checkpoint").state.theta)
    except InputError:
        return result


def load_exported(path: str | Path) -> Exported:
    """Read what `export_models` wrote; every file is checked against the card."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(path)
    try:
        card = json.loads((path / CARD).read_text(encoding="utf-8"))
        if card["schema"] != SCHEMA:
            raise InputError(f"{path} has schema {card['schema']!r}, this version reads {SCHEMA}; export the run again")
        models = {}
        for name, entry in card["files"].items():
            file = path / entry["file"]
            if not file.resolve().is_relative_to(path.resolve()):
                raise InputError(
                    f"{path}/{CARD} names {entry['file']!r}, which is outside the folder; export the run again"
                )
            if hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
                raise InputError(f"{file} is not what its card says (checksum); export the run again")
            models[name] = load_file(file)
        return Exported(path, card, models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"{path} is not an exported folder ({error}); write one with `feduca export`") from None


def _checkpoint(folder: Path) -> Checkpoint:
    def use(path: Path) -> Checkpoint:
        point = checkpoint.read(path)
        if not isinstance(point, Checkpoint):
            raise CheckpointError(f"{path} does not hold the state of a run")
        return point

    point, complaints = checkpoint.newest(folder, use)
    if point is None:
        why = f" ({'; '.join(complaints)})" if complaints else ""
        raise InputError(f"{folder.parent} has no usable checkpoint{why}; repeat the run with --again")
    return point


def _deployed(chosen: Recipe, seed: int, experiment: Experiment, point: Checkpoint) -> tuple[Array, list[bool]]:
    """The models `[N, P]` that silos would deploy now, and whether that is their own.

    The client's step is a coroutine; where silos have untouched data, it asks for an evaluation of exactly these models there,
    once everybody has decided. Pretend that they do, play it up to that request, and stop.
    """
    from feduca.experiment import make_behaviour
    from feduca.rounds import announce

    behaviour = replace(make_behaviour(chosen, seed), untouched=True)
    federation = InProcess(experiment.task, behaviour)
    federation.restore(point.clients)
    steps = federation.steps(announce(experiment.server, point.state))
    answer = None
    while not (isinstance(request := steps.send(answer), Evaluate) and request.split == "test"):
        answer = request.on(experiment.task)
    steps.close()
    own = point.clients["own"]
    return request.theta, [bool((request.theta[k] == own[k]).all()) for k in range(len(own))]


def _named(task: Task, theta: Array) -> dict[str, np.ndarray]:
    """The entries of a flat model by name, where the task knows them."""
    layout = getattr(task, "layout", None)
    if layout is None:
        return {"theta": np.ascontiguousarray(theta)}
    return {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in layout.unpack(theta).items()}


def _card(
    config_hash: str, result: RunResult, task: Task, silos: list[str], scores: Mapping[str, Any], done: int
) -> dict[str, Any]:
    about = getattr(task, "describe", dict)()
    pool = getattr(task, "pool", None)
    architecture = None
    if pool is not None:
        architecture = {
            "model": about.get("model"),
            "example_shape": list(pool.example_shape),
            "classes": about.get("classes"),
            "hidden": about.get("hidden"),
            "vocabulary": about.get("vocabulary", 0),
        }
    return plain(
        {
            "schema": SCHEMA,
            "feduca": __version__,
            "name": result.name,
            "config_hash": config_hash,
            "seed": result.seed,
            "rounds": done,
            "mechanism": result.config["mechanism"]["name"],
            "rule": result.config["participation"]["rule"],
            "offer": result.config["offer"]["kind"],
            "data": about.get("data"),
            "metric": about.get("metric", "accuracy"),
            "parameters": int(task.size),
            "architecture": architecture,
            "summary": result.summary,
            "silos": silos,
            "scores": scores,
            "config": result.config,
        }
    )


def _write(out: Path, models: Mapping[str, Mapping[str, np.ndarray]], card: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    files: dict[str, dict[str, str]] = {}
    try:
        (out / "silos").mkdir(parents=True, exist_ok=True)
        used: set[str] = set()
        for name, arrays in models.items():
            file = "global.safetensors" if name == "global" else f"silos/{_file_name(name, used)}.safetensors"
            words = {"feduca": __version__, "run": f"{card['config_hash']}-s{card['seed']}", "model": name}
            save_file(dict(arrays), out / file, metadata=words)
            files[name] = {"file": file, "sha256": hashlib.sha256((out / file).read_bytes()).hexdigest()}
        card = {**card, "files": files}
        (out / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        (out / "README.md").write_text(_readme(card), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}; choose another folder with -o") from None


def _file_name(silo: str, used: set[str]) -> str:
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", silo).lstrip(".")[:80] or "silo"
    name, i = base, 1
    while name.lower() in used:
        i += 1
        name = f"{base}-{i}"
    used.add(name.lower())
    return name


def _readme(card: Mapping[str, Any]) -> str:
    """The model card."""

    def percent(value: float | None) -> str:
        return "not measured" if value is None else f"{100 * value:.1f} %"

    metric = card.get("metric", "accuracy")

    def scored(value: float | None) -> str:
        return percent(value) if metric == "accuracy" or value is None else f"{value:.3f}"

    summary, scores, silos = card["summary"], card["scores"], card["silos"]
    lines = [
        f"# {_text(card['name'])}: models of a federation",
        "",
        f"Trained with feduca {card['feduca']}: {card['rounds']} rounds, {len(silos)} silos, mechanism `{card['mechanism']}`, "
        f"participation rule `{card['rule']}`, offer `{card['offer']}`, data `{_text(card['data'])}`, "
        f"{card['parameters']} parameters.",
        "",
        f"Configuration `{card['config_hash']}`, seed {card['seed']}; the whole of it is in `{CARD}`.",
        "",
        "## How it did",
        "",
        f"- Shared model on the common test set, {_text(metric)}: {scored(summary['accuracy'])} "
        f"(mean of the last {min(10, card['rounds'])} rounds), {scored(summary['final_accuracy'])} after the last.",
        f"- Participation: {percent(summary['participation'])} of silos and rounds.",
    ]
    if "validation" in scores:
        untouched = scores.get("test", {}).get("accuracy")
        lines += [
            f"- Silos' deployed models on their own validation data, {_text(metric)}: "
            f"{scored(mean(_numbers(scores['validation']['accuracy'])))} on average. "
            "These data chose the models, so this flatters them.",
            "",
            "| silo | file | deploys | validation |" + (" untouched data |" if untouched else ""),
            "|---|---|---|---|" + ("---|" if untouched else ""),
        ]
        for k, name in enumerate(silos):
            kind = "its own model" if scores["own_model"][k] else "the offered model"
            file, score = card["files"][name]["file"], scored(scores["validation"]["accuracy"][k])
            row = f"| {_text(name)} | `{file}` | {kind} | {score} |"
            lines.append(row + (f" {scored(untouched[k])} |" if untouched else ""))
    else:
        lines.append("- Silos keep their own models; only the shared one is here.")
    lines += [
        "",
        "## How to use it",
        "",
        "```python",
        "import feduca",
        "",
        'exported = feduca.load("this folder")',
        'arrays = exported.models["global"]  # by parameter name; a silo\'s name gives its own',
        'module = exported.module("global")  # as a PyTorch module; of your own architecture: into=YourModule()',
        "```",
        "",
        "## Limits",
        "",
        "A research artefact. It was judged on the data named above and on nothing else; silos differ: look at the row of yours.",
        "",
    ]
    return "\n".join(lines)


def _numbers(values: Any) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _text(value: Any) -> str:
    """A name in Markdown: no markup of its own."""
    return re.sub(r"[^\w .,:+-]", "_", str(value))[:120]
