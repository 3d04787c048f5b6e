"""How much memory a run needs, reckoned from its recipe before anything is allocated."""

from __future__ import annotations

from itertools import pairwise

from feduca.core.machine import check_fits
from feduca.errors import ConfigError
from feduca.program.problem import room
from feduca.recipes.schema import Recipe

INPUTS = {"digits": 64, "fmnist": 784, "cifar10": 3072, "cifar100": 3072}  # of one example
FIXED = {"resnet18": 11_000_000, "bilstm": 500_000}  # parameters, about
COPIES = 4  # of every silo's model: what it trains, what came of it, what the server remembers, its own


def footprint(recipe: Recipe) -> dict[str, int]:
    """Bytes by what they are for: a lower bound, and where it is large nearly all there is."""
    task, silos = recipe.task, recipe.task.clients
    sizes = [INPUTS.get(task.data, 1), *(task.hidden or ())]
    parameters = FIXED.get(task.model, sum(a * b for a, b in pairwise(sizes)))
    points = recipe.utility.nodes + recipe.utility.check
    needs = {
        **room(silos, recipe.mechanism.get("n_s", 1), "silos"),
        f"the curves of {silos} silos at {points} points": 8 * silos * points,
    }
    if recipe.own is None and recipe.engine.device == "cpu":
        needs[f"models of {parameters} parameters for {silos} silos"] = 4 * COPIES * parameters * silos
    return needs


def check_memory(recipe: Recipe) -> None:
    """Refuse a run that cannot fit this machine."""
    check_fits(
        footprint(recipe),
        ConfigError,
        "use fewer silos (task.clients), smaller task.hidden or mechanism.n_s, or utility.check",
    )
