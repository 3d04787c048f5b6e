"""Commands that show what runs left behind: pages, live views, models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduca.cli.options import (
    Import,
    load_imports,
    say,
)

SHOWN = 8  # folders of runs that a message names


def report(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or folders of them.", metavar="RUN...")],
    out: Annotated[str, typer.Option("-o", "--out", help="The page to write.")] = "report.html",
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write all charts into one PDF beside the page.")] = False,
    figures: Annotated[str | None, typer.Option(help="Also write each chart as SVG, PNG and PDF here.")] = None,
) -> None:
    """Show runs as one self-contained page: who is in, who is out and why, what was promised and delivered."""
    from feduca.report import write

    for written in write(runs_in(runs), Path(out), pdf=pdf, figures=figures):
        typer.echo(f"written to {written}")


def runs_in(places: list[str]) -> list[Path]:
    """Run directories as they are; of a folder of them those in it that have a finished round, oldest first."""
    from feduca.errors import InputError
    from feduca.runs.manifest import CONFIG, ROUNDS

    found: list[Path] = []
    for place in map(Path, places):
        if (place / CONFIG).is_file() or not place.is_dir():
            if not place.exists():
                raise InputError(f"there is no {place}; {_there(place)}")
            found.append(place)
            continue
        inside = _below(place)
        begun = [run for run in inside if (run / ROUNDS).is_file() and (run / ROUNDS).stat().st_size]
        if not begun:
            raise InputError(f"{place} holds no run with a finished round; {_there(place)}")
        found += sorted(begun, key=lambda run: (run / CONFIG).stat().st_mtime_ns)
    return list(dict.fromkeys(found))


def _below(place: Path) -> list[Path]:
    from feduca.runs.manifest import CONFIG

    return [file.parent for file in sorted(place.glob(f"*/{CONFIG}")) + sorted(place.glob(f"*/*/{CONFIG}"))]


def _there(place: Path) -> str:
    """What may be given instead of `place`: the folders of runs nearest to it, else how a run is made."""
    near = next(folder for folder in place.absolute().parents if folder.is_dir())
    for folder in (near.relative_to(Path.cwd()) if near.is_relative_to(Path.cwd()) else near, Path("runs")):
        runs = [run for run in _below(folder) if not run.is_relative_to(place)]
        if names := list(dict.fromkeys(str(run.parent) for run in runs)):
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"there are runs in {', '.join(names[:SHOWN])}{more}"
    return "give a run directory, or a folder of them, such as `feduca run tailored` writes"


def watch(
    run: Annotated[str, typer.Argument(help="A run directory, or a folder of them.", metavar="RUN")] = "runs",
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8765,
) -> None:
    """Watch runs in a browser while they go on."""
    from feduca.report.dashboard import watch as serve

    serve(run, host, port, say)


def export(
    run: Annotated[str, typer.Argument(help="A run directory.", metavar="RUN")],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the models.")],
    distil: Annotated[
        bool, typer.Option("--distil", help="Where silos deploy a mixture of models, train one network to match it.")
    ] = False,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Write the records, not models: rounds.csv, and clients.csv per round and silo."),
    ] = False,
    imports: Import = None,
) -> None:
    """Write the shared model and every silo's deployed model as safetensors, with a model card; or the records as CSV."""
    from feduca.report.export import export_models

    load_imports(imports)
    if as_csv:
        from feduca.runs.result import load

        for written in load(run).to_csv(out):
            typer.echo(f"written to {written}")
        return
    exported = export_models(run, out, distil=distil)
    typer.echo(f"{len(exported.models)} models written to {exported.path}")
