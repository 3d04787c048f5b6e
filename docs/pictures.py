"""The pictures in README and docs, from one run: `python docs/pictures.py` (needs the `report` extra and a Chromium).

Writes docs/images/: the run's summary (quickstart.json), figures as SVG, and two screenshots of its report.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import feduca
from feduca.report import figures, page, reading, write

HERE = Path(__file__).parent
IMAGES = HERE / "images"
sys.path.insert(0, str(HERE.parent / "tests"))


def main() -> None:
    from chromium import browser

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result = feduca.run("quickstart", seed=0, out=folder / "runs")
        assert result.run_dir is not None
        summary = {"command": "feduca run --seed 0", "run": result.run_dir.name, **result.summary}
        summary.pop("seconds")  # depends on the clock
        (IMAGES / "quickstart.json").write_text(json.dumps(summary, indent=1) + "\n")
        figures.write_figures(page.page_data([reading.read(result.run_dir)]), folder / "figures")
        for name in ("strip", "curve", "promise"):
            shutil.copy(folder / "figures" / f"{name}.svg", IMAGES / f"{name}.svg")
        (one,) = write([result.run_dir], folder / "one.html")
        with browser() as chromium:
            for name, scheme, anchor in (("report", "light", "main"), ("silo", "dark", "strip-section")):
                view = chromium.new_page(viewport={"width": 1100, "height": 760}, color_scheme=scheme)
                view.goto(f"{one.as_uri()}#{anchor}")
                view.wait_for_function("() => document.documentElement.dataset.complete")
                view.evaluate(
                    "anchor => document.getElementById(anchor).scrollIntoView({ behavior: 'instant' })", anchor
                )
                view.wait_for_timeout(300)
                view.screenshot(path=IMAGES / f"{name}.png")
                view.close()
    for file in sorted(IMAGES.iterdir()):
        print(f"{file.relative_to(HERE.parent)}  {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
