"""Three hospitals' own files: scikit-learn's breast cancer data (569 women, 30 measurements), dealt unevenly.

    python prepare.py data

writes data/north.csv (large, mixed), data/south.csv (mostly large tumours), data/east.csv (small, mostly small tumours), and
data/test.csv, which no hospital has and only the server sees.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer


def main(folder: Path) -> None:
    data = load_breast_cancer()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(data.target))
    test, rest = order[:114], order[114:]
    by_size = rest[np.argsort(data.data[rest, 0] + rng.normal(scale=3.0, size=len(rest)))]  # mean radius, roughly
    small, large = by_size[:180], by_size[180:]
    rng.shuffle(small)
    rng.shuffle(large)
    parts = {
        "north": np.concatenate([small[:110], large[:160]]),
        "south": np.concatenate([small[110:115], large[160:]]),
        "east": small[115:],
        "test": test,
    }
    folder.mkdir(parents=True, exist_ok=True)
    names = [name.replace(" ", "_") for name in data.feature_names]
    for name, rows in parts.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*names, "benign"])
            for row in rng.permutation(rows):
                writer.writerow([*(repr(float(v)) for v in data.data[row]), int(data.target[row])])
        share = data.target[rows].mean()
        print(f"{folder}/{name}.csv: {len(rows)} patients, {share:.0%} benign")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
