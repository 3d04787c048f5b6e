"""`python -m paper.figures [RESULTS [TARGET]]`."""

from __future__ import annotations

from pathlib import Path

from paper.figures import write
from paper.page import read
from paper.writer import main


def draw(results: Path, target: Path) -> list[str]:
    return [f"{file}  {file.stat().st_size} bytes" for file in write(read(results), target)]


if __name__ == "__main__":
    main(
        "figures",
        "Draw the figures of the reproduction, as SVG into a folder, from the summaries.",
        ["docs/images/reproduction"],
        draw,
    )
