"""A mechanism of your own in one small file: weights proportional to how well silos say they do.

Run it:                          python examples/custom_mechanism.py
Use it by name in any recipe:    feduca run --import examples/custom_mechanism.py --set mechanism.name=softmax-loss
Let others install it:           put it into a package of yours whose pyproject.toml says

    [project.entry-points."feduca.mechanisms"]
    softmax-loss = "my_package.softmax_loss:SoftmaxLoss"

A mechanism is a frozen dataclass. Its fields are its options: recipes validate them by their types, `__post_init__` by
their ranges.
"""

from dataclasses import dataclass

import numpy as np

import feduca
from feduca.mechanisms import register


@dataclass(frozen=True)
class SoftmaxLoss:
    temperature: float = 1.0  # an option: `--set mechanism.temperature=0.5`

    needs = feduca.Needs(train_loss=True)  # every silo reports its training loss at the received model
    schedule = "fresh"  # aggregate with the weights computed from this round's reports

    def __post_init__(self):
        if not self.temperature > 0:
            raise feduca.ConfigError(f"mechanism.temperature must be above 0, got {self.temperature}; try 1")

    def local(self, spec):
        return spec  # or dataclasses.replace(spec, prox=0.01), to change local training

    def init(self, examples, seed):
        """What is carried from round to round (here nothing), and the weights announced in round 1."""
        return None, feduca.Allocation(np.full(len(examples), 1 / len(examples)), "initial")

    def allocate(self, state, round, seed):
        """This round's weights. `round` holds everything the server knows; see `feduca.types.Round`."""
        F = np.nan_to_num(round.train_loss, nan=np.nanmean(round.train_loss))
        p = np.exp((F.min() - F) / self.temperature)
        return state, feduca.Allocation(p / p.sum(), "weighed")


register("softmax-loss", SoftmaxLoss)  # a package with an entry point does without this line

if __name__ == "__main__":
    for temperature in (0.1, 1.0, 10.0):
        chosen = {
            "mechanism.name": "softmax-loss",
            "mechanism.temperature": temperature,
            "participation.rule": "always",
        }
        result = feduca.run("quickstart", chosen, rounds=10)
        print(f"temperature {temperature:>4}: accuracy {result.accuracy:.3f}")
