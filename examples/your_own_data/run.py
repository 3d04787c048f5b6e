"""Four clinics of unequal size with their own CSV files, any of which may leave the federation."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import feduca
from feduca.report import write
from feduca.tasks import build_own_task

CLINICS = {"north": 160, "south": 120, "east": 80, "west": 50}  # patients each


def write_files(folder: Path) -> None:
    """Each clinic sees other patients: sorted by one measurement, then dealt out with some overlap."""
    data = load_breast_cancer()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    rng = np.random.default_rng(0)
    order = np.argsort(x[:, 0] + rng.normal(scale=1.0, size=len(x)))
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for clinic, patients in CLINICS.items():
        rows = rng.permutation(order[start : start + patients])
        start += patients
        with (folder / f"{clinic}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["split", "label", *(f"m{i}" for i in range(x.shape[1]))])
            for i, row in enumerate(rows):
                table.writerow(["validation" if i % 3 == 0 else "train", data.target[row], *x[row].round(4)])
    rest = order[start:]
    np.savez(folder / "global-test.npz", x_test=x[rest].astype(np.float32), y_test=data.target[rest])


def main(folder: Path) -> None:
    write_files(folder / "silos")
    task = build_own_task(str(folder / "silos"), model="logistic")
    settings = {
        "name": "clinics",
        "mechanism.name": "fedavg",
        "participation.rule": "accuracy",
        "participation.ties": "loss",  # few patients: equal accuracies are decided by the loss
        "offer.kind": "least-concession",
        "local.epochs": 2,
    }
    result = feduca.run("quickstart", settings, rounds=12, out=folder / "runs", task=task)
    assert result.run_dir is not None
    print(f"participation {result.participation:.2f}, shared model {result.accuracy:.3f} on the common test set")
    for clinic, status, reason in zip(task.silos, result.clients[-1]["status"], result.clients[-1]["reason"]):
        print(f"{clinic}: {status} - {reason}")
    write([result.run_dir], folder / "report.html")
    feduca.export_models(result.run_dir, folder / "models", task=task)
    print(f"see {folder / 'report.html'} and {folder / 'models' / 'README.md'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "your_own_data_run"))
