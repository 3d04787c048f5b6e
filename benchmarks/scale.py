"""How a federation grows: seconds and memory per round for 10 to 10,000 silos, a cohort of 100 asked or all of them.

    python benchmarks/scale.py            everything (minutes), into benchmarks/results/scale.json and docs/scale.md
    python benchmarks/scale.py --smoke    two small federations, printed only
    python benchmarks/scale.py --tables   docs/scale.md from what was measured before
    python benchmarks/scale.py --only study   one part anew: federations, large, study or peers

A federation is a process of its own with one thread, in which the methods run one after the other on the same data: silos of 20
examples of 16 numbers in two classes (or from 2 to 200 of them, log-normal), a softmax model of 34 parameters, one epoch of
local training. A cohort goes round robin, and what counts are rounds after every silo was asked once: later ones cost more, for
silos then have models of their own. Seconds are a whole round's with its records, the median; of the processor (`cpu`), which
says more on a machine with other work, and of the clock. Megabytes are the most that the process held with all of its methods,
less what one with a single silo does.

Beside it: the same FedAvg in pfl and in Flower's simulation, where they are installed (the jobs of `feduca bench cpu`), a model
of 100,000 parameters whose silos' models lie on the disk, and a study's runs with one, two and four jobs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tables import markdown, replace_tables

ROOT = Path(__file__).resolve().parents[1]
RESULT, DOCUMENT = ROOT / "benchmarks" / "results" / "scale.json", ROOT / "docs" / "scale.md"
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"mechanism.name": "fedavg", "memory.kind": "none", "participation.rule": "always"},
    "offers": {
        "mechanism.name": "fedavg",
        "memory.kind": "none",
        "participation.rule": "accuracy",
        "offer.kind": "least-concession",
    },
    "feduca": {"mechanism.name": "feduca"},
}
TITLES = {"fedavg": "FedAvg", "offers": "offers", "feduca": "FedUCA"}
LOCAL = {"local.epochs": 1, "local.batch_size": 10, "utility.check_every": 0}
COHORT, EXAMPLES, WIDTH = 100, 20, 16
FEDERATIONS: list[tuple[str, int, int]] = [  # sizes of silos, how many there are, how many are asked
    ("equal", 100, 100),
    ("equal", 10_000, COHORT),
    ("equal", 10, 10),
    ("equal", 1_000, COHORT),
    ("equal", 1_000, 1_000),
    ("equal", 10_000, 10_000),
    ("log-normal", 100, 100),
    ("log-normal", 10_000, COHORT),
]
STUDY = "name = 'study'\nrounds = 600"  # of quickstart's silos: long beside the start of a process
LARGE = [256, 370]  # hidden layers of a model of 100,000 parameters
PEERS = {"pfl": ("feduca.bench.with_pfl", "pfl", 1_000, 6), "flower": ("feduca.bench.with_flower", "ray", 100, 4)}
LIMIT = 240.0  # seconds of one process
PARTS = ("federations", "large", "study", "peers")


def counts(sizes: str, silos: int) -> np.ndarray:
    """Examples of each silo: all alike, or a hundred times as many in the largest as in the smallest."""
    if sizes == "equal":
        return np.full(silos, EXAMPLES)
    spread = np.random.default_rng(1).normal(size=silos).clip(-2.5, 2.5) / 2.5
    return np.round(EXAMPLES * 10.0**spread).astype(int)


def data(sizes: str, silos: int) -> tuple[dict[str, Any], Any]:
    """What silos have, and a test set."""
    rng = np.random.default_rng(0)
    line = rng.normal(size=WIDTH)

    def some(n: int) -> tuple[Any, Any]:
        x = rng.normal(size=(n, WIDTH)).astype(np.float32)
        return x, (x @ line + rng.normal(size=n) > 0).astype(int)

    return {f"silo-{k}": (*some(n), *some(n)) for k, n in enumerate(counts(sizes, silos))}, some(500)


def held() -> float:
    """Megabytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(task: Any, settings: dict[str, Any], warm: int, rounds: int) -> dict[str, float]:
    """The median round of a run, without the first ones."""
    import feduca

    wall, cpu = [], []

    def watch(*_: Any) -> None:
        wall.append(time.perf_counter())
        cpu.append(time.process_time())

    feduca.run("quickstart", {**LOCAL, **settings}, rounds=warm + rounds, task=task, watch=watch)
    return {
        name: round(statistics.median(np.diff(ends[warm - 1 :])), 5) for name, ends in (("wall", wall), ("cpu", cpu))
    }


def federation(sizes: str, silos: int, asked: int) -> dict[str, Any]:
    """Every method in this process, on the same data."""
    import feduca

    given, test = data(sizes, silos)
    task = feduca.own_task(given, model="logistic", classes=2, test=test, threads=1)
    cohort: dict[str, Any] = {} if asked == silos else {"cohort.size": asked, "cohort.draw": "round-robin"}
    warm = 2 if asked == silos else silos // asked + 1
    rounds = max(4, min(50, 3_000 // asked))
    found = {name: timed(task, {**settings, **cohort}, warm, rounds) for name, settings in METHODS.items()}
    return {**found, "megabytes": held()}


def large(store: str, silos: int, rounds: int) -> dict[str, Any]:
    """FedAvg with a memory of updates and a model of 100,000 parameters."""
    import feduca

    given, test = data("equal", silos)
    task = feduca.own_task(given, model="mlp", hidden=LARGE, classes=2, test=test, threads=1)
    before = held()
    settings = {**METHODS["fedavg"], "memory.kind": "update", "cohort.size": COHORT, "cohort.draw": "round-robin"}
    found = timed(task, {**settings, "cohort.store": store}, 2, rounds)
    return {**found, "parameters": int(task.size), "rounds": rounds + 2, "megabytes": held() - before}


def study(workers: int) -> dict[str, Any]:
    """Eight runs of a study with so many jobs at a time, start and all."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "study.toml"
        recipe.write_text(f"{STUDY}\nseeds = {list(range(8))}\n[[compare]]\nlabel = 'FedUCA'\n", encoding="utf-8")
        command = [sys.executable, "-m", "feduca", "compare", str(recipe), "--jobs", str(workers), "--json"]
        started = time.perf_counter()
        with subprocess.Popen(
            [*command, "--out", folder], env=quiet(), stdout=subprocess.DEVNULL, start_new_session=True
        ) as work:
            try:
                failed = work.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(work.pid, signal.SIGKILL)  # its jobs, too
                failed = True
        return {"longer_than": LIMIT} if failed else {"wall": round(time.perf_counter() - started, 2)}


def peer(name: str) -> dict[str, Any]:
    """Another simulator and our FedAvg on the same job, in turn: the fastest round of each, for noise only ever adds."""
    module, package, silos, rounds = PEERS[name]
    if importlib.util.find_spec(package) is None:
        return {"left_out": f"{package} is not installed"}
    given, _ = data("equal", silos)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        columns = [np.stack([silo[i] for silo in given.values()]) for i in (0, 1)]
        np.save(folder / "x.npy", columns[0])
        np.save(folder / "y.npy", columns[1])
        np.savez(folder / "first.npz", **{"0.weight": np.zeros((2, WIDTH), "f4"), "0.bias": np.zeros(2, "f4")})
        spec = {
            "rounds": rounds,
            "silos": silos,
            "epochs": 1,
            "batch_size": 10,
            "lr": 0.1,
            "weight_decay": 0,
            "clip": 0,
        }
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        command = [sys.executable, "-m", module, str(folder)]
        try:
            done = subprocess.run(
                command, env=quiet(), capture_output=True, text=True, encoding="utf-8", timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return {"left_out": f"longer than {LIMIT:g} s"}
        if done.returncode:
            return {"left_out": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
        theirs = {"wall": min(json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))[1:])}
        if (spent := folder / f"{name}-cpu.json").exists():
            theirs["cpu"] = min(json.loads(spent.read_text(encoding="utf-8"))[1:])
    ours = apart("fastest", silos)
    return {"silos": silos, "theirs": theirs, "ours": ours}


def fastest(silos: int) -> dict[str, float]:
    """Our FedAvg with everybody asked: a whole round with its scores and records, which the others do without."""
    import feduca

    given, test = data("equal", silos)
    task = feduca.own_task(given, model="logistic", classes=2, test=test, threads=1)
    ends: list[tuple[float, float]] = []
    feduca.run(
        "quickstart",
        {**LOCAL, **METHODS["fedavg"], "local.lr": 0.1, "local.lr_decay": 1.0, "local.clip": 0.0},
        rounds=8,
        task=task,
        watch=lambda *_: ends.append((time.perf_counter(), time.process_time())),
    )
    wall, cpu = np.diff(np.array(ends), axis=0).min(0)
    return {"wall": float(wall), "cpu": float(cpu)}


KINDS = {"federation": federation, "large": large, "fastest": fastest}


def quiet() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}
    return {**os.environ, **threads, **off}


def apart(*case: Any) -> dict[str, Any]:
    """A case in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    try:
        said = subprocess.run(
            command, env=quiet(), capture_output=True, text=True, encoding="utf-8", timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"longer_than": LIMIT}
    if said.returncode:
        raise SystemExit(said.stderr)
    return json.loads(said.stdout.splitlines()[-1])


def measure(only: str | None) -> None:
    """Everything, or one part of it beside what is known of the others; told and kept as it comes."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if only else {}

    def tell(name: str, value: dict[str, Any]) -> None:
        print(name, value, file=sys.stderr, flush=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    found |= {"cores": os.cpu_count(), "machine": platform.machine()}
    wanted = [only] if only else list(PARTS)
    found |= {part: [] if part == "federations" else {} for part in wanted}
    if "federations" in wanted:
        bare = apart("federation", "equal", 1, 1)["megabytes"]
        for sizes, silos, asked in FEDERATIONS:
            seen = apart("federation", sizes, silos, asked)
            if "megabytes" in seen:
                seen["megabytes"] = round(seen["megabytes"] - bare)
            found["federations"].append({"sizes": sizes, "silos": silos, "asked": asked, **seen})
            tell("federation", found["federations"][-1])
    for store in ("disk", "memory") if "large" in wanted else ():
        found["large"][store] = apart("large", store, 10_000, 10)
        tell(store, found["large"][store])
    for workers in (1, 2, 4) if "study" in wanted else ():
        found["study"][str(workers)] = study(workers)
        tell("workers", found["study"])
    for name in PEERS if "peers" in wanted else ():
        found["peers"][name] = peer(name)
        tell(name, found["peers"][name])


# Tables --------------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Those of docs/scale.md."""
    whole = {case["sizes"]: case for case in found["federations"] if case["silos"] == case["asked"] == COHORT}

    def shown(case: dict[str, Any]) -> list[Any]:
        if "longer_than" in case:
            return [f"over {case['longer_than']:g} s", "", "", "", ""]
        each = [f"{1000 * case[name]['cpu']:.1f}" for name in METHODS]
        times = case["fedavg"]["cpu"] / whole[case["sizes"]]["fedavg"]["cpu"]
        return [*each, f"{times:.2f}", case["megabytes"]]

    order = sorted(found["federations"], key=lambda case: (case["sizes"], case["silos"], case["asked"]))
    rows = [[case["sizes"], f"{case['silos']:,}", f"{case['asked']:,}", *shown(case)] for case in order]
    header = [
        "examples",
        "silos",
        "asked",
        *(f"{name}, ms" for name in TITLES.values()),
        "FedAvg, times 100 silos",
        "MB",
    ]
    stores = [
        [store, f"{case['parameters']:,}", f"{1000 * case['cpu']:.0f}", f"{case['megabytes']:.0f}", case["rounds"]]
        for store, case in found["large"].items()
        if "cpu" in case
    ]
    return {
        "rounds": markdown(header, rows),
        "stores": markdown(["cohort.store", "parameters", "a round, ms", "MB", "after rounds"], stores),
        "peers": markdown(
            ["beside", "silos", "a round, over ours"], [_beside(*item) for item in found["peers"].items()]
        ),
        "workers": markdown(
            ["runs at a time", "eight runs, s", "times as fast"],
            [
                [n, f"{case['wall']:.1f}", f"{found['study']['1']['wall'] / case['wall']:.2f}"]
                for n, case in found["study"].items()
                if "wall" in case
            ],
        ),
    }


def _beside(name: str, case: dict[str, Any]) -> list[Any]:
    if "left_out" in case:
        return [name, "", f"left out: {case['left_out']}"]
    ratios = [f"{case['theirs'][k] / case['ours'][k]:.1f} ({k})" for k in ("cpu", "wall") if k in case["theirs"]]
    return [name, f"{case['silos']:,}", ", ".join(ratios)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        kind, *case = json.loads(given.one)
        print(json.dumps(KINDS[kind](*case)))
        return
    if given.smoke:
        print(json.dumps([apart("federation", "equal", 10, 10), apart("federation", "log-normal", 40, 10)]))
        return
    if not given.tables:
        measure(given.only)
    replace_tables(DOCUMENT, tables(json.loads(RESULT.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
