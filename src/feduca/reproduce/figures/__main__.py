"""`python -m feduca.reproduce.figures [RESULTS [FOLDER]]`."""

from __future__ import annotations

from feduca.reproduce.figures import write
from feduca.reproduce.page import arguments, read

if __name__ == "__main__":
    results, target = arguments("docs/images/reproduction")
    for file in write(read(results), target):
        print(f"{file}  {file.stat().st_size} bytes")
