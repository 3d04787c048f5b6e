"""How a federation grows: seconds and memory per round for 10 to 10,000 silos, a cohort of 100 asked or all of them.

    python benchmarks/scale.py [--rounds 5]         into benchmarks/results/scale.json
    python benchmarks/scale.py --smoke              two small ones, printed only

Each case is a process of its own with one thread: silos of 20 examples of 16 numbers in two classes, a softmax model of 34
parameters, one epoch of local training. Seconds are a whole round's with its records, the median, without the first two rounds;
megabytes are the most that the process held, less what a process with one silo holds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parent / "results" / "scale.json"
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
COHORT, WARM = 100, 2
EXAMPLES, WIDTH = 20, 16


def one(method: str, silos: int, cohort: int | None, rounds: int) -> dict[str, float]:
    """This process's figures of one case."""
    import numpy as np

    import feduca

    rng = np.random.default_rng(0)
    line = rng.normal(size=WIDTH)

    def some(n: int) -> tuple[Any, Any]:
        x = rng.normal(size=(n, WIDTH)).astype(np.float32)
        return x, (x @ line + rng.normal(size=n) > 0).astype(int)

    given = {f"silo-{k}": (*some(EXAMPLES), *some(EXAMPLES)) for k in range(silos)}
    task = feduca.own_task(given, model="logistic", classes=2, test=some(500), threads=1)
    settings = {"local.epochs": 1, "local.batch_size": 10, "utility.check_every": 0, **METHODS[method]}
    settings |= {} if cohort is None else {"cohort.size": cohort}
    ends: list[float] = []
    feduca.run(
        "quickstart", settings, rounds=rounds + WARM, task=task, watch=lambda *_: ends.append(time.perf_counter())
    )
    each = [b - a for a, b in zip(ends[WARM - 1 :], ends[WARM:])]
    return {"seconds": statistics.median(each), "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def apart(*case: Any, limit: float) -> dict[str, float] | None:
    """The same in a process of its own; None where it takes longer than `limit` seconds."""
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    try:
        said = subprocess.run(
            command, env=env, capture_output=True, text=True, encoding="utf-8", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if said.returncode:
        raise SystemExit(said.stderr)
    return json.loads(said.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a case may take")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*json.loads(given.one))))
        return
    cases = [
        (method, silos, cohort)
        for method in METHODS
        for silos in (10, 100, 1_000, 10_000)
        for cohort in (None, COHORT)
        if cohort is None or silos > cohort
    ]
    cases = [("fedavg", 10, None), ("feduca", 200, COHORT)] if given.smoke else cases
    bare = apart("fedavg", 1, None, given.rounds, limit=600)
    assert bare is not None, "one silo takes no time"
    found: list[dict[str, Any]] = []
    for method, silos, cohort in cases:
        seen: dict[str, Any] | None = apart(method, silos, cohort, given.rounds, limit=given.limit)
        if seen is None:
            seen = {"longer_than": given.limit}
        else:
            seen = {"seconds": round(seen["seconds"], 4), "megabytes": round(seen["megabytes"] - bare["megabytes"])}
        found.append({"method": method, "silos": silos, "asked": cohort or silos, **seen})
        print(found[-1], file=sys.stderr, flush=True)
        if not given.smoke:
            RESULT.write_text(
                json.dumps({"rounds": given.rounds, "limit": given.limit, "cases": found}, indent=1) + "\n",
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
