"""The paper's runs on this machine's GPU, one by one and in lockstep.

Times run from the first round's start to the last one's end: data loaded, kernels compiled and graphs captured by two rounds that
are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from feduca import api
from feduca.bench import Save, Say, versions
from feduca.core.wording import aligned
from feduca.errors import InputError
from feduca.recipes import build as experiment
from feduca.recipes import schema as config
from feduca.recipes.schema import Recipe
from feduca.runs.commit import commit
from feduca.runs.directory import RunResult
from feduca.studies.cells import cells
from feduca.studies.execute import reproduce
from feduca.studies.summarise import device
from feduca.studies.timed import timed
from feduca.tasks.engines.gpu import peak

METHODS = ("fedavg", "fedprox", "incfl", "aaggff", "fedavg-ws", "feduca", "forced")
SMOKE: dict[str, Any] = {"rounds": 4, "short": 2}
TOGETHER = len(METHODS)  # runs in lockstep: a seed's. All 21 at once were slower than one after another (docs/speed.md)
OFFERS = {"offer.kind": "least-concession", "offer.points": 6, "memory.kind": "update"}  # on top of FedAvg
BEST = {**OFFERS, "offer.kind": "best-mixture", "offer.train_from": "consensus"}  # all six points, every round


def run(
    out: Path, say: Say, save: Save, *, rounds: int = 100, short: int = 10, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The paper's CIFAR-10 and Fashion-MNIST runs on this machine's GPU; the lockstep runs are table1's own."""
    changes = {"engine.device": "cuda", "rounds": rounds, **(settings or {})}
    if not _cuda():
        raise InputError("bench gpu needs a CUDA device; try `feduca bench cpu`")
    table = cells(config.load("table1"), {"split": ["0.5,1.0"], "method": list(METHODS)})
    chosen = {(c.labels["data"], c.labels["method"]): c.recipe.with_settings(changes) for c in table}
    found: dict[str, Any] = {
        "device": device(chosen["cifar10", "feduca"].plain()),
        "versions": versions("torch", "triton"),
    }
    found |= {"commit": commit(), "rounds": rounds, "precision": chosen["cifar10", "feduca"].engine.precision}
    found["agreement"] = agreement(say)
    found["cifar10_feduca_s"] = _timed(chosen["cifar10", "feduca"], say)
    found |= {"peak_mb": peak.megabytes("cuda"), "memory": _memory()}
    found["cifar10_fedavg_s"] = _timed(chosen["cifar10", "fedavg"], say)
    found["overhead"] = found["cifar10_feduca_s"] / found["cifar10_fedavg_s"] - 1
    found["cifar10_offers_s"] = _timed(chosen["cifar10", "fedavg"].with_settings(OFFERS), say)
    found["offers_overhead"] = found["cifar10_offers_s"] / found["cifar10_fedavg_s"] - 1
    found["cifar10_best_mixture_s"] = _timed(chosen["cifar10", "fedavg"].with_settings(BEST), say)
    found["best_mixture_overhead"] = found["cifar10_best_mixture_s"] / found["cifar10_fedavg_s"] - 1
    found["fmnist_feduca_s"] = _timed(chosen["fmnist", "feduca"], say)
    save(found)
    jobs = [  # a seed's methods one after another: they share its task
        (chosen["cifar10", method].with_settings({"rounds": short}), seed) for seed in (0, 1, 2) for method in METHODS
    ]
    alone = sum(_timed(recipe, say, seed, out / "alone") for recipe, seed in jobs)
    _tasks.clear()
    api.run_many(jobs[:TOGETHER], out=out / "warm", lockstep=TOGETHER)  # compiles and captures for this many clients
    together = _together(api.run_many(jobs, out=out / "short", lockstep=TOGETHER))
    say(f"{len(jobs)} runs of {short} rounds: {alone:.1f} s one after another, {together:.1f} s in lockstep")
    found["lockstep_speedup"] = alone / together
    save(found)
    whole = [(recipe.with_settings({"rounds": rounds}), seed) for recipe, seed in jobs]
    found["lockstep_21_runs_s"] = _together(api.run_many(whole, out=out, lockstep=TOGETHER))
    say(f"{len(jobs)} runs of {rounds} rounds in lockstep: {found['lockstep_21_runs_s']:.1f} s")
    # What was computed for a benchmark is also seven rows of the paper's table: this finds the runs done.
    rows = reproduce(
        "table1",
        settings=changes,
        keep={"data": ["cifar10"], "split": ["0.5,1.0"], "method": list(METHODS)},
        out=out,
        results=out,
        lockstep=TOGETHER,
    )
    found["lockstep_accuracies"] = {row["method"]: row["accuracies"] for row in rows}  # how far another sitting is off
    return found


def text(found: dict[str, Any]) -> str:
    """Seconds and ratios, one under the other."""
    rounds, precision = found["rounds"], found["precision"]
    return aligned(
        [f"{found['device']}, {precision}, {rounds} rounds", ""],
        [
            ["CIFAR-10, FedUCA", f"{found['cifar10_feduca_s']:.1f} s"],
            ["CIFAR-10, FedAvg", f"{found['cifar10_fedavg_s']:.1f} s"],
            ["FedUCA over FedAvg", f"{100 * found['overhead']:+.0f} %"],
            ["least concession over FedAvg", f"{100 * found['offers_overhead']:+.0f} %"],
            ["best mixture over FedAvg", f"{100 * found['best_mixture_overhead']:+.0f} %"],
            ["Fashion-MNIST, FedUCA", f"{found['fmnist_feduca_s']:.1f} s"],
            ["21 CIFAR-10 runs in lockstep", f"{found['lockstep_21_runs_s']:.1f} s"],
            ["one after another over lockstep", f"{found['lockstep_speedup']:.2f} x"],
        ],
    )


def agreement(say: Say, rounds: int = 15, devices: tuple[str, str] = ("cpu", "cuda")) -> dict[str, Any]:
    """The quickstart on two devices in fp32: for how many rounds who joins is the same, and where both end."""
    results = [
        api.run("quickstart", {"rounds": rounds, "engine.device": name, "engine.precision": "fp32"}, seed=0)
        for name in devices
    ]
    joined = [[record["status"] for record in result.clients] for result in results]
    same = next((r for r, (a, b) in enumerate(zip(*joined)) if a != b), rounds)
    found = {"rounds": rounds, "rounds_with_the_same_decisions": same}
    found |= {f"accuracy_{name}": result.accuracy for name, result in zip(devices, results)}
    say(f"the quickstart on {' and '.join(devices)}: the same decisions for {same} of {rounds} rounds, accuracy "
        + " and ".join(f"{result.accuracy:.4f}" for result in results))  # fmt: skip
    return found


def _memory() -> dict[str, float]:
    """What the peak is made of: MiB of one model, of the examples, and how many silos each hold models of their own."""
    (task,) = _tasks.values()
    return {
        "silos": len(task.silos),
        "one_model_mb": 4 * task.size / 2**20,
        "examples_mb": sum(x.numel() * x.element_size() for x in (task.pool.x, *task.pool.prepared.values())) / 2**20,
    }


def _together(results: Iterable[RunResult]) -> float:
    """Seconds of the rounds of runs that went side by side: each records its share."""
    return sum(result.summary["seconds"] for result in results)


def _timed(recipe: Recipe, say: Say, seed: int = 0, out: Path | None = None) -> float:
    """Seconds of a run's rounds, after two that do not count; with what it writes to `out`, where that is asked for."""
    task = _tasks.get(key := experiment.origin(recipe, seed))
    if task is None:
        _tasks.clear()
        task = _tasks[key] = experiment.make_task(recipe, seed)
    result = timed(recipe, seed, task, out)
    seconds = result.summary["seconds"]
    where = f"{recipe.task.data}, {recipe.mechanism['name']}, {recipe.rounds} rounds"
    say(f"{where}: {seconds:.2f} s, accuracy {result.accuracy:.4f}, participation {result.participation:.3f}")
    return seconds


_tasks: dict[tuple[str, str, int], Any] = {}  # the last task only: methods share it


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
