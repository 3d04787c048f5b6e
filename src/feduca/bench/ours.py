"""Our engine: all silos in one call (`Task.train`), then the mean."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from feduca.bench.job import Clock, Job, hand_in
from feduca.recipes import build as experiment
from feduca.recipes.schema import Recipe


def main(folder: str) -> None:
    job = Job(Path(folder))
    recipe = Recipe.model_validate(json.loads((job.folder / "recipe.json").read_text(encoding="utf-8")))
    task = experiment.make_task(recipe, 0)
    spec, silos = experiment.make_server(recipe, 0, task).local, np.arange(job.spec["silos"])
    theta = task.init(0)
    clock = Clock()
    for r in range(job.spec["rounds"]):
        theta = task.train(theta.expand(len(silos), -1), silos, spec, r, 0).mean(0)
        clock.tick()
    hand_in(job, "ours", clock, torch_state(task, theta))


def torch_state(task, theta) -> dict[str, np.ndarray]:
    """Our flat vector as PyTorch's layers name and shape it."""
    state = {}
    for name, value in task.layout.unpack(theta).items():
        _, number, what = name.split(".")
        state[f"{2 * int(number)}.{what}"] = (value.t() if what == "weight" else value).contiguous().numpy()
    return state


if __name__ == "__main__":
    main(sys.argv[1])
