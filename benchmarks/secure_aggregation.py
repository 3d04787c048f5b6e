"""What secure aggregation costs and changes: the same runs with and without it, in turn.

    python benchmarks/secure_aggregation.py [--deployed] [--out benchmarks/results/secure_aggregation.json]
    python benchmarks/secure_aggregation.py --tables

`speed`: a round's processor seconds in simulation, on the quickstart and with a CNN of 586 thousand parameters, ten silos each.
Runs without and with it take turns; the first of each and every run's first round are left out. `accuracy`: thirty rounds of the
quickstart over three seeds, with silos that refuse, are silent or drop out. `--deployed` adds rounds over three SuperNodes.
`--only` measures one of the three; `--tables` puts what was written down into docs/secure-aggregation.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.tables import markdown, replace_tables  # noqa: E402
from feduca.core import rounds as loop  # noqa: E402
from feduca.federation import Faulty  # noqa: E402
from feduca.federation.faults import DropsOut  # noqa: E402
from feduca.recipes.build import build, make_task, masked  # noqa: E402
from feduca.recipes.schema import load  # noqa: E402

RESULT = ROOT / "benchmarks/results/secure_aggregation.json"
PAGE = ROOT / "docs/secure-aggregation.md"
ON = {"privacy.secure_aggregation": True}
FEDAVG = {"mechanism.name": "fedavg", "participation.rule": "always"}
MIXTURE = {"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "best-mixture"}
CNN = {"task.data": "fmnist", "task.model": "cnn", "task.max_examples": 1000, "local.epochs": 5}
ABSENT = {**MIXTURE, "absent": 0.1}
ROWS = {
    "FedAvg, everybody": FEDAVG,
    "FedAvg, Eq. 1, best mixture": MIXTURE,
    "the same, one in ten silent": ABSENT,
    "FedAvg, everybody, one in ten drops out": {**FEDAVG, "drops": 0.1},
    "FedAvg, Eq. 1, best mixture, one in ten drops out": {**MIXTURE, "drops": 0.1},
    "FedUCA": {},
}


def steps(settings, rounds: int, seed: int):
    """All rounds of one run."""
    return list(stepped(settings, rounds, seed))


def stepped(settings, rounds: int, seed: int, task=None):
    """The same, one by one."""
    settings = dict(settings)
    absent, drops = settings.pop("absent", 0.0), settings.pop("drops", 0.0)
    recipe = load("quickstart", {"gate.outlier": 0.0, "rounds": rounds, **settings}).single()
    experiment = build(recipe, seed, task)
    federation = experiment.federation
    silent = {"kinds": ("absent",), "rate": absent}
    if recipe.privacy.secure_aggregation:
        inner = Faulty(federation._federation, range(10), seed, **silent) if absent else federation._federation
        more = {"drops": DropsOut(seed, drops)} if drops else {}
        federation = masked(recipe, inner, experiment.task.parameters, **more)
    elif absent:
        federation = Faulty(federation, range(10), seed, **silent)
    first = experiment.server, experiment.theta, experiment.task.examples, federation
    yield from loop.steps(*first, evaluate=experiment.task.test)


def speed(settings, rounds: int, times: int) -> dict[str, object]:
    """Processor seconds of a round: on a busy machine a clock says more of the others."""
    seconds: dict[str, list[float]] = {"plain": [], "secure": []}
    task = make_task(load("quickstart", settings).single(), 0)
    for turn in range(times + 1):
        for name, more in (("plain", {}), ("secure", ON)):
            ticks = [time.process_time() for _ in stepped({**settings, **more}, rounds, 0, task)]
            if turn:
                seconds[name] += [after - before for before, after in pairwise(ticks)]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "parameters": task.size,
        "rounds": len(seconds["plain"]),
        "median": medians,
        "ratio": medians["secure"] / medians["plain"],
    }


def accuracy(settings, seeds: int, rounds: int) -> dict[str, object]:
    found: dict[str, list[float]] = {"plain": [], "secure": [], "distance": [], "released": [], "participation": []}
    for seed in range(seeds):
        plain, secure = steps(settings, rounds, seed), steps({**settings, **ON}, rounds, seed)
        for name, done in (("plain", plain), ("secure", secure)):
            found[name].append(100 * float(np.mean([record.accuracy for record, *_ in done[-10:]])))
        ends = [np.asarray(done[-1][2].theta) for done in (plain, secure)]
        found["distance"].append(float(np.abs(ends[0] - ends[1]).max()))
        found["released"].append(float(np.mean(["No sum was" not in record.reason for record, *_ in secure])))
        found["participation"].append(100 * float(np.mean([record.participation for record, *_ in secure])))
    difference = [b - a for a, b in zip(found["plain"], found["secure"])]
    return {
        "plain": statistics.mean(found["plain"]),
        "secure": statistics.mean(found["secure"]),
        "largest_difference": max(map(abs, difference)),
        "largest_distance": max(found["distance"]),
        "released": 100 * statistics.mean(found["released"]),
        "participation": statistics.mean(found["participation"]),
    }


def deployed(rounds: int) -> dict[str, object]:
    from feduca.flower import deploy

    seconds = {}
    for name, more in (("plain", {}), ("secure", ON)):
        recipe = load("quickstart", {**FEDAVG, "task.clients": 3, "rounds": rounds, **more}).single()
        with tempfile.TemporaryDirectory() as folder:
            result = deploy.up(recipe, Path(folder), silos=3)
            seconds[name] = [record["seconds"]["round"] for record in result.rounds[1:]]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"rounds": len(seconds["plain"]), "median": medians, "ratio": medians["secure"] / medians["plain"]}


SPEED = {
    "quickstart": "quickstart (FedUCA)",
    "best mixture": "quickstart, FedAvg with best mixture",
    "cnn": "CNN, Fashion-MNIST",
}


def tables() -> dict[str, str]:
    """The tables of docs/secure-aggregation.md, by name."""
    known = json.loads(RESULT.read_text(encoding="utf-8"))
    head = ["quickstart, 30 rounds, 3 seeds", "accuracy % plain", "secure", "largest difference", "rounds released %"]
    figures = "plain", "secure", "largest_difference"
    rows = [
        [name, *(f"{found[key]:.1f}" for key in figures), f"{found['released']:.0f}"]
        for name, found in known["accuracy"].items()
    ]
    made = {"accuracy": markdown(head, rows)}
    head = ["ten silos in simulation", "parameters", "processor ms of a round, plain", "secure", "ratio"]
    rows = []
    for key, name in SPEED.items():
        found = known["speed"][key]
        ms = [1000 * found["median"][of] for of in ("plain", "secure")]
        rows.append(
            [name, found["parameters"], *(f"{x:.1f}" if x < 100 else f"{x:.0f}" for x in ms), f"{found['ratio']:.2f}"]
        )
    made["speed"] = markdown(head, rows)
    head, found = ["a deployed round", "seconds, plain", "secure", "ratio"], known.get("deployed")
    said = ["not measured"] * 3
    if found:
        said = [*(f"{found['median'][of]:.1f}" for of in ("plain", "secure")), f"{found['ratio']:.2f}"]
    return {**made, "deployed": markdown(head, [["quickstart, three SuperNodes", *said]])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deployed", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("accuracy", "speed", "deployed"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", action="store_true", help="put the committed figures into the page")
    given = parser.parse_args()
    if given.tables:
        replace_tables(PAGE, tables())
        return
    known: dict = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.is_file() else {}
    known["command"] = (
        "python benchmarks/secure_aggregation.py --deployed --out benchmarks/results/secure_aggregation.json"
    )
    known["machine"] = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}

    def save(name: str, value: object) -> None:
        known[name] = value
        print(name, json.dumps(value), flush=True)
        if given.out:
            given.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")

    if given.only in (None, "accuracy"):
        save("accuracy", {row: accuracy(settings, given.seeds, 30) for row, settings in ROWS.items()})
    if given.only in (None, "speed"):
        save(
            "speed",
            quick := {"quickstart": speed({}, 10, given.times), "best mixture": speed(MIXTURE, 10, given.times)},
        )
        save("speed", {**quick, "cnn": speed({**FEDAVG, **CNN}, 3, given.times)})
    if given.only == "deployed" or (given.deployed and given.only is None):
        save("deployed", deployed(5))


if __name__ == "__main__":
    main()
