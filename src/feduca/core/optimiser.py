"""The server's own optimiser: the round's combined update is a gradient, and a step follows from it (FedOpt).

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan. "Adaptive Federated Optimization."
ICLR 2021, Algorithm 2; momentum as in T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution
for Federated Visual Classification", 2019 (FedAvgM). With g the combined update, `theta - theta_k` weighted and summed:

    sgd         theta <- theta - eta_s g
    momentum    m <- beta1 m + g                  theta <- theta - eta_s m
    adagrad     v <- v + g^2
    yogi        v <- v - (1 - beta2) g^2 sign(v - g^2)
    adam        v <- beta2 v + (1 - beta2) g^2
                m <- beta1 m + (1 - beta1) g      theta <- theta - eta_s m / (sqrt(v) + tau)      the last three

m starts at 0 and v at tau^2, the least the paper allows; nothing is corrected for that start, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feduca.core.arrays import sign, zeros
from feduca.types import Array

Moments = Mapping[str, Array]  # m and v, [P] each; empty before the first round


@dataclass(frozen=True)
class ServerOptimiser:
    kind: str = "sgd"
    eta_s: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def step(self, theta: Array, g: Array, moments: Moments) -> tuple[Array, Moments]:
        """The parameters after a step along the combined update `g`, and what the next step needs to know."""
        if self.kind == "sgd":
            return theta - self.eta_s * g, moments
        m = moments.get("m", zeros(theta, len(theta)))
        if self.kind == "momentum":
            m = self.beta1 * m + g
            return theta - self.eta_s * m, {"m": m}
        v, square = moments.get("v", zeros(theta, len(theta)) + self.tau**2), g * g
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "yogi":
            v = v - (1 - self.beta2) * square * sign(v - square)
        else:
            v = self.beta2 * v + (1 - self.beta2) * square
        m = self.beta1 * m + (1 - self.beta1) * g
        return theta - self.eta_s * m / (v**0.5 + self.tau), {"m": m, "v": v}
