"""FedAvg: fixed weights.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas. "Communication-Efficient Learning of Deep Networks
from Decentralized Data." AISTATS 2017. The FedUCA paper's baseline gives every silo 1/N; weights by number of examples
are an option.

Under Eq. 2 the same fixed weights are the control that every table needs (registered as `uniform`): with the paper's
threshold, weights that never move keep every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from feduca.mechanisms.fixed import FixedWeights


@dataclass(frozen=True)
class FedAvg(FixedWeights):
    beta: Literal["uniform", "examples"] = "uniform"
