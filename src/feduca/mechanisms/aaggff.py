"""AAggFF-S: mixing weights learnt online, by a Newton step on the simplex.

S.-J. Hahn, G.-S. Kim, J. Lee. "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making." ICML
2024; the cross-silo variant. Before training each client reports its training loss `F_k` at the received model. With K
clients:

    z_k = F_k / mean(F),   v_k = CDF(z_k) / K in [0, 1/K],   loss of the decision p: -log(1 + <p, v>),   g = -v / (1 + <p, v>)
    p+ = argmin over the simplex of  sum_tau <g_tau, p> + (a/2) ||p||^2 + (b/2) sum_tau <g_tau, p - p_tau>^2

with Lipschitz constant L = 1/K, a = 4 K L = 4, b = 1/(4 L) = K/4: the online Newton step in its
follow-the-regularised-leader form, a strictly convex QP in K variables, solved by Clarabel to `TOLERANCE`. The new p
aggregates the same round. The authors' public code is reported to differ from their poster: no p_tau in the last term,
the ridge counted twice, and the normal CDF reversed; `variant = "code"` does that.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from feduca.errors import ConfigError, RunError
from feduca.mechanisms.losses import losses
from feduca.types import Allocation, Floats, Ints, LocalSpec, Needs, Round

TOLERANCE = 1e-10

State = dict[
    str, Floats
]  # p: the last decision; linear: sum_tau g_tau (1 - b <g_tau, p_tau>); outer: sum_tau g_tau g_tau^T


@dataclass(frozen=True)
class AAggFF:
    cdf: Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"] = "exponential"
    a: float = 4.0  # ridge, 4 K L
    b: float | None = None  # curvature; None = 1 / (4 L) = K / 4
    variant: Literal["poster", "code"] = "poster"

    needs = Needs(train_loss=True)
    schedule = "fresh"
    per_silo = MappingProxyType({"p": "weights", "linear": "rows", "outer": "square"})

    def __post_init__(self) -> None:
        if not self.a > 0:
            raise ConfigError(f"mechanism.a must be above 0, got {self.a}; the poster's value is 4")
        if self.b is not None and not self.b > 0:
            raise ConfigError(f"mechanism.b must be above 0, got {self.b}; leave it out for the poster's K / 4")

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[State, Allocation]:
        n = len(examples)
        p = np.full(n, 1 / n)
        return {"p": p, "linear": np.zeros(n), "outer": np.zeros((n, n))}, Allocation(p, "initial")

    def allocate(self, state: State, round: Round, seed: int) -> tuple[State, Allocation]:
        p, n = state["p"], len(state["p"])
        code = self.variant == "code"
        b = n / 4 if self.b is None else self.b
        F = losses(round)
        total = F.sum()
        z = n * F / total if total > 0 else np.ones(n)
        v = response(z, self.cdf, reverse_normal=code) / n
        g = -v / (1 + p @ v)
        linear = state["linear"] + (g if code else g * (1 - b * (g @ p)))
        outer = state["outer"] + np.outer(g, g)
        ridge = 2 * self.a if code else self.a
        new = leader(linear, ridge * np.eye(n) + b * outer)
        return {"p": new, "linear": linear, "outer": outer}, Allocation(new, "optimal")


def response(z: Floats, cdf: str, *, reverse_normal: bool = False) -> Floats:
    """The chosen distribution function of the relative losses, all located at 1 where a location is theirs to choose."""
    from scipy.special import ndtr

    if cdf == "normal":
        value = ndtr(z - 1)
        return 1 - value if reverse_normal else value
    with np.errstate(divide="ignore"):
        return {
            "weibull": lambda: -np.expm1(-(z**2)),
            "exponential": lambda: -np.expm1(-z),
            "frechet": lambda: np.exp(-1 / z),
            "gumbel": lambda: np.exp(-np.exp(1 - z)),
            "logistic": lambda: 1 / (1 + np.exp(1 - z)),
        }[cdf]()


def leader(linear: Floats, quadratic: Floats) -> Floats:
    """`argmin <linear, p> + 1/2 p^T quadratic p` over the simplex."""
    from scipy import sparse

    clarabel: Any = importlib.import_module("clarabel")  # a compiled module without type information
    n = len(linear)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    rows = sparse.vstack([np.ones((1, n)), -sparse.identity(n)], format="csc")  # sum p = 1; p >= 0
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    upper = sparse.csc_matrix(np.triu(quadratic))
    found = clarabel.DefaultSolver(upper, linear, rows, np.append(1.0, np.zeros(n)), cones, settings).solve()
    if str(found.status) not in ("Solved", "AlmostSolved"):
        raise RunError(f"AAggFF's program ended as {found.status}; lower mechanism.b or raise mechanism.a")
    p = np.maximum(np.array(found.x), 0)
    return p / p.sum()
