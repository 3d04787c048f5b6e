"""Runs whose clock and memory count: alone on the device, and not the first there."""

from __future__ import annotations

from pathlib import Path

from feduca import api
from feduca.recipes.schema import Recipe
from feduca.runs.directory import RunResult
from feduca.types import Task

UNCOUNTED = 2  # rounds before the clock starts: they load libraries, compile kernels and capture graphs


def timed(recipe: Recipe, seed: int, task: Task, out: str | Path | None = None) -> RunResult:
    """A whole run of the recipe on its task, after rounds of it that do not count and leave the task warm."""
    api.run(recipe, {"rounds": min(UNCOUNTED, recipe.rounds)}, seed=seed, task=task)
    return api.run(recipe, seed=seed, task=task, out=out, again=True)  # what another time has begun is not timed
