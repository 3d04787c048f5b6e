"""The pictures in README and docs, from one run: `python docs/pictures.py` (needs the `report` extra and a Chromium).

Writes docs/images/: the run's summary (quickstart.json), figures as SVG, and two screenshots of its report.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
IMAGES = HERE / "images"
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

import feduca  # noqa: E402
from feduca.report import figures, page, reading, write  # noqa: E402
from paper.figures.dark import adaptive  # noqa: E402


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
            drawn = (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")
            (IMAGES / f"{name}.svg").write_text(adaptive(drawn), encoding="utf-8")
        (one,) = write([result.run_dir], folder / "one.html")
        with browser() as chromium:
            for name, scheme, anchor in (("report", "light", "title"), ("silo", "dark", "strip-section")):
                view = chromium.new_page(viewport={"width": 1100, "height": 760}, color_scheme=scheme)
                view.goto(one.as_uri())
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
