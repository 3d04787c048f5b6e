"""How much a round computes, and one line where that is a lot for a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from feduca.recipes.schema import Recipe

# Examples times epochs a round from which on a CPU is likely to need more than about ten seconds for it: an example of the
# paper's CNN is some eighty times the arithmetic of one of its perceptron.
PERCEPTRONS, LARGER = 500_000, 5_000


def warning(recipe: Recipe) -> str | None:
    """What to say before round 1 of a run that will keep a CPU busy; None where there is nothing to say.

    A count, no measurement: examples that silos train with, times epochs. Data of the user's own are not counted.
    """
    examples, epochs, model = _examples(recipe), recipe.local.epochs, recipe.task.model
    if examples * epochs < (LARGER if model in ("cnn", "resnet18", "bilstm") else PERCEPTRONS):
        return None
    return (
        f"a round is {examples * epochs} example-steps ({examples} examples x {epochs} epochs) of {model}, a lot for"
        " a CPU: the first may take minutes; a GPU (--device cuda) or a smaller task.max_examples helps"
    )


def warning_of_many(recipes: Sequence[Recipe]) -> str | None:
    """The same before the first of several runs: how much all of them are, and the first that is a lot."""
    first = next(filter(None, map(warning, recipes)), None)
    if first is None or len(recipes) == 1:
        return first
    steps = sum(_examples(recipe) * recipe.local.epochs * recipe.rounds for recipe in recipes)
    rounds = sum(recipe.rounds for recipe in recipes)
    return f"{len(recipes)} runs to do, {rounds} rounds and {steps:.1e} example-steps in all; of one, {first}"


def _examples(recipe: Recipe) -> int:
    """Training examples of a round; 0 where they are not a CPU's, or not known before they are read."""
    from feduca.recipes.folders import NATURAL
    from feduca.tasks.data import LOADERS, load
    from feduca.tasks.data.natural import load_natural

    task = recipe.task
    if recipe.engine.device == "cpu" and task.data in NATURAL:
        there = len(load_natural(task.data, task.data_dir).y)
        return round(there * (1 - task.validation_share)) * (task.clients if task.pooled else 1)
    if recipe.engine.device != "cpu" or task.data not in LOADERS:
        return 0
    pool = len(load(task.data, task.data_dir).y_train)
    return round(min(pool, task.max_examples or pool) * (1 - task.validation_share))
