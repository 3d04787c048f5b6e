"""What `feduca` and `feduca deploy` have in common: options, and how results and findings are printed. Imports nothing heavy."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from feduca.core.finding import Finding
    from feduca.runs.directory import RunResult

WHOLE = 1000  # characters of a command's line in a list of commands: its first sentence, never cut

Source = Annotated[
    str, typer.Argument(help="A built-in recipe (`feduca list`) or a TOML file.", metavar="[RECIPE|TOML]")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change one entry, e.g. mechanism.delta=1.0 (repeatable).")
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]

Seed = Annotated[int | None, typer.Option(help="Run this seed alone.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Out = Annotated[str, typer.Option(help="Folder for run directories.")]
Again = Annotated[bool, typer.Option("--again", help="Repeat runs that are already finished in OUT.")]
Lockstep = Annotated[int, typer.Option(help="Number of runs to batch together, to fill a GPU.", min=1)]
Jobs = Annotated[
    int | None,
    typer.Option(help="How many jobs compute runs at the same time.", min=1, show_default="1; with --on slurm 1000"),
]
On = Annotated[
    str | None, typer.Option("--on", help="Where jobs go: local or slurm. [default: this machine's processes]")
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm", help="Options of jobs, e.g. partition=gpu,time=4:00:00,gpus=1,cpus=8,mem=32G, or a TOML file."
    ),
]
Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE.py", help="Run this file of yours first; it registers methods (repeatable)."
    ),
]


def place_of(on: str | None, jobs: int | None, slurm: list[str] | None) -> Any:
    """Where the runs of a table are computed."""
    from feduca.studies.pools import Where, slurm_options

    return Where(on, jobs, slurm_options(slurm or []))


def load_imports(imports: list[str] | None) -> None:
    from feduca.recipes import plugins as own

    own.load(imports or [], say)


def chosen_recipe(
    source: str, settings: list[str] | None, rounds: int | None, seed: int | None, device: str | None
) -> Any:
    from feduca import api
    from feduca.recipes.schema import parse_setting

    return api.recipe(source, dict(map(parse_setting, settings or [])), rounds=rounds, seed=seed, device=device)


def command(*words: str) -> str:
    """A feduca command as it can be typed here: where the program is not on the PATH, by the path it was started by."""
    started = Path(sys.argv[0])
    named = started.stem == "feduca" and shutil.which("feduca") is None
    return shlex.join([str(started) if named else "feduca", *words])


def imported(imports: list[str] | None) -> list[str]:
    """The words of a command that run the same files first."""
    return [word for file in imports or [] for word in ("--import", file)]


def folder_of(recipe: Any, seed: int, out: str) -> Path:
    """Where a run leaves what it did."""
    from feduca.runs.directory import RunDirectory

    return RunDirectory(Path(out), recipe.name, recipe.hash(), seed).path


def is_finished(folder: Path) -> bool:
    from feduca.runs.directory import state_of

    return state_of(folder) == "finished"


def say(line: str) -> None:
    from feduca.errors import printable

    for one in line.splitlines():
        echo(printable(one, most=10_000), err=True)


def echo(text: str, err: bool = False, indent: int = 2) -> None:
    """Print sentences, broken between words where a terminal is too narrow for them."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        from feduca.core.wording import folded, screen

        text = folded(text, screen(stream), indent)
    typer.echo(text, err=err)


@contextmanager
def repeatable(keep: bool) -> Iterator[None]:
    """The same for a command that skips what is done; `keep`: its runs write checkpoints."""
    try:
        yield
    except KeyboardInterrupt:
        goes_on = "goes on where it stopped" if keep else "skips finished runs; others start anew"
        say(f"interrupted; the same command {goes_on}")
        raise typer.Exit(130) from None


@contextmanager
def resumable(folder: Path, imports: list[str] | None = None) -> Iterator[None]:
    """Ctrl-C and SIGTERM end in one line that says how to go on."""
    again = command("resume", str(folder), *imported(imports))
    try:
        yield
    except KeyboardInterrupt:
        from feduca.runs.directory import nothing_kept

        if not (folder / "config.toml").is_file() or is_finished(folder):
            say("interrupted; nothing was written yet")
        elif why := nothing_kept(folder):
            say(f"interrupted; {why}: `{again}` starts anew")
        else:
            say(f"interrupted; go on with `{again}`")
        raise typer.Exit(130) from None


def print_run(result: RunResult, as_json: bool) -> None:
    """How a run went, who is better off than alone and who quit (where the run knows), and where it lies."""
    from feduca.cli import progress as display
    from feduca.core import wording
    from feduca.errors import printable
    from feduca.runs import privacy, standing
    from feduca.runs.lines import columns

    row: dict[str, Any] = result.row()
    if as_json:
        typer.echo(json.dumps(row))
        return
    metric, joined = row.get("metric", "accuracy"), wording.percent(row["participation"])
    shared = display.said(row["accuracy"], metric)
    if row["accuracy"] is None:
        own = display.said(row["deployed"], metric, whose=" of silos' own")
        shared = f"{own} (there is no common test set)"
    echo(f"{shared}  participation {joined} %  rounds {row['rounds']}  seconds {row['seconds']:.1f}")
    gone = standing.left((record["round"], record["status"]) for record in columns(result.clients, "round", "status"))
    last = result.clients[-1]
    for line in (
        standing.better_off(result.clients, result.silos, metric),
        standing.departed(gone, result.silos),
        standing.unheard(result.clients, result.silos),
        privacy.sentence(privacy.spent(last), last["reason"], result.config.get("privacy", {}).get("epsilon")),
        privacy.unreleased([record["reason"] for record in result.rounds]),
    ):
        if line:
            echo(line)
    echo(printable(f"written to {row['run_dir']}"))
    say(f"See it: {command('report', str(row['run_dir']))}")


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one line."""
    lacking = [f.what for f in findings if not f.ok and not f.optional]
    if lacking:
        return f"Not ready: {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not in order; see FAIL above."
    absent = sum(not f.ok for f in findings)
    return "Ready." if not absent else f"Ready; {absent} optional thing{'s' * (absent > 1)} not here, see WARN above."


def print_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """A line each; the command fails if something that is needed is not in order."""
    if as_json:
        typer.echo(json.dumps([vars(f) for f in findings]))
    else:
        for f in findings:
            echo(f"{'ok  ' if f.ok else 'WARN' if f.optional else 'FAIL'}  {f.what}: {f.seen}" + f.advice())
        echo(verdict(findings))
    if any(not f.ok and not f.optional for f in findings):
        raise typer.Exit(1)
