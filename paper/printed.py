"""What the paper reports, to stand beside ours. Accuracy and participation in fractions of 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feduca.studies.printed import ACCURACY as ACCURACY
from feduca.studies.printed import PARTICIPATION as PARTICIPATION
from feduca.studies.printed import SPLITS as SPLITS

FEDUCA_PARTICIPATION = (0.51, 0.54)  # over all columns of Table 2
COLLAPSED = 0.12  # FedAvg, FedProx and AAggFF-S stay below it on CIFAR-10 and CIFAR-100
CLIENTS = {"cifar10": 10, "fmnist": 10, "cifar100": 20, "20news": 10}
N_S, DELTA = 5, 0.5  # FedUCA's defaults

DELTA_PARTICIPATION = {"0.01": 0.30, "1": 0.54, "1000": 0.49}
JENSEN = {  # percent: mean, top-50, top-25 of the sum over clients per round
    "0.01": (0.20, 0.40, 0.81),
    "0.5": (2.48, 4.10, 5.32),
    "1": (2.77, 4.26, 5.18),
    "10": (1.19, 1.60, 1.82),
    "100": (0.31, 0.48, 0.67),
}
STRATEGIES = {  # (data, n_s): accuracy, participation
    ("cifar10", "1"): (0.6380, 0.29),
    ("cifar10", "5"): (0.6689, 0.53),
    ("cifar100", "1"): (0.3680, 0.37),
    ("cifar100", "5"): (0.4250, 0.53),
}
R2 = {"cifar10": 0.83, "cifar100": 0.82}
MISREPORTING = {"0": (0.6689, 0.530), "5": (0.6390, 0.400), "10": (0.1080, 0.013)}  # accuracy, participation
MISREPORTING_STD = {"0": 0.0156, "5": 0.0123, "10": 0.0001}  # of the accuracy
CHANCE = 0.1080  # what the paper calls random guessing on CIFAR-10
COST = {  # seconds, MB on an RTX A5000, CIFAR-10, 100 rounds; 6 of FedUCA's seconds are the solver's
    "feduca": (5575, 5654),
    "fedavg": (4583, 5633),
    "fedprox": (4591, 5634),
    "incfl": (4718, 5640),
    "aaggff": (4761, 5640),
}


def other_start(cell: Mapping[str, Any]) -> str:
    """How a cell's ResNet-18 started where the paper's did from ImageNet's weights; empty where it did so, too."""
    weights = str(cell.get("weights") or "ImageNet")  # of which old summaries say nothing
    if cell.get("model") != "resnet18" or weights.startswith("ImageNet"):
        return ""
    return "from scratch" if weights.startswith("from scratch") else "from other weights"
