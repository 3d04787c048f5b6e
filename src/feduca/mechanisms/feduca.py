"""FedUCA: weights from the participation program.

M. Yashwanth, A. Singh, A. Nayak, S. K. Bulusu, A. Chakraborty. "Federated Learning by Utility-Constrained Stochastic
Aggregation for Improving Rational Participation." The server draws a mixture s ~ Dir(delta), solves the program of Eq.
6 for the strategies R (`program/`), and gives silo k the expected weight alpha_k = sum_i s_i r_k^i. Every choice the
paper leaves open is an option here; docs/methods/feduca.md goes through them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from feduca import program
from feduca.core import roster, utility
from feduca.core.aggregation import target
from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.program.scale import scale
from feduca.types import Allocation, Floats, Ints, LocalSpec, Needs, Round

SMALLEST_S = 1e-12  # Dir(delta) underflows for small delta; a strategy of probability 0 would leave its row undefined


@dataclass(frozen=True)
class FedUCA:
    n_s: int = 5  # strategies; 1 drops the column constraint: one deterministic vector
    delta: float = 0.5  # concentration of s ~ Dir(delta)
    eps: float = 0.0  # margin the program adds to every threshold
    schedule: Literal["fresh", "lagged", "announce-next", "one-alpha"] = (
        "fresh"  # when weights are used (docs/readings.md)
    )
    s: Literal["redrawn", "fixed"] = "redrawn"  # how often it is drawn
    start: Literal["random", "uniform"] = "random"  # of the weights
    selection: Literal["centre", "closest", "margin"] = "centre"  # which optimal R
    objective: Literal["squared", "linear", "participation"] = "squared"
    aggregation: Literal["expected", "sampled", "sampled-judged"] = "expected"  # R^T s, or one row of R
    solver: Literal["structured", "reference"] = "structured"
    fallback: Literal["coherent", "printed", "literal"] = "coherent"  # what if nobody can be satisfied
    beta: Literal["uniform", "examples"] = "uniform"  # target weights
    family: str = field(default="quadratic", metadata={"wired": "utility.family"})
    tolerance: float = field(default=1e-6, metadata={"wired": "participation.tolerance"})  # of Eq. 2

    needs = Needs(curve=True)

    def __post_init__(self) -> None:
        if self.n_s < 1:
            raise ConfigError(f"mechanism.n_s must be at least 1, got {self.n_s}; the paper uses 5")
        if not (self.delta > 0 and math.isfinite(self.delta)):
            raise ConfigError(f"mechanism.delta must be a number above 0, got {self.delta}; the paper uses 0.5")
        if not (self.eps >= 0 and math.isfinite(self.eps)):
            raise ConfigError(f"mechanism.eps must be 0 or more, got {self.eps}; 0 is the default")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[None, Allocation]:
        """R^0 and s^0, which Algorithm 1 takes as inputs."""
        beta, s = target(examples, self.beta), self._draw_s(seed, 0)
        uniform = self.start == "uniform"
        R = np.tile(beta, (self.n_s, 1)) if uniform else _random_strategies(self.n_s, beta, stream(seed, "R0"))
        return None, self._sampled(Allocation(s @ R, "initial", R=R, s=s), seed, 0)

    def allocate(self, state: None, round: Round, seed: int) -> tuple[None, Allocation]:
        s, beta = self._draw_s(seed, round.round), target(round.examples, self.beta)
        known = np.isfinite(round.gamma)
        if not known.any():
            reason = "No silo has reported a curve yet, so the previous weights stay; wait for a first report."
            return None, replace(round.previous, status="unknown", reason=reason, fallback=None)
        if not known.all():  # whoever has never reported demands nothing and has sent nothing: the others decide
            part = replace(round, active=round.active & known)
            return roster.allocate(self, state, part, seed)
        zeta, gamma = round.zeta, round.gamma
        solved = program.allocate(
            zeta,
            gamma,
            s,
            self.eps,
            family=self.family,
            selection=self.selection,
            objective=self.objective,
            solver=self.solver,
            beta=beta,
            tolerance=self.tolerance,
        )
        if solved.satisfied is None or not solved.satisfied.any():
            solved = program.fall_back(
                solved,
                zeta,
                gamma,
                family=self.family,
                previous=round.previous,
                rng=stream(seed, "fallback", round.round),
                kind=self.fallback,
                beta=beta,
                tolerance=self.tolerance,
            )
        sampled = self._sampled(solved, seed, round.round)
        if sampled.alpha is not solved.alpha:  # silos judge the row, so whom it satisfies is another question
            family = utility.family(self.family)
            accuracy = self.tolerance * scale(family, zeta, gamma)
            sampled = replace(sampled, satisfied=family.value(zeta, sampled.alpha) >= gamma - accuracy)
        return None, sampled

    def _draw_s(self, seed: int, round: int) -> Floats:
        if self.n_s == 1:
            return np.ones(1)
        drawn = stream(seed, "s", 0 if self.s == "fixed" else round).dirichlet(np.full(self.n_s, self.delta))
        drawn = np.maximum(drawn, SMALLEST_S)
        return drawn / drawn.sum()

    def _sampled(self, allocation: Allocation, seed: int, round: int) -> Allocation:
        """`sampled`: one strategy row is drawn and used, though clients are still told the expectation.

        `sampled-judged`: they are told the row's weight and judge that.
        """
        if self.aggregation == "expected" or allocation.R is None or allocation.s is None:
            return allocation
        row = allocation.R[stream(seed, "row", round).choice(len(allocation.s), p=allocation.s)]
        return replace(allocation, applied=row) if self.aggregation == "sampled" else replace(allocation, alpha=row)


def _random_strategies(n_s: int, beta: Floats, rng: np.random.Generator) -> Floats:
    """A random point of the program's feasible set: rows sum to 1, columns to n_s * beta (Sinkhorn's scaling)."""
    R = rng.exponential(size=(n_s, len(beta)))
    if n_s == 1:
        return R / R.sum()
    for _ in range(1000):
        R *= n_s * beta / R.sum(0)
        rows = R.sum(1, keepdims=True)
        R /= rows
        if np.abs(rows - 1).max() < 1e-14:
            break
    return R
