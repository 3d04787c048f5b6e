"""The participation program, checked (paper, Eq. 7):

    minimise    sum_k phi(t_k)                         phi(t) = t^2 / 2  ("squared")  or  t  ("linear")
    over        R[n_s, N] >= 0,  t[N] >= 0
    subject to  R 1 = 1
                1^T R = n_s beta^T                     dropped when n_s = 1
                sum_i s_i u_k(R_ik) >= eps + gamma_k - t_k   for every client k

`beta` is uniform unless given. A threshold of minus infinity means that the client demands nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from feduca.core.machine import check_fits
from feduca.core.utility import family as family_of
from feduca.errors import ProblemError, shown
from feduca.program.scale import scale_of
from feduca.types import Floats, UtilityFamily

OBJECTIVES = ("squared", "linear", "participation")
SELECTIONS = ("centre", "closest", "margin")
SOLVERS = ("structured", "reference")
WORK = 20  # arrays of the size of R that the solver holds at once ...
SQUARE = 2  # ... and of strategies by strategies: the system of the row sums and its factor
LARGEST = 1e100  # squares of utilities have to be numbers, too


@dataclass(frozen=True)
class Problem:
    """A participation program whose data have been checked; arrays are float64."""

    family: UtilityFamily
    zeta: Floats  # [N, family.size]
    demand: Floats  # [N], eps + gamma; -inf where the client demands nothing
    gamma: Floats  # [N]
    s: Floats  # [n_s]
    beta: Floats  # [N]

    @property
    def n(self) -> int:
        return len(self.zeta)

    @property
    def n_s(self) -> int:
        return len(self.s)

    @property
    def columns(self) -> bool:
        """Whether the column sums are constrained."""
        return self.n_s > 1

    @cached_property
    def corners(self) -> Floats:
        """Weights 0, 1 and all that a client can get in one strategy, `[3, N]`: curves are evaluated at all of them at once."""
        at = np.zeros((3, self.n))
        at[1] = 1.0
        at[2] = np.minimum(self.n_s * self.beta, 1.0)
        return at

    @cached_property
    def at_corners(self) -> Floats:
        """Utilities at these weights, `[3, N]`."""
        return self.family.value(self.zeta, self.corners)

    @property
    def base(self) -> Floats:
        """Utilities at weight 0, `[N]`."""
        return self.at_corners[0]

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Slopes of the utilities at weights 0 and 1, `[N]` each."""
        first, last = self.family.slope(self.zeta, self.corners[:2])
        return first, last

    @cached_property
    def scale(self) -> Floats:
        """What the tolerance on a client's utility is multiplied by, `[N]` (scale.py)."""
        return scale_of(self.base, self.full, self.ends[0], self.gamma)

    @cached_property
    def unit(self) -> float:
        """What the tolerance on the slacks of all together is multiplied by: the median client's scale."""
        return float(np.partition(self.scale, self.n // 2)[self.n // 2])

    @property
    def full(self) -> Floats:
        """Utilities at weight 1, `[N]`."""
        return self.at_corners[1]

    def start(self) -> Floats:
        """The weights beta in every strategy: feasible for every program."""
        return np.tile(self.beta, (self.n_s, 1))

    def mixed(self, R: Floats) -> Floats:
        """`sum_i s_i u_k(R_ik)`, `[N]`."""
        return self.s @ self.family.value(self.zeta, R)

    def residual(self, R: Floats) -> float:
        """How far the row and column sums of `R` are off."""
        rows = float(np.abs(R.sum(1) - 1).max())
        return max(rows, float(np.abs(R.sum(0) - self.n_s * self.beta).max())) if self.columns else rows

    def slack(self, R: Floats) -> Floats:
        """The least slack `[N]` that makes `R` feasible."""
        return np.maximum(self.demand - self.mixed(R), 0.0)

    def free(self) -> np.ndarray:
        """Clients whose demand holds whatever feasible weights they get, `[N]`: they take no part in the program.

        The mixed utility is concave in a client's column, so its least value is taken at a vertex: all of the column's
        sum in one strategy (n_s > 1), or a weight of 0 or 1 (n_s = 1). A column sum above 1 (n_s > N) cannot lie in one
        strategy, and a curve means nothing beyond 1: there the lower of u(0) and u(1) bounds the mixture from below.
        """
        ends = np.minimum(self.base, self.full)
        if not self.columns:
            return ends >= self.demand
        full = self.at_corners[2] - self.base
        vertex = self.base + np.minimum(self.s.min() * full, self.s.max() * full)
        return np.where(self.n_s * self.beta <= 1, vertex, ends) >= self.demand


def _vector(name: str, value: Any, size: int | None = None, *, nothing: float | None = None) -> Floats:
    if nothing is not None and not isinstance(value, np.ndarray) and isinstance(value, Sequence):
        value = [nothing if entry is None else entry for entry in value]
    try:
        array = np.ascontiguousarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"{name} = {shown(value, 60)} is not a list of numbers; give one number per entry") from None
    if array.ndim != 1:
        raise ProblemError(f"{name} has shape {array.shape}; give a flat list of numbers")
    if size is not None and len(array) != size:
        raise ProblemError(f"{name} has {len(array)} entries for {size} clients; give one per client")
    return array


def _distribution(name: str, value: Floats, what: str) -> Floats:
    """Check for a probability vector and rescale the rounding away."""
    if len(value) == 0:
        raise ProblemError(f"{name} is empty; give at least one {what}")
    with np.errstate(all="ignore"):  # NaN and infinity are dealt with below
        total = value.sum()
    if not (value.min() >= 0 and abs(total - 1) <= 1e-6):  # NaN and infinity fail here, too
        odd = np.flatnonzero(~(np.isfinite(value) & (value >= 0)))
        seen = f"{name}[{odd[0]}] = {value[odd[0]]}" if len(odd) else f"{name} sums to {total}"
        raise ProblemError(f"{name} is not a distribution: {seen}; give non-negative numbers that sum to 1")
    return value / total


def uniform(n: int) -> Floats:
    """Equal weights."""
    return np.full(n, 1.0 / n)


def check_curves(zeta: Any, gamma: Any, family: str | UtilityFamily) -> tuple[UtilityFamily, Floats, Floats]:
    """Checked `(family, zeta[N, size], gamma[N])`; `None` and minus infinity in gamma mean no demand."""
    chosen = family_of(family)
    if not hasattr(chosen, "problem"):
        raise ProblemError(f"family = {shown(family, 60)} is not a utility family; give its name")
    try:
        curves = np.ascontiguousarray(zeta, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(
            f"zeta = {shown(zeta, 60)} is not a table of numbers; give {chosen.size} numbers per client"
        ) from None
    if curves.size == 0:
        raise ProblemError("zeta is empty: a federation needs at least one client")
    if curves.ndim != 2 or curves.shape[1] != chosen.size:
        raise ProblemError(
            f"zeta has shape {curves.shape}; the {chosen.name} family takes {chosen.size} numbers per client"
        )
    complaint = chosen.problem(curves)
    if complaint is not None:
        raise ProblemError(complaint)
    thresholds = _vector("gamma", gamma, len(curves), nothing=-np.inf)
    if not thresholds.max() < np.inf:  # true of NaN as well
        k = int(np.argmax(~(thresholds < np.inf)))
        raise ProblemError(
            f"client {k}: gamma = {thresholds[k]} is not a threshold; give a number, or null or -inf for no demand"
        )
    if np.abs(curves).max() > LARGEST or thresholds.max() > LARGEST:
        worst = np.maximum(np.abs(curves).max(axis=1), thresholds)
        k = int(np.argmax(worst))
        raise ProblemError(
            f"client {k}: a curve or threshold holds {worst[k]:.3g}, beyond {LARGEST:.0e}; rescale utilities"
        )
    return chosen, curves, thresholds


def room(n: int, n_s: int, who: str = "clients") -> dict[str, int]:
    """Bytes that solving a program takes, by what they are for."""
    return {
        f"{WORK} arrays of {n} {who} x {n_s} strategies": 8 * WORK * n * n_s,
        f"{SQUARE} arrays of {n_s} x {n_s} strategies": 8 * SQUARE * n_s**2,
    }


def check_beta(beta: Any, n: int) -> Floats:
    """Checked target weights `[N]`; uniform by default."""
    if beta is None:
        return uniform(n)
    weights = _distribution("beta", _vector("beta", beta, n), "client")
    if weights.min() <= 0:
        k = int(np.argmin(weights))
        raise ProblemError(f"client {k}: beta = {weights[k]} must be positive; leave the client out instead")
    return weights


def make_problem(zeta: Any, gamma: Any, s: Any, eps: float, family: str | UtilityFamily, beta: Any) -> Problem:
    """Check the data of a program; every complaint names the client or entry and the value seen."""
    chosen, curves, thresholds = check_curves(zeta, gamma, family)
    strategies = _distribution("s", _vector("s", s), "strategy")
    if not (isinstance(eps, int | float | np.floating | np.integer) and 0 <= eps <= LARGEST):
        raise ProblemError(f"eps = {shown(eps)} is not a margin; give a finite number >= 0")
    weights = check_beta(beta, len(curves))
    check_fits(room(len(curves), len(strategies)), ProblemError, "give fewer strategies")
    return Problem(chosen, curves, thresholds + float(eps), thresholds, strategies, weights)


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices."""
    if value not in choices:
        raise ProblemError(f"{name} = {shown(value)} is not known; choose one of {', '.join(choices)}")
    return value
