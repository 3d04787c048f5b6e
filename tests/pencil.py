"""Two silos one can compute by hand.

They have one-parameter models. Training adds 1 to silo 0's model and subtracts 2 from silo 1's; the score of a model x is
1 - (x - goal)^2 with goals 1 and -1, so every number can be checked with pencil and paper.
"""

from __future__ import annotations

import numpy as np

from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import Always
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.federation import InProcess, Recording
from feduca.trust.gate import Gate
from feduca.types import LocalSpec, Scores

GOALS = np.array([1.0, -1.0])
MOVES = np.array([1.0, -2.0])


class Pencil:
    """Two silos one can compute by hand."""

    silos = ("left", "right")
    examples = np.array([10, 30])
    parameters = size = 1

    def init(self, seed):
        return np.zeros(1)

    def train(self, theta, clients, spec, round, seed, anchor=None):
        return theta + MOVES[clients][:, None]

    def evaluate(self, theta, clients, split):
        score = 1 - (theta[:, 0] - GOALS[clients]) ** 2
        return Scores(score, -score)

    def along(self, start, end, places, clients, split):
        x = (1 - places) * start + places * end
        score = 1 - (x - GOALS[clients][:, None]) ** 2
        return Scores(score, -score)

    def test(self, theta):
        return Scores(1 - theta**2, theta**2)


def play(mechanism, rule=None, memory="update", rounds=1, offer=None, task=None, told="all", **how):
    task = task or Pencil()
    gate = Gate(decliners=told)
    server = Server(mechanism, memories[memory], Quadratic(), LocalSpec(), rounds, seed=3, gate=gate, decliners=told)
    behaviour = Behaviour(
        rule or Always(), offer or Global(), Quadratic(), seed=3, needs=mechanism.needs, decliners=told, **how
    )
    federation = Recording(InProcess(task, behaviour))
    items = list(loop.steps(server, task.init(0), task.examples, federation, evaluate=task.test))
    return items, federation
