"""Natural silos, measured beside others: FLamby's own protocol on heart, and what an outside option costs.

    python benchmarks/natural.py [flamby|cost|all] [--smoke]
    python benchmarks/natural.py tables

Writes `benchmarks/results/natural.json` (each part replaces its own entry); `--smoke` runs all of it small and writes nothing.
`tables` puts the committed figures into docs/real-more.md. Heart's files must be in the data folder (docs/natural-data.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import feduca
from feduca import api
from feduca.core import rounds as loop
from feduca.core.arrays import repeat
from feduca.core.rng import stream
from feduca.recipes.build import build
from feduca.runs.directory import environment
from feduca.tasks.build import build_natural_task, build_own_task
from feduca.tasks.data.natural import load_natural, silos
from feduca.tasks.data.pool import Pool
from feduca.tasks.task import Silo, TorchTask
from feduca.types import Ints, LocalSpec

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, too
from benchmarks.tables import markdown, replace_tables

RESULT = Path(__file__).parent / "results" / "natural.json"

# ---------------------------------------------------------------------------------------------------------------------
# FLamby's protocol (github.com/owkin/FLamby, fed_heart_disease): one split for all seeds, features normalised by the centre's
# training part, logistic regression, batches of 4, accuracy on the centre's own test part.

SEEDS = (42, 43, 44, 45, 46)
SPLIT, TEST = 43, 0.34  # its random_state and test share
BATCH, LR = 4, 0.0005  # its 0.001 for one output: two outputs move apart twice as fast
LOCAL = LocalSpec(epochs=50, batch_size=BATCH, lr=LR, optimiser="adam")
UPDATES, ROUNDS = 100, 15  # mini-batches of a round; rounds, from its get_nb_max_rounds
HELD = 4  # one in so many training examples is what a silo decides by, where it decides

# From its flamby/results/results_benchmark_fed_heart_disease/heart_seed4?.csv: a line for each seed, centres as below.
PUBLISHED = {
    "FLamby: each centre alone": [
        [0.7308, 0.7528, 0.8125, 0.7556],
        [0.7500, 0.7416, 0.8125, 0.6889],
        [0.7308, 0.7528, 0.6250, 0.6667],
        [0.7500, 0.7416, 0.8125, 0.6444],
        [0.7692, 0.7416, 0.5625, 0.7556],
    ],
    "FLamby: FedAvg": [
        [0.7596, 0.6966, 0.6875, 0.6222],
        [0.7212, 0.7416, 0.7500, 0.6667],
        [0.7404, 0.7528, 0.5000, 0.5778],
        [0.7308, 0.6742, 0.7500, 0.6222],
        [0.7019, 0.7303, 0.5625, 0.7111],
    ],
    "FLamby: FedYogi, its best": [
        [0.7596, 0.7640, 0.7500, 0.6222],
        [0.7308, 0.7303, 0.7500, 0.6667],
        [0.7692, 0.7528, 0.7500, 0.7333],
        [0.7596, 0.7416, 0.7500, 0.6889],
        [0.7788, 0.7753, 0.6875, 0.6667],
    ],
}
STACK = {"participation.rule": "always", "participation.against": "outside", "offer.kind": "stack"}
DECIDING = {
    "FedAvg, everybody in": {"participation.rule": "always"},
    "FedAvg, Eq. 1": {"participation.rule": "accuracy"},
    "stack, everybody trains": STACK,
    "stack, everybody trains, folds": {**STACK, "offer.folds": 5},
    "stack, everybody trains, folds, output bias local": {**STACK, "offer.folds": 5, "share": "but-bias"},
}


@dataclass(frozen=True)
class Updates(TorchTask):
    """A task of which every silo has as many mini-batches in an epoch: rows are repeated, but silos count with what they have."""

    counted: tuple[int, ...] = ()

    def init(self, seed: int) -> torch.Tensor:
        """FLamby's start, its one output as the difference of our two."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            theirs = torch.nn.Linear(self.pool.example_shape[0], 1)
        both = {"weight": theirs.weight.detach().T, "bias": theirs.bias.detach()}
        halves = {f"layers.0.{name}": torch.cat([-v, v], -1) / 2 for name, v in both.items()}
        return self.layout.pack(halves)

    @property
    def examples(self) -> Ints:
        return np.array(self.counted)


def normalised(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """As FLamby does it, but for a column that does not vary in training: that is 0 here, and up to a billion there."""
    spread = by.std(0, ddof=1)
    return np.where(spread > 0, (x - by.mean(0)) / np.where(spread > 0, spread, 1), 0.0)


def parts() -> tuple[np.ndarray, np.ndarray, dict[str, dict[str, np.ndarray]], int]:
    """Features, classes, every centre's rows by part, and how many test values leave a column that training does not vary.

    Where nobody decides, training stands in for what a silo decides by.
    """
    from sklearn.model_selection import train_test_split

    records, rows, strange = load_natural("heart"), {}, 0
    x = np.zeros(records.x.shape, np.float32)
    for centre in silos("heart"):  # Cleveland, Hungary, Switzerland, Long Beach, as FLamby counts them
        mine = np.flatnonzero(records.silo == centre)
        y = records.y[mine]
        layers = y if np.bincount(y, minlength=2).min() > 2 else None
        train, test = train_test_split(
            np.arange(len(mine)), test_size=TEST, train_size=1 - TEST, random_state=SPLIT, stratify=layers
        )
        x[mine] = normalised(records.x[mine], records.x[mine[train]])
        fixed = records.x[mine[train]].std(0) == 0
        strange += int((records.x[mine[test]] != records.x[mine[train]].mean(0))[:, fixed].sum())
        rows[centre] = {"train": mine[train], "validation": mine[train], "test": mine[test]}
    return x, records.y, rows, strange


def task_of(seed: int, decides: bool = False, tiled: bool = True) -> Updates:
    """The protocol's task. `tiled`: an epoch is `UPDATES` mini-batches; `decides`: a part of training is for deciding."""
    x, y, rows, _ = parts()
    counted = []
    for k, by_part in enumerate(rows.values()):
        shuffled = stream(seed, "flamby", k).permutation(by_part["train"])
        if decides:
            by_part["validation"], shuffled = np.split(shuffled, [len(shuffled) // HELD])
        counted.append(len(shuffled))
        by_part["train"] = np.resize(shuffled, UPDATES * BATCH) if tiled else shuffled
    plain = build_natural_task("heart", threads=1)  # for its model and criterion
    members = tuple(Silo(name, by_part, client=k) for k, (name, by_part) in enumerate(rows.items()))
    return Updates(
        plain.make, members, Pool.of(x, y), None, plain.criterion, plain.settings, {}, counted=tuple(counted)
    )


def accuracies(task: TorchTask, theta: torch.Tensor) -> list[float]:
    return task.evaluate(theta, np.arange(len(task.members)), "test").accuracy.tolist()


def one_seed(seed: int, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """The test accuracies of one seed, row by row."""
    whole = task_of(seed, tiled=False)
    everybody = np.arange(len(whole.members))
    alone = whole.train(repeat(whole.init(seed), len(everybody)), everybody, LOCAL, 1, seed)
    yield "each centre alone", accuracies(whole, alone)
    plain = {"local.epochs": 1, "local.batch_size": BATCH, "local.lr": LR, "local.clip": 0.0, "gate.outlier": 0}
    plain |= {"mechanism.name": "fedavg", "mechanism.beta": "examples", "alone": True}

    def run(task: TorchTask, more: dict[str, Any]) -> Any:
        return feduca.run({"name": "flamby"}, {**plain, **more}, rounds=rounds, seed=seed, task=task)

    fixed = task_of(seed)
    shared = run(fixed, {"participation.rule": "always"}).theta
    yield "FedAvg", accuracies(fixed, repeat(torch.as_tensor(shared), len(everybody)))
    deciding = task_of(seed, decides=True)
    for label, more in DECIDING.items():
        last = run(deciding, {"local.optimiser": "adam", **more}).clients[-1]
        if label == next(iter(DECIDING)):
            yield "alone, three quarters of its training data", list(last["test_alone"])
        yield label, list(last["test_deployed"])


def flamby(smoke: bool) -> dict[str, Any]:
    """Accuracy on the centres' own test parts, mean over seeds."""
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS[:1] if smoke else SEEDS:
        for label, values in one_seed(seed, 2 if smoke else ROUNDS):
            found.setdefault(label, []).append(values)
    _, _, rows, strange = parts()
    return {
        "centres": list(rows),
        "sizes": {part: [len(r[part]) for r in rows.values()] for part in ("train", "test")},
        "values_beyond_training": strange,
        "seeds": list(SEEDS),
        "rounds": ROUNDS,
        "updates": UPDATES,
        "published": PUBLISHED,
        "rows": {label: np.round(values, 4).tolist() for label, values in found.items()},
    }


# ---------------------------------------------------------------------------------------------------------------------
# What an outside option costs

UNTESTED = {"local.epochs": 5, "task.test_share": 0.0}  # scores on untouched data are for studies: no part of the price
IMAGES = (
    "28 x 28, MLP"  # ten silos of random numbers in Fashion-MNIST's shape: what they are makes no difference in time
)
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "heart, logistic": ("clinics", {**UNTESTED, "task.data": "heart"}),
    "randhie, logistic": ("clinics", UNTESTED),
    "randhie, MLP 16": ("clinics", {**UNTESTED, "task.model": "mlp", "task.hidden": [16]}),
    "digits, MLP": ("quickstart", {}),
    IMAGES: ("quickstart", {"local.epochs": 5}),
}
WAYS: dict[str, dict[str, Any]] = {
    "FedAvg, everybody in": {"participation.rule": "always"},
    "stack, everybody trains": STACK,
    "stack, everybody trains, folds": {**STACK, "offer.folds": 5},
    "stack, private every 5": {**STACK, "outside.every": 5},
    "stack, best kept": {**STACK, "outside.kind": "best-kept"},
}
BLOCK, BLOCKS = 10, 5  # rounds timed together (two trainings of a private model every 5), and how often


def images(train: int = 480, validation: int = 120) -> TorchTask:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for k in range(10):
            arrays = {}
            for part, n in (("train", train), ("validation", validation)):
                arrays[f"x_{part}"] = rng.normal(size=(n, 784)).astype(np.float32)
                arrays[f"y_{part}"] = np.arange(n) % 10
            np.savez(f"{folder}/silo-{k}.npz", **arrays)
        return build_own_task(folder, model="mlp", threads=1)


def blocks(task: str, own: dict[str, Any], rounds: int) -> Iterator[float]:
    """CPU seconds a round, `BLOCK` rounds at a time."""
    recipe, more = TASKS[task]
    settings = {"mechanism.name": "fedavg", "alone": False, "compare": [], **more, **own}
    steps = api.iterate(recipe, settings, rounds=rounds, task=images() if task == IMAGES else None)
    while True:
        begun = time.process_time()
        for _ in range(BLOCK):
            if next(steps, None) is None:
                return
        yield (time.process_time() - begun) / BLOCK


def models_kept(own: dict[str, Any]) -> int:
    """Models that a silo keeps from round to round, its own and the last one it sent among them."""
    chosen = api.recipe("quickstart", {"mechanism.name": "fedavg", "compare": [], **own}, rounds=2)
    made = build(chosen, 0)
    for _ in loop.steps(made.server, made.theta, made.task.examples, made.federation):
        pass
    kept = made.federation.snapshot().values()
    return sum(len(array.shape) == 2 and array.shape[1] == len(made.theta) for array in kept)


def cost(smoke: bool) -> dict[str, Any]:
    """Ways side by side: a block of rounds of each in turn, in one process on one thread; medians of blocks."""
    torch.set_num_threads(1)
    count = 2 if smoke else BLOCKS + 1  # the first is not counted
    found = {}
    for task in TASKS:
        running = {way: blocks(task, own, count * BLOCK) for way, own in WAYS.items()}
        seen: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(count):
            for way, timed in running.items():
                seen[way].append(next(timed))
        base = seen["FedAvg, everybody in"][1:]
        found[task] = {
            way: {
                "ms": round(1000 * median(times[1:]), 3),
                "ratio": round(median(t / b for t, b in zip(times[1:], base)), 3),
            }
            for way, times in seen.items()
        }
    return {
        "block": BLOCK,
        "blocks": BLOCKS,
        "tasks": found,
        "models": {w: models_kept(own) for w, own in WAYS.items()},
    }


# ---------------------------------------------------------------------------------------------------------------------


def flamby_table(found: dict[str, Any]) -> str:
    """Means over seeds, centre by centre; in brackets how many patients its test part has."""
    heads = ["", *(f"{c} ({n})" for c, n in zip(found["centres"], found["sizes"]["test"])), "mean"]
    rows = []
    for label, by_seed in {**found["published"], **found["rows"]}.items():
        centres = 100 * np.mean(by_seed, 0)
        rows.append([label, *(f"{value:.1f}" for value in (*centres, centres.mean()))])
    return markdown(heads, rows)


def cost_table(found: dict[str, Any]) -> str:
    tasks = found["tasks"]
    rows = [
        [way, *(f"{seen[way]['ratio']:.2f}" for seen in tasks.values()), kept] for way, kept in found["models"].items()
    ]
    rows.append(["FedAvg, ms a round", *(f"{seen['FedAvg, everybody in']['ms']:.1f}" for seen in tasks.values()), ""])
    return markdown(["time of a round over FedAvg's", *tasks, "models a silo keeps"], rows)


TABLES = {"flamby": flamby_table, "cost": cost_table}
PARTS = {"flamby": flamby, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description="Natural silos, measured beside others.")
    parser.add_argument("part", nargs="?", default="all", choices=[*PARTS, "all", "tables"])
    parser.add_argument("--smoke", action="store_true", help="small, and nothing is written")
    told = parser.parse_args()
    whole = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    if told.part == "tables":
        replace_tables(
            RESULT.parents[2] / "docs" / "real-more.md", {name: TABLES[name](whole[name]) for name in TABLES}
        )
        return
    for name in PARTS if told.part == "all" else [told.part]:
        found = PARTS[name](told.smoke)
        print(json.dumps(found, indent=1))
        if not told.smoke:
            whole[name] = {**found, "environment": environment()}
            RESULT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
