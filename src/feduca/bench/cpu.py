"""Our engine beside a plain PyTorch loop, pfl-research and Flower's simulation: the same job, in turn, on this machine.

Every contestant is a process of its own, once with one thread and once with as many as there are cores (Flower: as many silos at
a time as there are cores, and one); its fastest round counts. The first round, which warms things up, does not.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feduca.bench import Save, Say, versions
from feduca.core.wording import aligned
from feduca.errors import InputError
from feduca.recipes import build as experiment
from feduca.recipes import schema as config
from feduca.recipes.schema import Recipe
from feduca.runs.commit import commit
from feduca.studies.cells import cells

CONTESTANTS: dict[str, tuple[str, tuple[str, ...]]] = {  # name: module, the packages it needs
    "ours": ("feduca.bench.ours", ()),
    "plain": ("feduca.bench.plain", ()),
    "pfl": ("feduca.bench.with_pfl", ("pfl",)),
    "flower": ("feduca.bench.with_flower", ("flwr", "ray")),
}
RATIOS = {"plain": "vs_sequential", "pfl": "vs_pfl", "flower": "vs_flower_simulation"}
TITLES = {"plain": "plain PyTorch loop", "pfl": "pfl", "flower": "Flower, simulation on Ray"}
SMOKE: dict[str, Any] = {"rounds": 4, "settings": {"task.data": "digits"}}
LIMIT = 1800.0  # seconds for one contestant


def run(
    out: Path, say: Say, save: Save, *, rounds: int = 16, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The Fashion-MNIST silos of recipe table1, everybody in: about 200 examples each, and under `also` 480 and all 4800.

    Small silos measure the simulators; the larger they are, the more everybody measures the same matrix products. `settings`
    change the recipe (`task.data=digits` needs no file, and has one size only).
    """
    if rounds < 2:
        raise InputError(f"bench cpu was asked for {_many(rounds, 'round')}: the first only warms up; use at least 2")
    cell = cells(config.load("table1"), {"data": ["fmnist"], "split": ["0.5,1.0"], "method": ["forced"]})[0]
    recipe = cell.recipe.with_settings({"local.lr_decay": 1.0, **(settings or {})})
    about: dict[str, Any] = {"device": _processor(), "cores": os.cpu_count() or 1}
    about |= {"versions": versions("torch", "pfl", "flwr", "ray"), "commit": commit()}
    if recipe.task.data == "digits":
        return _contest(recipe, rounds, about, say, save)
    sizes = [recipe.with_settings({"task.max_examples": total}) for total in (2500, 6000)]
    found = _contest(sizes[0], rounds, about, say, save) | {"also": []}
    for larger, fewer in ((sizes[1], rounds), (recipe, max(2, rounds // 3))):
        part = _contest(larger, fewer, about, say, lambda part: None)
        found["also"].append({key: value for key, value in part.items() if key not in about})
        save(found)
    return found


def _contest(recipe: Recipe, rounds: int, about: Mapping[str, Any], say: Say, save: Save) -> dict[str, Any]:
    """One job for every contestant that is installed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = {**about, **_prepare(recipe, rounds, folder)}
        say(
            f"{found['data']}, {found['silos']} silos of {found['examples_per_silo']} examples, {_many(rounds, 'round')}:"
        )
        loss, every = {}, {}
        for name, (module, packages) in CONTESTANTS.items():
            if missing := [package for package in packages if about["versions"][package] is None]:
                wanted = "flwr[simulation]" if name == "flower" else missing[0]
                say(f'  {name}: left out, {" and ".join(missing)} not installed (pip install "{wanted}")')
                continue
            every[name] = {}
            for threads in dict.fromkeys((1, about["cores"])):
                seconds = _compete(module, folder, name, threads)
                loss[name] = _loss(folder, name)
                every[name][f"{threads} threads"] = [round(value, 4) for value in seconds]
                fast = min(seconds)
                how = f"{name}, {_many(threads, 'thread')}"
                say(f"  {how}: fastest round {fast:.3f} s, training loss at the end {loss[name]:.4f}")
            found |= {"seconds_a_round": every, "final_loss": loss, **ratios(every)}
            save(found)
    return found


def text(found: Mapping[str, Any]) -> str:
    """Ratios by size of the silos, ours in seconds above them."""
    parts = [found, *found.get("also", ())]
    sizes = [f"{part['examples_per_silo']} examples a silo" for part in parts]
    ours = [f"{min(map(min, part['seconds_a_round']['ours'].values())):.3f} s" for part in parts]
    rows = [["a round, ours", *ours]]
    for name, ratio in RATIOS.items():
        rows.append([TITLES[name], *("-" if part[ratio] is None else f"{part[ratio]:.1f} x ours" for part in parts)])
    return aligned([found["data"], *sizes], rows)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def ratios(every: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float | None]:
    """How much longer the others take: fastest round over fastest round, since noise only ever adds."""
    best = {name: min(min(seconds) for seconds in variants.values()) for name, variants in every.items()}
    return {ratio: best[name] / best["ours"] if name in best else None for name, ratio in RATIOS.items()}


def _prepare(recipe: Recipe, rounds: int, folder: Path) -> dict[str, Any]:
    """Write the job: what our own task would train on, as plain arrays."""
    import torch

    from feduca.bench.job import save_state
    from feduca.bench.ours import torch_state
    from feduca.tasks.task import TorchTask

    task = experiment.make_task(recipe, 0)
    if recipe.task.model != "mlp" or not isinstance(task, TorchTask):
        raise InputError(f"bench cpu compares multilayer perceptrons; task.model is {recipe.task.model!r}")
    fewest = int(task.examples.min())
    rows = torch.from_numpy(np.stack([silo.rows["train"][:fewest] for silo in task.members]))
    if fewest != task.examples.max():
        raise InputError("bench cpu wants silos of one size; leave task.max_examples and the partition as they are")
    np.save(folder / "x.npy", task.pool.examples(rows).flatten(2).numpy())
    np.save(folder / "y.npy", task.pool.targets(rows).numpy())
    save_state(folder / "first.npz", torch_state(task, task.init(0)))
    local = recipe.local
    spec = {"rounds": rounds, "silos": len(task.members), "epochs": local.epochs, "batch_size": local.batch_size}
    spec |= {"lr": local.lr, "weight_decay": local.weight_decay, "clip": local.clip}
    (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    (folder / "recipe.json").write_text(recipe.model_dump_json(), encoding="utf-8")
    return {"data": recipe.task.data, "examples_per_silo": fewest, **spec}


def _compete(module: str, folder: Path, name: str, threads: int) -> list[float]:
    """Seconds of a contestant's rounds but the first."""
    environment = {
        **os.environ,
        **{key: str(threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_DEDUP_LOGS": "0",
    }
    command = [sys.executable, "-m", module, str(folder)] + ([str(threads)] if name == "flower" else [])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, encoding="utf-8")
    except subprocess.TimeoutExpired:
        raise InputError(f"{name} did not finish in {LIMIT:.0f} s; use fewer --rounds") from None
    if done.returncode or not (folder / f"{name}.json").exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{name} failed: {last}; uninstall its package to leave it out")
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))[1:]


def _loss(folder: Path, name: str) -> float:
    """The mean training loss of a contestant's last global model: the same job ends at about the same place."""
    import torch
    from torch import nn

    from feduca.bench.job import Job

    job = Job(folder)
    model = job.model()
    state = np.load(folder / f"{name}.npz")
    model.load_state_dict({key: torch.from_numpy(state[key]) for key in state.files})
    with torch.no_grad():
        return statistics.fmean(float(nn.functional.cross_entropy(model(x), y)) for x, y in job.data)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
