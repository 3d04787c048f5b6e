"""The page's charts as files: SVG, PNG and PDF for papers and slides, without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.report.page import require_report
from feduca.report.palette import FRAME, GRID
from feduca.runs.files import write_output

WIDTH = 420
CONFIG = {
    "background": "white",
    "font": "DejaVu Sans, sans-serif",
    "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": GRID},
    "legend": {"labelFontSize": 11},
    "view": {"stroke": FRAME},
}
MAX_STRIP_SILOS = 120  # more rows than that are no figure


def write_figures(data: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Every chart that has something to show, each as SVG, PNG and PDF; returns the files."""
    require_report()
    import vl_convert

    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart, sets in _filled(data):
            spec = _spec(chart, sets)
            write_output(folder / f"{name}.svg", vl_convert.vegalite_to_svg(spec))
            write_output(folder / f"{name}.png", vl_convert.vegalite_to_png(spec, scale=2))
            write_output(folder / f"{name}.pdf", vl_convert.vegalite_to_pdf(spec))
            written += [folder / f"{name}.{kind}" for kind in ("svg", "png", "pdf")]
    except OSError as error:
        raise InputError(f"cannot write figures to {folder}: {error.strerror}; choose another folder") from None
    return written


def write_pdf(data: Mapping[str, Any], target: str | Path) -> Path:
    """All charts on one PDF page, two columns wide."""
    require_report()
    import altair as alt
    import vl_convert

    parts, sets = [], {}
    for i, (name, chart, own) in enumerate(_filled(data)):
        renamed = {f"{key}{i}": rows for key, rows in own.items()}
        parts.append(_renamed(chart, i).properties(title=name.replace("-", " ")))
        sets |= renamed
    together = alt.concat(*parts, columns=2).resolve_scale(
        color="independent", shape="independent", strokeDash="independent"
    )
    target = Path(target)
    try:
        write_output(target, vl_convert.vegalite_to_pdf(_spec(together, sets)))
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}; choose another file with -o") from None
    return target


def _renamed(chart: Any, i: int) -> Any:
    """The chart over data sets of its own, so that several runs fit one document."""
    chart = chart.copy(deep=True)
    for layer in chart.layer:
        if getattr(layer.data, "name", None) and isinstance(layer.data.name, str):
            layer.data.name = f"{layer.data.name}{i}"
    if isinstance(getattr(chart.data, "name", None), str):
        chart.data.name = f"{chart.data.name}{i}"
    return chart


def _spec(chart: Any, sets: Mapping[str, Any]) -> dict[str, Any]:
    spec = chart.to_dict()
    return spec | {"datasets": {**spec.get("datasets", {}), **sets}, "config": {**spec.get("config", {}), **CONFIG}}


def _filled(data: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, chart and data sets of everything there is to draw."""
    from feduca.report import charts

    methods = list(dict.fromkeys(run["label"] for run in data["runs"]))
    rounds = max(run["done"] for run in data["runs"])
    drawn = {
        name: chart.properties(width=WIDTH)
        for name, chart in charts.charts(methods, rounds, data["score"], data["compared_by"] == "deployed").items()
    }
    everything = charts.all_rows(data)
    if len(methods) > 1 and any(row[data["compared_by"]] is not None for row in data["table"]):
        yield "trade", drawn["trade"], charts.trade_rows(data)
    for name in ("accuracy", "participation"):
        if any(row.get(name) is not None for row in everything):
            yield name, drawn[name], {"all": everything}
    for i, run in enumerate(data["runs"]):
        prefix = "" if len(data["runs"]) == 1 else f"{i + 1:02d}-{_slug(run['label'])}-s{run['seed']}-"
        if run["strip"] and len(run["silos"]) <= MAX_STRIP_SILOS:
            fallbacks = [{"round": round} for round, _ in run["fallbacks"]]
            sets = {"strip": charts.strip_rows(run), "fallbacks": fallbacks}
            yield f"{prefix}strip", charts.strip(run["silos"]).properties(width=WIDTH), sets
        if place := _telling_silo(run):
            yield f"{prefix}curve", drawn["curve"], charts.curve_sets(data, run, *place)
        one, bounds = charts.one_rows(run), charts.bound_rows(run)
        for name, column in (("promise", "promise_kept"), ("slack", "slack"), ("gap", "gap"), ("jensen", "jensen")):
            if any(row.get(column) is not None for row in one):
                yield f"{prefix}{name}", drawn[name], {"one": one}
        for name, names in (("weighed", charts.WEIGHED), ("worth", charts.WORTH)):
            if rows := charts.kind_rows(run, names):
                yield f"{prefix}{name}", drawn[name], {name: rows}
        if any(row.get("concession") for row in one):
            yield f"{prefix}concession", drawn["concession"], {"one": one}
        if any(row["kind"] != charts.BOUNDS["discrepancy"] for row in bounds):
            yield f"{prefix}discrepancy", drawn["discrepancy"], {"bounds": bounds}


def _telling_silo(run: Mapping[str, Any]) -> tuple[int, int] | None:
    """The kept round and silo to show: of the last round with curves, the silo that stayed away most often."""
    for snapshot in range(len(run["details"]["rounds"]) - 1, -1, -1):
        with_curve = [k for k, entry in enumerate(run["details"]["silos"][snapshot]) if entry[9]]
        if with_curve:
            return snapshot, max(with_curve, key=lambda k: len(run["strip"][k]) - run["strip"][k].count("j"))
    return None


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:60] or "run"
