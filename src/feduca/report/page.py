"""The page: template, style, script, Vega and data in one HTML file that needs nothing else.

The content security policy names the two scripts by their hashes and allows no connection at all (a watched page may talk to
its own server), so that nothing in a run directory can run as code or leave the page, even if an escape were missing somewhere.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.report import palette
from feduca.report.payload import embedded, payload
from feduca.report.reading import Run, read
from feduca.runs.files import write_output
from feduca.runs.manifest import UNCHECKED

log = logging.getLogger("feduca")


def require_report() -> None:
    """Say in one line what is missing when the `report` extra is not installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise InputError(
            f'the report needs {error.name}, which is not installed; pip install "feduca[report]"'
        ) from None


def write(
    paths: Sequence[str | Path], target: str | Path, *, pdf: bool = False, figures: str | Path | None = None
) -> list[Path]:
    """Write one self-contained page about the runs at `paths`, and figures where asked for; returns what was written."""
    runs = [read(path) for path in paths]
    for run in runs:
        if run.doubt:
            log.warning("%s: the records are not those that the run wrote (%s)", run.path, run.doubt)
        elif run.unchecked:
            log.warning("%s %s", run.path, UNCHECKED)
    data = page_data(runs)
    written = [_write(render(data), Path(target))]
    if pdf or figures is not None:
        from feduca.report.figures import write_figures, write_pdf

        if pdf:
            written.append(write_pdf(data, Path(target).with_suffix(".pdf")))
        if figures is not None:
            written += write_figures(data, figures)
    return written


def _write(html: str, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_output(target, html)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}; choose another file with -o") from None
    return target


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """The payload of some runs together with the charts that show it."""
    require_report()
    from feduca.report import charts

    data = payload(runs)
    methods = tuple(row["method"] for row in data["table"])
    rounds = max([run["planned"] or 0 for run in data["runs"]] + [run["done"] for run in data["runs"]])
    return data | {
        "charts": _specs(methods, rounds, data["score"], data["compared_by"] == "deployed"),
        "titles": charts.titles(data["score"]),
        "kinds": {"bounds": charts.BOUNDS, "weighed": charts.WEIGHED, "worth": charts.WORTH},
        "looks": {
            "base": palette.OKABE_ITO,
            "light": palette.ON_LIGHT,
            "dark": palette.ON_DARK,
            "dashes": palette.DASHES,
            "shapes": charts.SHAPES,
        },
    }


@cache
def _specs(methods: tuple[str, ...], rounds: int, score: str, deployed: bool) -> dict[str, Any]:
    from feduca.report.charts import charts

    return {name: chart.to_dict() for name, chart in charts(methods, rounds, score, deployed).items()}


# One after the other.
SCRIPTS = ("dom.js", "base.js", "charts.js", "strip.js", "answer.js", "compare.js", "silo.js", "page.js")


def render(data: Mapping[str, Any]) -> str:
    """The page. `{"live": address}` instead of data makes it fetch them from there, again and again."""
    require_report()
    script, vega = packed(*SCRIPTS), _vega()
    connect = "'self'" if "live" in data else "'none'"
    parts = {"STYLE": part("page.css"), "DATA": embedded(data), "VEGA": vega, "SCRIPT": script}
    return filled("page.html", parts, policy(connect, vega, script))


def policy(connect: str, *scripts: str) -> str:
    """What a page may do: run these scripts, and talk to `connect`."""
    hashes = " ".join(f"'sha256-{_digest(source)}'" for source in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def filled(template: str, parts: Mapping[str, str], allowed: str) -> str:
    """A template with its parts; its only @ signs delimit their places."""
    pieces = part(template).split("@")
    return "".join({"POLICY": allowed, **parts}.get(piece, piece) for piece in pieces)


def packed(*names: str) -> str:
    """Scripts as one, in a scope of their own."""
    return '"use strict";\n(() => {\n' + "\n".join(part(name) for name in names) + "})();\n"


@cache
def part(name: str) -> str:
    return (resources.files("feduca.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as vl-convert carries them, in a scope of their own."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] (its stub wants an argument)
    if "</script" in bundle.lower() or "<!--" in bundle:
        raise InputError("the Vega bundle of vl-convert would end its script element; use vl-convert-python 1.8 or 1.9")
    return f"(() => {{{bundle}}})();"


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
