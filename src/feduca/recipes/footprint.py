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
KEPT = 3  # of them between two rounds: its own, what it sent, what the server remembers
LARGE = 0.25  # of the machine's memory, from which on they lie on the disk


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
        asked = min(silos, recipe.cohort.size or silos)
        needs[f"models of {parameters} parameters for {asked} silos"] = 4 * COPIES * parameters * asked
        if recipe.cohort.store == "memory":
            needs[f"models of {parameters} parameters for {silos} silos"] = stored(recipe, silos, parameters)
    return needs


def stored(recipe: Recipe, silos: int, parameters: int) -> int:
    """Bytes of what is kept of silos where few of many are asked: of those ever asked, and no more than there are."""
    ever = min(silos, recipe.rounds * (recipe.cohort.size or silos))
    return 4 * KEPT * parameters * ever


def check_memory(recipe: Recipe) -> None:
    """Refuse a run that cannot fit this machine."""
    check_fits(
        footprint(recipe),
        ConfigError,
        "use fewer silos (task.clients), smaller task.hidden or mechanism.n_s, or utility.check",
    )
