"""q-FedAvg: the larger a client's loss, the larger its say.

T. Li, M. Sanjabi, A. Beirami, V. Smith. "Fair Resource Allocation in Federated Learning." ICLR 2020. Minimise
`sum_k F_k^{q+1} / (q + 1)`. With `L = 1/eta_c` and `G_k = L Delta_k`:

    theta <- theta - sum_k F_k^q G_k / sum_k ( q F_k^{q-1} ||G_k||^2 + L F_k^q )

so client k's weight is `L F_k^q` over the common denominator. q = 0 gives equal weights. Weights do not sum to one for
q > 0: the denominator is a bound on curvature, and steps shrink where updates are long. A silo that sits out counts
with the loss it reports today and the length of the update remembered of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from feduca.core.aggregation import norms
from feduca.errors import ConfigError
from feduca.mechanisms.losses import losses
from feduca.types import Allocation, Floats, Ints, LocalSpec, Needs, Round

SMALLEST_LOSS = 1e-10  # F^{q-1} at F = 0


@dataclass(frozen=True)
class QFedAvg:
    q: float = 0.1
    lipschitz: float | None = None  # L; None = 1 / eta_c
    eta_c: float = field(default=0.1, metadata={"wired": "local.lr"})

    needs = Needs(train_loss=True)
    schedule = "fresh"
    scaled = True  # the step L / h is in them
    per_silo = "rows"  # lengths

    def __post_init__(self) -> None:
        if not self.q >= 0:
            raise ConfigError(f"mechanism.q must be 0 or more, got {self.q}; 0 is FedAvg, 0.1 is the default")

        if self.lipschitz is not None and not self.lipschitz > 0:
            raise ConfigError(
                f"mechanism.lipschitz must be above 0, got {self.lipschitz}; leave it out for 1 / local.lr"
            )

    def local(self, spec: LocalSpec) -> LocalSpec:
        return spec

    def init(self, examples: Ints, seed: int) -> tuple[Floats, Allocation]:
        n = len(examples)
        return np.zeros(n), Allocation(np.full(n, 1 / n), "initial")

    def allocate(self, state: Floats, round: Round, seed: int) -> tuple[Floats, Allocation]:
        length = np.where(round.joined, norms(round.delta), state)  # of everybody's latest update
        F, L = np.maximum(losses(round), SMALLEST_LOSS), self.lipschitz or 1 / self.eta_c
        h = self.q * F ** (self.q - 1) * (L * length) ** 2 + L * F**self.q
        return length, Allocation(L * F**self.q / h.sum(), "weighed")
