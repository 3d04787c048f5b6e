"""Does another version of this code compute the same, and as fast? Both run the paper's CIFAR-10 federation, in turn.

    git worktree add ../older 6f7c6f0
    python benchmarks/beside.py ../older/src [--rounds 50] [--times 2] [--set key=value]...

Writes `benchmarks/results/beside.json`: accuracy, participation, the median time of a round, and a hash of the last model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RESULT = HERE.parent / "results" / "beside.json"
GPU = ["engine.device=cuda", "engine.precision=bf16"]


def _setting(text: str) -> tuple[str, Any]:
    """`key=value`, read here: what reads it in feduca has moved between versions."""
    key, _, value = text.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def one(rounds: int, settings: list[str]) -> dict[str, Any]:
    """One run with whichever feduca this process finds."""
    import feduca

    times, accuracies, joined = [], [], []
    began, theta = time.perf_counter(), None
    for record, _, state in feduca.iterate("paper", dict(map(_setting, settings)), rounds=rounds, seed=0):
        times.append(time.perf_counter() - began)
        accuracies.append(record.accuracy)
        joined.append(record.joined)
        began, theta = time.perf_counter(), state.theta
    assert theta is not None
    numbers = theta.cpu().numpy() if hasattr(theta, "cpu") else theta
    return {
        "accuracy": statistics.fmean(accuracies[-10:]),
        "participation": statistics.fmean(joined) / 10,
        "round_s": statistics.median(times[2:]),
        "model": hashlib.sha256(numbers.tobytes()).hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder src of the other version")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--set", action="append", dest="settings", help="instead of a GPU in bf16")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    settings = args.settings or GPU
    if args.one:
        print(json.dumps(one(args.rounds, settings)))
        return
    found: dict[str, list[dict[str, Any]]] = {"other": [], "this": []}
    given = [f"--set={setting}" for setting in settings]
    for _ in range(args.times):
        for name, code in (("other", args.other.resolve()), ("this", HERE.parents[1] / "src")):
            path = os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, str(HERE), str(code), "--one", "--rounds", str(args.rounds), *given]
            ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE)
            found[name].append(json.loads(ran.stdout))
            print(name, found[name][-1], flush=True)
    ratio = min(run["round_s"] for run in found["this"]) / min(run["round_s"] for run in found["other"])
    same = len({run["model"] for runs in found.values() for run in runs}) == 1
    whole = {"rounds": args.rounds, "settings": settings, "same_model": same, "time_ratio": ratio, **found}
    args.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"same model: {same}; time of a round over the other's: {ratio:.3f}")


if __name__ == "__main__":
    main()
