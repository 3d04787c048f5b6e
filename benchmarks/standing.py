"""What standing costs in time: the same run without and with it, in turns, in processor seconds: `python -m benchmarks.standing`.

Honest runs, in which both compute the same to the bit. Turns are of one run each, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from feduca import api
from feduca.recipes.build import make_task
from feduca.recipes.schema import load
from feduca.runs.commit import commit
from feduca.studies.cells import cells

SETS = {"digits": {}, "fmnist": {"task.max_examples": 10000, "rounds": 5}}
TARGET = Path(__file__).parent / "results" / "standing.json"


def measured(data: str, method: str, turns: int) -> dict[str, Any]:
    """Median processor seconds a round of both, and the median of the turns' ratios."""
    wanted = cells(load("incentives"), {"data": [data], "method": [method]})
    off, on = (cell.recipe.with_settings(SETS[data]) for cell in wanted)
    task, seconds = make_task(off, 0), ([], [])
    api.run(off, {"rounds": 2}, task=task)  # compiles
    for _ in range(turns):
        for recipe, column in zip((off, on), seconds):
            started = time.process_time()
            api.run(recipe, task=task)
            column.append((time.process_time() - started) / recipe.rounds)
    return {
        "data": data,
        "method": method,
        "turns": turns,
        "off_s": statistics.median(seconds[0]),
        "on_s": statistics.median(seconds[1]),
        "ratio": statistics.median(b / a for a, b in zip(*seconds)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    command = " ".join(["python -m benchmarks.standing", *sys.argv[1:]])
    methods = ("FedAvg, everybody in", "best mixture from consensus", "stack, everybody trains", "FedUCA, Eq. 2")
    rows = [measured(data, method, turns) for data in SETS for method in methods]
    TARGET.write_text(
        json.dumps({"command": command, "commit": commit(), "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    for row in rows:
        print(f"{row['data']}, {row['method']}: {100 * (row['ratio'] - 1):+.1f} % a round")


if __name__ == "__main__":
    main()
