"""Mechanisms: how aggregation weights are chosen. One small file each; a new one needs a file here and a line below."""

from __future__ import annotations

from feduca.mechanisms.fedavg import FedAvg
from feduca.mechanisms.feduca import FedUCA
from feduca.mechanisms.random import RandomWeights

registry = {
    "feduca": FedUCA,
    "fedavg": FedAvg,
    "uniform": FedAvg,
    "random": RandomWeights,
}

__all__ = ["FedAvg", "FedUCA", "RandomWeights", "registry"]
