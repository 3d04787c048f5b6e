"""What `feduca` and `feduca deploy` have in common: options, and how results and findings are printed. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from feduca.doctor import Finding
    from feduca.runs import RunResult

Source = Annotated[str, typer.Argument(help="An embedded recipe or a TOML file.", metavar="[RECIPE|TOML]")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change one entry, e.g. mechanism.delta=1.0 (repeatable).")
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


def print_run(result: RunResult, as_json: bool) -> None:
    """How a run went, who is better off than alone and who quit (where the run knows), and where it lies."""
    from feduca import display, standing

    row: dict[str, Any] = result.row()
    if as_json:
        typer.echo(json.dumps(row))
        return
    metric, joined = row.get("metric", "accuracy"), display.percent(row["participation"])
    shared = display.said(row["accuracy"], metric)
    if row["accuracy"] is None:
        own = display.said(row["deployed"], metric, whose=" of silos' own")
        shared = f"{own} (there is no common test set)"
    typer.echo(f"{shared}  participation {joined} %  rounds {row['rounds']}  seconds {row['seconds']:.1f}")
    gone = standing.left((record["round"], record["status"]) for record in result.clients)
    for line in (
        standing.better_off(result.clients, result.silos, metric),
        standing.departed(gone, result.silos),
    ):
        if line:
            typer.echo(line)
    typer.echo(f"written to {row['run_dir']}")


def print_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """A line each; the command fails if something that is needed is not in order."""
    if as_json:
        typer.echo(json.dumps([vars(f) for f in findings]))
    else:
        for f in findings:
            typer.echo(f"{'ok  ' if f.ok else 'WARN' if f.optional else 'FAIL'}  {f.what}: {f.seen}" + f.advice())
    if any(not f.ok and not f.optional for f in findings):
        raise typer.Exit(1)
