"""What a deployment is made of: a recipe, the server's model, and each silo's own data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from feduca.client.requests import Predict, Train
from feduca.errors import ConfigError
from feduca.recipes.build import make_task
from feduca.recipes.schema import Recipe
from feduca.recipes.schema import load as load_recipe
from feduca.types import Array, Floats, Ints, LocalSpec, Predictions, Private, Scores, Task


class Model(Protocol):
    """What the server needs to know of the task: it sees no silo's data."""

    @property
    def parameters(self) -> int: ...

    @property
    def size(self) -> int: ...

    def init(self, seed: int) -> Array: ...

    def test(self, theta: Array) -> Scores | None: ...


class App(Protocol):
    """Write one of these to deploy your own model and data. Every `types.Task` is a `Model`, too."""

    @property
    def recipe(self) -> Recipe: ...

    def server(self, config: Mapping[str, Any]) -> Model:
        """The model, and the server's own test data if it has any; `config` is `[settings]` of `server.toml`."""
        ...

    def silo(self, name: str, index: int, config: Mapping[str, Any]) -> Task:
        """The task of one silo, with that silo's data alone: `task.silos` is `(name,)`, or holds `name` among others.

        `index` is the silo's number in this federation (it names its random streams); `config` is what its operator wrote in
        `silo.toml`.
        """
        ...


class RecipeApp:
    """A recipe's own task, dealt to the silos by name (`silo-0`, ...): to try a deployment out before there are real data."""

    def __init__(self, recipe: Recipe | str | Path) -> None:
        self.recipe = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))

    def server(self, config: Mapping[str, Any]) -> Task:
        return make_task(self.recipe, self.recipe.seeds[0])

    def silo(self, name: str, index: int, config: Mapping[str, Any]) -> Task:
        return make_task(self.recipe, self.recipe.seeds[0])


class OneSilo:
    """One silo of a task, under the number the server knows it by. What the task does not count is not counted here, either."""

    validation_examples: Ints
    test_examples: Ints

    def __init__(self, task: Task, name: str) -> None:
        if name not in task.silos:
            known = ", ".join(list(task.silos)[:10])
            raise ConfigError(f"the task holds no data of silo {name!r}; it has {known}")
        self._task, self._row = task, list(task.silos).index(name)
        self.silos = (name,)
        self.examples = np.asarray(task.examples)[self._row : self._row + 1]
        self.parameters, self.size = task.parameters, task.size
        self.criterion = getattr(task, "criterion", None)
        for name in ("parameter_names", "norm_names", "frozen_names", "layout", "pool", "describe"):
            if (told := getattr(task, name, None)) is not None:
                setattr(self, name, told)
        for name in ("validation_examples", "test_examples"):
            if (counted := getattr(task, name, None)) is not None:
                setattr(self, name, np.asarray(counted)[self._row : self._row + 1])

    def init(self, seed: int) -> Array:
        return self._task.init(seed)

    def train(
        self,
        theta: Array,
        clients: Ints,
        spec: LocalSpec,
        round: int,
        seed: int | Ints,
        anchor: Array | None = None,
        rates: Floats | None = None,
        drift: Array | None = None,
        free: Array | None = None,
    ) -> Array:
        asked = Train(theta, self._rows(clients), spec, round, seed, anchor, rates, drift, free)
        return asked.on(self._task)

    def train_private(
        self,
        theta: Array,
        clients: Ints,
        spec: LocalSpec,
        round: int,
        seed: int | Ints,
        private: Private,
        anchor: Array | None = None,
    ) -> Array:
        asked = Train(theta, self._rows(clients), spec, round, seed, anchor, private=private)
        return asked.on(self._task)

    def evaluate(self, theta: Array, clients: Ints, split: str) -> Scores:
        return self._task.evaluate(theta, self._rows(clients), split)

    @property
    def answers(self) -> Any:
        """Example by example, where the task says so much."""
        of = getattr(self._task, "answers", None)
        return None if of is None else lambda theta, clients, split: of(theta, self._rows(clients), split)

    def along(self, start: Array, end: Array, places: Floats, clients: Ints, split: str) -> Scores:
        return self._task.along(start, end, places, self._rows(clients), split)

    def predict(self, theta: Array, clients: Ints, split: str) -> Predictions:
        return Predict(theta, self._rows(clients), split).on(self._task)

    def test(self, theta: Array) -> Scores | None:
        return self._task.test(theta)

    def _rows(self, clients: Ints) -> Ints:
        return np.full(len(clients), self._row)
