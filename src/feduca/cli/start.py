"""Commands to start with: run a federation, go on with one, see what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feduca.cli.options import (
    Again,
    Device,
    Import,
    Json,
    Out,
    Rounds,
    Seed,
    Set,
    Source,
    chosen_recipe,
    command,
    echo,
    folder_of,
    imported,
    is_finished,
    load_imports,
    print_findings,
    print_run,
    resumable,
    say,
)

if TYPE_CHECKING:
    from feduca.runs.directory import RunResult


def run(
    source: Source = "quickstart",
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = "runs",
    as_json: Json = False,
    again: Again = False,
    track: Annotated[
        list[str] | None, typer.Option(help="Also send rounds to tensorboard or mlflow (repeatable).")
    ] = None,
    imports: Import = None,
) -> None:
    """Run one federation."""
    from feduca import api
    from feduca.cli import progress as display
    from feduca.recipes import cost_hint
    from feduca.report import sinks

    load_imports(imports)
    chosen = chosen_recipe(source, settings, rounds, seed, device).single()
    if len(chosen.seeds) > 1:
        seeds = ", ".join(map(str, chosen.seeds))
        say(f"the recipe has seeds {seeds}: `run` takes the first, `compare` runs them all")
    folder = folder_of(chosen, chosen.seeds[0], out)
    if not again and is_finished(folder):
        say("already finished; --again repeats it")
    elif not as_json and (line := cost_hint.warning(chosen)):  # before somebody looks at an empty screen for minutes
        say(line)
    named = f"{chosen.name}-{chosen.hash()}-s{chosen.seeds[0]}"
    tracked = sinks.make(track or [], named, out, chosen.plain())
    progress = display.Progress(chosen.rounds, metric=chosen.task.metric)
    progress.start(0, 1, chosen.name)

    def follow(record: Any, clients: Any) -> None:
        progress(record, clients)
        tracked(record, clients)

    try:
        with resumable(folder, imports):
            result = api.run(chosen, out=out, watch=follow, again=again)
    finally:
        progress.close()
        tracked.close()
    print_run(result, as_json)


def resume(
    path: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    rounds: Annotated[int | None, typer.Option(help="Rounds in all to go on to, beyond the last one.")] = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Go on with an interrupted run, or beyond a finished one's last round. (`run` and `compare` resume by themselves.)"""
    from feduca import api
    from feduca.cli import progress as display
    from feduca.runs import directory as runs

    load_imports(imports)
    if rounds is not None:
        path = str(api.extended(path, rounds))
    if is_finished(Path(path)):
        result = runs.load(path)
        say(f"already finished; {_repeats(Path(path), result, imports)}--rounds goes on beyond its last round")
        print_run(result, as_json)
        return
    chosen, directory = api.recorded(path)
    if (directory.path / "deployment.json").is_file():
        from feduca.cli.deploy import resume as resume_deployed

        resume_deployed(directory.path, as_json, chosen.rounds)
        return
    progress = display.Progress(chosen.rounds, metric=chosen.task.metric)
    progress.start(0, 1, chosen.name)
    try:
        with resumable(Path(path), imports):
            result = api.resume(path, watch=progress)
    finally:
        progress.close()
    print_run(result, as_json)


def _repeats(run: Path, result: RunResult, imports: list[str] | None) -> str:
    """How a finished run is repeated, where its recipe alone says how: not what was deployed, nor a task of one's own."""
    if "own" in result.config or (run / "deployment.json").is_file():
        return ""
    out = run.absolute().parent.parent
    place = [] if out == Path("runs").absolute() else ["--out", str(out)]
    words = ("run", str(run / "config.toml"), "--again", *place, *imported(imports))
    return f"`{command(*words)}` repeats it; "


def rollback(
    path: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    round: Annotated[int, typer.Argument(metavar="ROUND", help="The last round to keep.")],
    imports: Import = None,
) -> None:
    """Forget the rounds after ROUND, finished or not; `feduca resume` then goes on from there."""
    from feduca import api
    from feduca.runs.rollback import roll_back

    load_imports(imports)
    chosen, directory = api.recorded(path)
    secure = chosen.privacy.secure_aggregation
    deployed = roll_back(directory.path, f"{chosen.hash()}-s{chosen.seeds[0]}", round, secure)
    if deployed:
        say("silos do not go back: they start again with the model they are sent")
    say(f"back at round {round}; go on with `{command('resume', path)}`")


def list_(
    kind: Annotated[str, typer.Argument(help="Only kinds that start with this, such as data.")] = "",
    everything_there_is: Annotated[
        bool, typer.Option("--all", help="Everything, not only recipes to start with.")
    ] = False,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """List recipes to start with; with --all or a kind, what there is: recipes, mechanisms, rules, offers, models, ..."""
    from feduca.cli.catalogue import NOTES, STARTERS, catalogue
    from feduca.core.wording import folded, screen
    from feduca.errors import ConfigError

    load_imports(imports)
    if not (kind or everything_there_is or as_json or imports):
        from feduca.recipes.source import recipes

        there = recipes()
        for name in STARTERS:
            echo(f"{name:<{max(map(len, STARTERS))}}  {there[name]}", indent=max(map(len, STARTERS)) + 2)
        others = len(there) - len(STARTERS)
        echo(
            f"\nBegin with `feduca run {STARTERS[0]}`. {others} more recipes, and all their parts: `feduca list --all`."
        )
        return
    everything = catalogue()
    entries = {name: what for name, what in everything.items() if name.startswith(kind)}
    if not entries:
        raise ConfigError(f"there is no kind of thing {kind!r}; there are {', '.join(everything)}")
    if as_json:
        typer.echo(json.dumps(entries))
        return
    for kind, names in entries.items():
        typer.echo(f"{kind} ({NOTES[kind]})" if kind in NOTES else kind)
        width = max(map(len, names))
        for name, what in names.items():
            typer.echo(folded(f"  {name:<{width}}  {what}", screen(), min(width + 4, 24)))


def show(source: Source = "quickstart", settings: Set = None, as_json: Json = False, imports: Import = None) -> None:
    """Print a recipe in full: every entry with its value, what it extends and all defaults filled in."""
    from feduca.recipes import dump as shown

    load_imports(imports)
    chosen = chosen_recipe(source, settings, None, None, None)
    typer.echo(chosen.model_dump_json() if as_json else shown.text(chosen))


def doctor(out: Out = "runs", as_json: Json = False) -> None:
    """Check that everything a run needs is here and works."""
    from feduca.cli.doctor import examine

    print_findings(examine(out), as_json)
