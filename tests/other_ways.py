"""A run comes to the same however it is carried out: gone on with from a snapshot, beside another in lockstep, silo by silo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from feduca import api
from feduca.core import rounds as loop
from feduca.federation import InProcess
from feduca.federation.lockstep import together
from feduca.recipes import build as experiment
from feduca.recipes.schema import Recipe
from numpy_task import Merged, NumpyTask


def check_other_ways(
    recipe: Recipe, task: Callable[[int], NumpyTask] = lambda seed: NumpyTask(seed=seed)
) -> Mapping[str, Any]:
    """AssertionError where a way differs; returns what a snapshot after three rounds holds. `task` makes a seed's task."""
    whole = api.run(recipe, seed=1, task=task(1))
    first, second = (experiment.build(recipe, 1, task(1)) for _ in range(2))
    items = loop.steps(first.server, first.theta, first.task.examples, first.federation)
    state = [next(items) for _ in range(3)][-1][2]
    snapshot = first.federation.snapshot()
    second.federation.restore(snapshot)
    rest = list(loop.steps(second.server, second.theta, second.task.examples, second.federation, state=state))
    assert np.array_equal(rest[-1][2].theta, whole.theta)
    assert list(rest[-1][1].status) == whole.clients[-1]["status"]
    assert list(rest[-1][1].reason) == whole.clients[-1]["reason"]

    pair = [experiment.build(recipe, seed, task(seed)) for seed in (1, 2)]
    loops = [loop.rounds(one.server, one.theta, one.task.examples) for one in pair]
    finals = together(loops, [one.federation for one in pair], Merged([one.task for one in pair]))
    assert np.array_equal(finals[0].theta, whole.theta)

    single = experiment.build(recipe, 1, task(1))
    apart = InProcess(single.task, experiment.behaviour_of(recipe, 1, single.task), one_at_a_time=True)
    state = loop.play(loop.rounds(single.server, single.theta, single.task.examples), apart)
    assert np.array_equal(state.theta, whole.theta)
    return snapshot
