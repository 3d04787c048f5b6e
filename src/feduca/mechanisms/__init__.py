"""Mechanisms: how aggregation weights are chosen. One small file each; a new one needs a file here and a line below.

A package of your own joins through the entry-point group `feduca.mechanisms` (see `registry.py` and
examples/custom_mechanism.py).
"""

from __future__ import annotations

from feduca.mechanisms.aaggff import AAggFF
from feduca.mechanisms.afl import AFL
from feduca.mechanisms.apfl import APFL
from feduca.mechanisms.ditto import Ditto
from feduca.mechanisms.fedavg import FedAvg
from feduca.mechanisms.feddyn import FedDyn
from feduca.mechanisms.fedprox import FedProx
from feduca.mechanisms.fedrep import FedRep
from feduca.mechanisms.feduca import FedUCA
from feduca.mechanisms.fedvarp import FedVARP
from feduca.mechanisms.finetune import FineTune
from feduca.mechanisms.incfl import IncFL
from feduca.mechanisms.mifa import MIFA
from feduca.mechanisms.propfair import PropFair
from feduca.mechanisms.qfedavg import QFedAvg
from feduca.mechanisms.random import RandomWeights
from feduca.mechanisms.registry import Registry
from feduca.mechanisms.scaffold import Scaffold
from feduca.mechanisms.term import TERM

registry = Registry(
    {
        "feduca": FedUCA,
        "fedavg": FedAvg,
        "uniform": FedAvg,
        "random": RandomWeights,
        "fedprox": FedProx,
        "incfl": IncFL,
        "aaggff": AAggFF,
        "mifa": MIFA,
        "fedvarp": FedVARP,
        "qfedavg": QFedAvg,
        "afl": AFL,
        "term": TERM,
        "propfair": PropFair,
        "ditto": Ditto,
        "apfl": APFL,
        "finetune": FineTune,
        "feddyn": FedDyn,
        "scaffold": Scaffold,
        "fedrep": FedRep,
    }
)
register = registry.register

__all__ = [
    "AFL",
    "APFL",
    "MIFA",
    "TERM",
    "AAggFF",
    "Ditto",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "FedRep",
    "FedUCA",
    "FedVARP",
    "FineTune",
    "IncFL",
    "PropFair",
    "QFedAvg",
    "RandomWeights",
    "Registry",
    "Scaffold",
    "register",
    "registry",
]
