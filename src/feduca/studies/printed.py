"""What the paper's Table 2 reports, to stand beside ours in summaries, in fractions of 1. Its other figures: paper/printed.py."""

from __future__ import annotations

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
