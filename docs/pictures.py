"""The pictures in README and docs, from runs made here: `python docs/pictures.py` (needs the `report` extra and a Chromium).

Writes docs/images/: a run's summary (quickstart.json) and its figures as SVG; screenshots of the pages, each light and dark, on a
wide screen and on a phone (pages/).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IMAGES = HERE / "images"
PAGES = IMAGES / "pages"
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

import feduca  # noqa: E402
from feduca.api import recipe  # noqa: E402
from feduca.report import figures, page, reading, write  # noqa: E402
from feduca.report.dashboard import Dashboard  # noqa: E402
from feduca.studies.cells import cells  # noqa: E402
from paper.figures.dark import adaptive  # noqa: E402

OFFERED = {  # a run in which silos are offered mixtures, may refuse, and are compared with the models alone
    "mechanism.name": "fedavg",
    "participation.rule": "accuracy",
    "participation.ties": "loss",
    "offer.kind": "best-mixture",
    "offer.train_from": "consensus",
    "alone": True,
    "task.test_share": 0.5,
}
SIZES = {1400: 1250, 390: 1900}  # width: the height shown at most
COLOURS = 255  # of a picture's palette


def main() -> None:
    PAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _screenshots(folder, _figures(folder))
    for file in sorted(IMAGES.rglob("*.*")):
        print(f"{file.relative_to(HERE.parent)}  {file.stat().st_size} bytes")


def _figures(folder: Path) -> Path:
    result = feduca.run("quickstart", seed=0, out=folder / "runs")
    assert result.run_dir is not None
    summary = {"command": "feduca run --seed 0", "run": result.run_dir.name, **result.summary}
    summary.pop("seconds")  # depends on the clock
    (IMAGES / "quickstart.json").write_text(json.dumps(summary, indent=1) + "\n")
    figures.write_figures(page.page_data([reading.read(result.run_dir)]), folder / "figures")
    for name in ("strip", "curve", "promise"):
        drawn = (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        (IMAGES / f"{name}.svg").write_text(adaptive(drawn), encoding="utf-8")
    return result.run_dir


def _screenshots(folder: Path, promised: Path) -> None:
    from chromium import browser

    offered, *rows = [
        run.run_dir
        for run in [
            feduca.run("quickstart", settings=OFFERED, out=folder / "runs"),
            *(feduca.run(cell.recipe, out=folder / "runs") for cell in cells(recipe("clinics"))),
        ]
        if run.run_dir is not None
    ]
    (one,) = write([offered], folder / "one.html")
    (silo,) = write([promised], folder / "silo.html")
    (several,) = write(rows, folder / "several.html")
    watched = folder / "watched"
    shutil.copytree(promised, watched / "quickstart" / promised.name)
    _partly(offered, watched / "quickstart" / offered.name, 18, "running")
    _partly(rows[0], watched / "clinics" / rows[0].name, 11, "interrupted")
    with browser() as chromium, _served(watched) as address:
        shown = {
            "report": one.as_uri(),
            "comparison": several.as_uri(),
            "list": address,
            "live": f"{address}run/quickstart%2F{offered.name}/",
        }
        for name, where in shown.items():
            for width, height in SIZES.items():
                for scheme in ("light", "dark"):
                    (watched / "quickstart" / offered.name / "rounds.jsonl").touch()  # it goes on, as far as one sees
                    _shot(chromium, where, PAGES / f"{name}-{scheme}-{width}.png", width, height, scheme)
        _shot(chromium, one.as_uri(), IMAGES / "report.png", 1100, 800, "light")
        _shot(chromium, silo.as_uri(), IMAGES / "silo.png", 1100, 640, "dark", "silo")


def _partly(source: Path, target: Path, rounds: int, state: str) -> None:
    """The first rounds of a run, as they were when it had come so far."""
    target.mkdir(parents=True)
    for name in ("config.toml", "env.json"):
        shutil.copy(source / name, target / name)
    for name in ("rounds.jsonl", "clients.jsonl"):
        lines = (source / name).read_text().splitlines(keepends=True)
        (target / name).write_text("".join(lines[:rounds]))
    (target / "status.json").write_text(json.dumps({"schema": 2, "state": state}))


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    dashboard = Dashboard(folder, port=0)
    threading.Thread(target=dashboard.serve, daemon=True).start()
    try:
        yield dashboard.address
    finally:
        dashboard.close()


def _shot(chromium: Any, where: str, target: Path, width: int, height: int, scheme: str, anchor: str = "") -> None:
    """The top of a page, or what follows an anchor, in few colours."""
    from PIL import Image

    view = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    view.goto(where)
    view.wait_for_function("() => document.documentElement.dataset.complete")
    view.wait_for_timeout(400)
    if anchor:
        view.evaluate("anchor => document.getElementById(anchor).scrollIntoView({ behavior: 'instant' })", anchor)
        view.wait_for_timeout(200)
    else:
        tall = view.evaluate("() => Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)")
        view.set_viewport_size({"width": width, "height": min(height, tall)})
        view.wait_for_timeout(400)
    view.screenshot(path=target)
    view.close()
    with Image.open(target) as image:
        rare = Image.Quantize.MAXCOVERAGE  # the marks of charts are few pixels of many
        image.convert("RGB").quantize(COLOURS, method=rare, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main()
