"""How much a round computes, and one line where that is a lot for a CPU."""

from __future__ import annotations

from feduca.config import Recipe

# Examples times epochs a round from which on a CPU is likely to need more than about ten seconds for it: an example of the
# paper's CNN is some eighty times the arithmetic of one of its perceptron.
PERCEPTRONS, LARGER = 500_000, 5_000


def warning(recipe: Recipe) -> str | None:
    """What to say before round 1 of a run that will keep a CPU busy; None where there is nothing to say.

    A count, no measurement: examples that silos train with, times epochs. Data of the user's own are not counted.
    """
    from feduca.tasks.datasets import LOADERS, load

    task, epochs = recipe.task, recipe.local.epochs
    if recipe.engine.device != "cpu" or task.data not in LOADERS:
        return None
    pool = len(load(task.data, task.data_dir).y_train)
    examples = round(min(pool, task.max_examples or pool) * (1 - task.validation_share))
    if examples * epochs < (LARGER if task.model in ("cnn", "resnet18", "bilstm") else PERCEPTRONS):
        return None
    return (
        f"a round is {examples * epochs} example-steps ({examples} examples x {epochs} epochs) of {task.model}, a lot for"
        " a CPU: the first may take minutes; a GPU (--device cuda) or a smaller task.max_examples helps"
    )
