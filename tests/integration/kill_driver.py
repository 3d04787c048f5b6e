"""Run a recipe in a forked child and kill the child with SIGKILL again and again until it gets through.

    python kill_driver.py OUT every-round|random|never SEED SETTINGS_JSON

`every-round` kills when each round has just been recorded; `random` at random moments. Imports once, forks often: a kill costs
milliseconds, so that many can be afforded. Prints the run directory and how many kills it took.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import feduca
from numpy_task import NumpyTask

LIMIT = 120.0


def child(out: Path, settings: dict) -> None:
    """One attempt: the first starts the run, the others resume it."""
    numpy_task = settings.pop("numpy", False)
    if not numpy_task:
        feduca.run({}, settings, out=out)
        return
    found = list(out.glob("*/*-s*/config.toml"))
    if found and any((found[0].parent / "checkpoint").glob("round-*")):
        feduca.resume(found[0].parent, task=NumpyTask())
    else:
        feduca.run({}, settings, out=out, task=NumpyTask())


def recorded(out: Path) -> int:
    try:  # the child creates and removes files while we look
        files = list(out.glob("*/*-s*/rounds.jsonl"))
        return files[0].read_bytes().count(b"\n") if files else 0
    except OSError:
        return 0


def main() -> None:
    out, mode, seed, settings = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    rng, kills, began = random.Random(seed), 0, time.monotonic()
    first = {**settings, "rounds": 1}
    task = NumpyTask() if first.pop("numpy", False) else None
    feduca.run({}, first, task=task)  # all imports and compilation before the first fork
    started = time.monotonic()
    feduca.run({}, {**first, "rounds": settings["rounds"]} if mode == "random" else first, task=task)
    patience = (time.monotonic() - started) / 6  # so that it takes several kills to get through
    budget = settings["rounds"] if mode == "every-round" else 40 if mode == "random" else 0
    while True:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(out, dict(settings))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        until = time.monotonic() + rng.uniform(0.0, patience)
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() - began > LIMIT:
                os.kill(pid, signal.SIGKILL)
                sys.exit("did not get through in time")
            hit = recorded(out) > kills if mode == "every-round" else time.monotonic() > until
            if kills < budget and hit:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                kills, status = kills + 1, signal.SIGKILL
                break
            time.sleep(0.0005)
        if status == 0:
            break
        if status != signal.SIGKILL:
            sys.exit("the run failed by itself")
    print(json.dumps({"run": str(next(out.glob("*/*-s*"))), "kills": kills}))


if __name__ == "__main__":
    main()
