"""`python -m feduca.reproduce.figures [RESULTS [FOLDER]]`."""

from __future__ import annotations

import sys
from pathlib import Path

from feduca.reproduce.figures import write
from feduca.reproduce.page import read

if __name__ == "__main__":
    results, target = (sys.argv[1:] + ["results", "docs/images/reproduction"][len(sys.argv) - 1 :])[:2]
    for file in write(read(Path(results)), target):
        print(f"{file}  {file.stat().st_size} bytes")
