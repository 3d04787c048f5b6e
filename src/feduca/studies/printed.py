"""What the paper reports, to stand beside ours. Accuracy and participation in fractions of 1; None where it gives no figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPLITS = ("0.5,1.0", "1.0,1.0")

_TABLE_2 = {  # percent: CIFAR-10 (.5, 1.), F-MNIST (.5, 1.), CIFAR-100 (.5, 1.) and the spread over three seeds
    "fedavg": ((16.63, 1.16), (18.31, 1.66), (53.26, 2.78), (54.64, 2.05), (4.05, 0.06), (3.63, 0.50)),
    "incfl": ((32.35, 0.96), (34.60, 0.16), (37.07, 0.20), (36.69, 0.04), (4.18, 0.41), (12.89, 0.94)),
    "fedprox": ((17.44, 0.86), (17.63, 2.14), (54.68, 2.01), (53.79, 0.55), (6.35, 2.91), (4.06, 0.22)),
    "aaggff": ((16.13, 0.50), (17.90, 0.33), (52.84, 3.18), (68.92, 6.22), (5.60, 0.33), (4.53, 0.86)),
    "fedavg-ws": ((47.70, 0.47), (51.63, 0.71), (77.60, 0.57), (75.75, 0.23), (33.50, 0.26), (48.93, 0.05)),
    "feduca": ((66.89, 1.56), (71.86, 1.17), (83.18, 0.40), (83.48, 0.85), (42.50, 0.29), (50.15, 0.32)),
}
_COLUMNS = [(data, split) for data in ("cifar10", "fmnist", "cifar100") for split in SPLITS]

ACCURACY: dict[tuple[str, str, str], tuple[float, float]] = {
    (data, split, method): (mean / 100, std / 100)
    for method, row in _TABLE_2.items()
    for (data, split), (mean, std) in zip(_COLUMNS, row)
} | {
    ("20news", "0.5,1.0", method): (mean / 100, std / 100)
    for method, mean, std in (
        ("fedavg", 16.25, 0.18),
        ("incfl", 14.25, 0.20),
        ("fedprox", 22.34, 0.40),
        ("aaggff", 22.82, 0.30),
        ("feduca", 48.33, 0.57),
    )
}

PARTICIPATION: dict[tuple[str, str, str], float] = {
    ("cifar10", "0.5,1.0", "feduca"): 0.53,
    ("cifar100", "0.5,1.0", "feduca"): 0.53,
    ("cifar10", "1.0,1.0", "incfl"): 0.35,
    ("20news", "0.5,1.0", "fedavg"): 0.065,
    ("20news", "0.5,1.0", "incfl"): 0.070,
    ("20news", "0.5,1.0", "fedprox"): 0.070,
    ("20news", "0.5,1.0", "aaggff"): 0.076,
    ("20news", "0.5,1.0", "feduca"): 0.66,
}

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
