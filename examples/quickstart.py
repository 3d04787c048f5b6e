"""Ten rational silos: run them under three methods, see who stays, write a report.

    python examples/quickstart.py [folder]

Takes a few seconds on a laptop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import feduca
from feduca.report import write

# Every silo insists on Eq. 1: what it is offered must strictly beat its own model on its own validation data.
METHODS = {
    "the plain average": {"mechanism.name": "fedavg"},
    "FedUCA's weights": {"mechanism.name": "feduca"},
    "the plain average, least concession offered": {"mechanism.name": "fedavg", "offer.kind": "least-concession"},
}


def main(folder: Path) -> None:
    runs = []
    for label, settings in METHODS.items():
        result = feduca.run(
            "quickstart", {"participation.rule": "accuracy", **settings}, rounds=15, out=folder / "runs"
        )
        print(f"{label:45} accuracy {result.accuracy:.3f}   participation {result.participation:.3f}")
        runs.append(result.run_dir)
    (page,) = write(runs, folder / "report.html")
    print(f"open {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
