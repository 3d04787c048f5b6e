"""`feduca bench`: how long things take here, as ratios measured side by side, and absolute times on a GPU.

Times run from the first round's start to the last one's end: data loaded, kernels compiled and graphs captured by two rounds that
are not counted.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feduca import api, config, experiment
from feduca.config import Recipe
from feduca.errors import InputError
from feduca.reproduce.study import reproduce
from feduca.reproduce.summary import commit, device
from feduca.runs import check_writable
from feduca.study import cells

METHODS = ("fedavg", "fedprox", "incfl", "aaggff", "fedavg-ws", "feduca", "forced")
Say = Callable[[str], None]


def gpu(
    out: Path, say: Say, *, rounds: int = 100, short: int = 10, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The paper's CIFAR-10 and Fashion-MNIST runs on this machine's GPU; the lockstep runs are table1's own."""
    changes = {"engine.device": "cuda", "rounds": rounds, **(settings or {})}
    if not _cuda():
        raise InputError("bench gpu needs a CUDA device; try `feduca bench cpu`")
    table = cells(config.load("table1"), {"split": ["0.5,1.0"], "method": list(METHODS)})
    chosen = {(c.labels["data"], c.labels["method"]): c.recipe.with_settings(changes) for c in table}
    found: dict[str, Any] = {"device": device(chosen["cifar10", "feduca"].plain()), "versions": _versions()}
    found |= {"commit": commit(), "rounds": rounds, "precision": chosen["cifar10", "feduca"].engine.precision}
    _reset_peak()
    found["cifar10_feduca_s"] = _timed(chosen["cifar10", "feduca"], say)
    found["peak_mb"] = _peak_mb()
    found["cifar10_fedavg_s"] = _timed(chosen["cifar10", "fedavg"], say)
    found["overhead"] = found["cifar10_feduca_s"] / found["cifar10_fedavg_s"] - 1
    found["fmnist_feduca_s"] = _timed(chosen["fmnist", "feduca"], say)
    jobs = [
        (chosen["cifar10", method].with_settings({"rounds": short}), seed) for method in METHODS for seed in (0, 1, 2)
    ]
    alone = sum(_timed(recipe, say, seed) for recipe, seed in jobs)
    api.run_many(jobs, out=out / "warm", lockstep=len(jobs))  # compiles and captures for this many clients
    began = time.perf_counter()
    api.run_many(jobs, out=out / "short", lockstep=len(jobs))
    together = time.perf_counter() - began
    say(f"{len(jobs)} runs of {short} rounds: {alone:.1f} s one after another, {together:.1f} s in lockstep")
    found["lockstep_speedup"] = alone / together
    began = time.perf_counter()
    reproduce(
        "table1",
        settings=changes,
        keep={"data": ["cifar10"], "split": ["0.5,1.0"], "method": list(METHODS)},
        out=out,
        results=out,
        lockstep=len(jobs),
    )
    found["lockstep_21_runs_s"] = time.perf_counter() - began
    say(f"{len(jobs)} runs of {rounds} rounds in lockstep, data loading included: {found['lockstep_21_runs_s']:.1f} s")
    return found


def run(name: str, out: Path, say: Say, rounds: int | None, settings: dict[str, Any]) -> dict[str, Any]:
    """One benchmark by name; the summary is also written to OUT/NAME.json."""
    benchmarks = {"gpu": gpu, "cpu": cpu}
    if name not in benchmarks:
        raise InputError(f"there is no benchmark {name!r}; known: {', '.join(benchmarks)}")
    check_writable(out)
    options = {} if rounds is None else {"rounds": rounds}
    found = benchmarks[name](out, say, settings=settings, **options)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def cpu(out: Path, say: Say, *, rounds: int = 5, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """All clients along one axis against one client after another: the quickstart round, engine against engine."""
    recipe = config.load("quickstart").with_settings({"rounds": rounds, **(settings or {})})
    seconds = {
        kind: min(_timed(recipe.with_settings({"engine.kind": kind}), say) for _ in range(3))
        for kind in ("stacked", "sequential")
    }
    found = {"device": "cpu", "versions": _versions(), "commit": commit(), "rounds": rounds}
    return found | {"vs_sequential": seconds["sequential"] / seconds["stacked"]}


def _timed(recipe: Recipe, say: Say, seed: int = 0) -> float:
    """Seconds of a run's rounds, after two that do not count."""
    task = _tasks.get(key := (recipe.task.model_dump_json(), recipe.engine.model_dump_json(), seed))
    if task is None:
        _tasks.clear()
        task = _tasks[key] = experiment.make_task(recipe, seed)
    api.run(recipe, {"rounds": 2}, seed=seed, task=task)
    result = api.run(recipe, seed=seed, task=task)
    seconds = result.summary["seconds"]
    where = f"{recipe.task.data}, {recipe.mechanism['name']}, {recipe.rounds} rounds"
    say(f"{where}: {seconds:.2f} s, accuracy {result.accuracy:.4f}, participation {result.participation:.3f}")
    return seconds


_tasks: dict[tuple[str, str, int], Any] = {}  # the last task only: methods share it


def _versions() -> dict[str, str]:
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__}


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _reset_peak() -> None:
    import torch

    if _cuda():
        torch.cuda.reset_peak_memory_stats()


def _peak_mb() -> float | None:
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if _cuda() else None
