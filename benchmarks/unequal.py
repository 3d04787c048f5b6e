"""What silos of very unequal size cost: a round of them beside a round of equal ones over as many examples.

    python benchmarks/unequal.py [--device cuda] [--out benchmarks/results/unequal.json]
    python benchmarks/unequal.py --table        # the table in docs/speed.md, from the committed summary

Sizes are log-normal, the largest 100 times the smallest. Equal and unequal silos take turns, and the fastest of each counts;
on a CPU of one thread, by the processor's time, which others on the machine do not lengthen. Images are random: time does not
depend on what they show.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from feduca.bench.cpu import _processor
from feduca.runs.commit import commit
from feduca.tasks import Dataset, TorchTask, build_task
from feduca.tasks.task import Silo
from feduca.types import LocalSpec
from tables import markdown, replace_tables

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = ROOT / "benchmarks" / "results" / "unequal.json"
DOCUMENT = ROOT / "docs" / "speed.md"
APART = 100
PARTS = {"train": 1.0, "validation": 0.25}  # examples of each part, for one of training


@dataclass(frozen=True)
class Case:
    """A model on pictures of this side, for so many silos with so many training examples each on average."""

    model: str
    side: int
    silos: int
    mean: int
    spec: LocalSpec
    precision: str = "fp32"


PLAIN = LocalSpec(epochs=2, batch_size=20, lr=0.05, clip=10.0)
CPU = {
    "perceptron, compiled": Case("mlp", 28, 20, 400, PLAIN),
    "perceptron, autograd": Case("mlp", 28, 20, 400, replace(PLAIN, momentum=0.9)),
    "CNN, autograd": Case("cnn", 16, 20, 120, replace(PLAIN, epochs=1)),
}
PAPER = LocalSpec(epochs=2, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0)
CUDA = {
    "CNN, 100 silos": Case("cnn", 32, 100, 400, PAPER, "bf16"),
    "CNN, 10 silos": Case("cnn", 32, 10, 4000, PAPER, "bf16"),
    "perceptron, 100 silos": Case("mlp", 28, 100, 400, PAPER, "bf16"),
    "CNN with momentum, 100 silos": Case("cnn", 32, 100, 400, replace(PAPER, momentum=0.9), "bf16"),
}


def say(*words: object) -> None:
    print(*words, flush=True)


def lognormal(silos: int, total: int, apart: float = APART) -> np.ndarray:
    """Sizes at the quantiles of a log-normal, the largest `apart` times the smallest; their sum is about `total`."""
    z = norm.ppf((np.arange(silos) + 0.5) / silos)
    sizes = np.exp(z * np.log(apart) / (z[-1] - z[0]))
    return np.maximum(1, np.rint(sizes * total / sizes.sum())).astype(int)


def pictures(side: int, channels: int, n: int) -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (n, side, side, channels), dtype=np.uint8), rng.integers(0, 10, n)
    half = np.full(channels, 0.5)
    return Dataset(f"noise-{side}", x, y, x[:100], y[:100], 10, tuple("0123456789"), half, half)


def task_of(base: TorchTask, sizes: np.ndarray) -> TorchTask:
    """Silos of these sizes, in no order, over the examples of `base`."""
    sizes, begin, members = np.random.default_rng(1).permutation(sizes), 0, []
    for k, size in enumerate(sizes):
        rows = {}
        for part, share in PARTS.items():
            n = max(1, round(share * size))
            rows[part], begin = np.arange(begin, begin + n), begin + n
        members.append(Silo(f"silo-{k}", rows, k))
    return replace(base, members=tuple(members))


def measured(case: Case, device: str, repeat: int) -> dict[str, Any]:
    """Seconds of training, evaluation and a utility curve, for equal and unequal silos, and their ratios."""
    total = case.silos * case.mean
    channels = 3 if case.side == 32 else 1
    data = pictures(case.side, channels, int(total * sum(PARTS.values()) * 1.1) + 10 * case.silos)
    base = build_task(
        data=data, model=case.model, clients=2, classes_per_client=10, device=device, precision=case.precision
    )
    sizes = {"equal": np.full(case.silos, case.mean), "unequal": lognormal(case.silos, total)}
    tasks = {name: task_of(base, some) for name, some in sizes.items()}
    clients, theta = np.arange(case.silos), base.init(0).expand(case.silos, -1)
    places = np.tile(np.linspace(0.05, 0.95, 5), (case.silos, 1))
    work: dict[str, Callable[[TorchTask, int], object]] = {
        "train": lambda task, r: task.train(theta, clients, case.spec, r, 0),
        "evaluate": lambda task, r: task.evaluate(theta, clients, "validation"),
        "curve": lambda task, r: task.along(theta, theta.roll(1, 1), places, clients, "validation"),
    }
    best: dict[str, dict[str, float]] = {name: dict.fromkeys(work, np.inf) for name in tasks}
    for r in range(repeat + 1):  # the first compiles and captures
        for name, task in tasks.items():
            for what, do in work.items():
                began = _clock(device)
                do(task, r)
                spent = _clock(device) - began
                if r:
                    best[name][what] = min(best[name][what], spent)
    for own in best.values():
        own["round"] = sum(own.values())
    steps = -(-sizes["unequal"] // case.spec.batch_size)
    row = {
        "silos": case.silos,
        "examples": {name: int(task.examples.sum()) for name, task in tasks.items()},
        "apart": float(tasks["unequal"].examples.max() / tasks["unequal"].examples.min()),
        "padded_to_the_longest": float(
            case.silos * steps.max() / steps.sum()
        ),  # steps of everybody over those there are
        "seconds": {name: {k: round(v, 5) for k, v in own.items()} for name, own in best.items()},
        "ratio": {what: round(best["unequal"][what] / best["equal"][what], 3) for what in best["equal"]},
    }
    if device == "cuda":  # numbers of silos that were captured
        kept: dict[str, Any] = tasks["unequal"].engine.kept  # type: ignore[attr-defined]
        row["graphs"] = {
            name: [sorted(t.graphs.made) for t in trainers.made.values()] for name, trainers in kept.items()
        }
    return row


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def table(found: dict[str, Any]) -> str:
    """Time of a round of unequal silos over that of equal ones, as it was and as it is."""
    rows = []
    for device, labels in found.items():
        was = {case: row["ratio"]["round"] for case, row in labels.get("before", {}).get("cases", {}).items()}
        for case, row in labels["now"]["cases"].items():
            before = f"{was[case]:.2f}" if case in was else ""
            now = f"{row['ratio']['round']:.2f}"
            where = "GPU" if device == "cuda" else "CPU"
            rows.append([f"{case}, {where}", row["silos"], f"{row['padded_to_the_longest']:.1f}", before, now])
    return markdown(["work", "silos", "steps of everybody padded, over those there are", "before", "now"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="some cases, by their names' beginnings")
    parser.add_argument("--label", default="now", help="under what to keep the figures")
    parser.add_argument("--out", help="write the figures into this file, beside those of other labels and devices")
    parser.add_argument("--table", action="store_true", help="only write the table from the committed summary")
    options = parser.parse_args()
    if options.table:
        replace_tables(DOCUMENT, {"unequal": table(json.loads(SUMMARY.read_text(encoding="utf-8")))})
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else _processor()
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "commit": commit(), "cases": {}}
    if options.device == "cpu":
        torch.set_num_threads(1)
    for label, case in (CPU if options.device == "cpu" else CUDA).items():
        if options.only and not any(label.startswith(start) for start in options.only):
            continue
        row = found["cases"][label] = measured(case, options.device, options.repeat)
        seconds = ", ".join(f"{k} {1e3 * v['round']:.0f} ms" for k, v in row["seconds"].items())
        say(
            f"{label}: {row['silos']} silos, {row['apart']:.0f} times apart: {seconds}; unequal over equal {row['ratio']}"
        )
    if options.out:
        path = Path(options.out)
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept.setdefault(options.device, {})[options.label] = found
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
