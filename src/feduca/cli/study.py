"""The command line. Imports nothing heavy until a command runs, so that `feduca --help` is instant.

Data go to stdout, progress to stderr. Exit code 0 only on success; 2 for bad input, with one line that says what was wrong, the
value seen and what to do; 1 when a run failed; 130 when it was interrupted. `--debug` adds the traceback.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from feduca.console import Json, Rounds, Set, Source, print_findings, print_run
from feduca.flower.cli import app as deploy_app

app = typer.Typer(
    name="feduca",
    help="Federated learning that rational silos choose to stay in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Seed = Annotated[int | None, typer.Option(help="Run this seed alone.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Out = Annotated[str, typer.Option(help="Folder for run directories.")]
Again = Annotated[bool, typer.Option("--again", help="Repeat runs that are already finished in OUT.")]
Import = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE.py", help="Run this file of yours first: its mechanisms (repeatable)."),
]


def _version(show: bool) -> None:
    if show:
        from feduca._version import __version__

        typer.echo(f"feduca {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Federated learning that rational silos choose to stay in."""


def _load(imports: list[str] | None) -> None:
    from feduca import own

    own.load(imports or [], _say)


def _recipe(source: str, settings: list[str] | None, rounds: int | None, seed: int | None, device: str | None) -> Any:
    from feduca import api
    from feduca.config import parse_setting

    return api.recipe(source, dict(map(parse_setting, settings or [])), rounds=rounds, seed=seed, device=device)


def _folder(recipe: Any, seed: int, out: str) -> Path:
    """Where a run leaves what it did."""
    from feduca.runs import RunDirectory

    return RunDirectory(Path(out), recipe.name, recipe.hash(), seed).path


def _is_finished(folder: Path) -> bool:
    from feduca.runs import state_of

    return state_of(folder) == "finished"


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _say_what_takes_long(recipes: list[Any]) -> None:
    """One line before the first round, where somebody would otherwise look at an empty screen for minutes."""
    from feduca import effort

    if line := next(filter(None, map(effort.warning, recipes)), None):
        _say(line)


@contextmanager
def _repeatable(keep: bool) -> Iterator[None]:
    """The same for a command that skips what is done; `keep`: its runs write checkpoints."""
    try:
        yield
    except KeyboardInterrupt:
        goes_on = "goes on where it stopped" if keep else "skips finished runs; others start anew"
        _say(f"interrupted; the same command {goes_on}")
        raise typer.Exit(130) from None


@contextmanager
def _resumable(folder: Path, imports: list[str] | None = None) -> Iterator[None]:
    """Ctrl-C and SIGTERM end in one line that says how to go on."""
    command = shlex.join(["feduca", "resume", str(folder), *(w for file in imports or [] for w in ("--import", file))])
    try:
        yield
    except KeyboardInterrupt:
        from feduca.runs import nothing_kept

        if not (folder / "config.toml").is_file() or _is_finished(folder):
            _say("interrupted; nothing was written yet")
        elif why := nothing_kept(folder):
            _say(f"interrupted; {why}: `{command}` starts anew")
        else:
            _say(f"interrupted; go on with `{command}`")
        raise typer.Exit(130) from None


@app.command()
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
    from feduca import api, display, sinks

    _load(imports)
    chosen = _recipe(source, settings, rounds, seed, device).single()
    if len(chosen.seeds) > 1:
        seeds = ", ".join(map(str, chosen.seeds))
        _say(f"the recipe has seeds {seeds}: `run` takes the first, `compare` runs them all")
    folder = _folder(chosen, chosen.seeds[0], out)
    if _is_finished(folder) and not again:
        _say("already finished; --again repeats it")
    elif not as_json:
        _say_what_takes_long([chosen])
    named = f"{chosen.name}-{chosen.hash()}-s{chosen.seeds[0]}"
    tracked = sinks.make(track or [], named, out, chosen.plain())
    progress = display.Progress(chosen.rounds, metric=chosen.task.metric)
    progress.start(chosen.mechanism["name"])

    def follow(record: Any, clients: Any) -> None:
        progress(record, clients)
        tracked(record, clients)

    try:
        with _resumable(folder, imports):
            result = api.run(chosen, out=out, watch=follow, again=again)
    finally:
        progress.close()
        tracked.close()
    print_run(result, as_json)


@app.command()
def compare(
    source: Source = "quickstart",
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = "runs",
    as_json: Json = False,
    again: Again = False,
    imports: Import = None,
) -> None:
    """Run several methods on the same data, from the same initial model, and print one table."""
    from feduca import api, display
    from feduca.config import parse_setting
    from feduca.runs import over_seeds
    from feduca.study import relabelled, set_by

    _load(imports)
    chosen = _recipe(source, settings, rounds, seed, device)
    changes = {parse_setting(text)[0]: text for text in settings or []}  # of several about one entry the last counts
    for key, text in changes.items():
        if own := dict.fromkeys(who for who, _ in set_by(chosen, key)):
            _say(f"--set {text} does not reach {', '.join(own)}, which set it themselves")
    rows = relabelled(_recipe(source, None, rounds, seed, device), chosen, changes)
    done = sum(_is_finished(_folder(cell.recipe, one, out)) for cell in rows for one in cell.recipe.seeds)
    if done and not again:
        _say(f"{done} of {len(rows) * len(chosen.seeds)} runs already finished; --again repeats them")
    if not as_json and (again or done < len(rows) * len(chosen.seeds)):
        _say_what_takes_long([cell.recipe for cell in rows])
    progress = display.Progress(chosen.rounds, len(rows) * len(chosen.seeds), chosen.task.metric)
    table = []
    try:
        for cell in rows:
            results = []
            for one in cell.recipe.seeds:
                progress.start(cell.label if len(cell.recipe.seeds) == 1 else f"{cell.label}, seed {one}")
                with _resumable(_folder(cell.recipe, one, out), imports):
                    results.append(api.run(cell.recipe, seed=one, out=out, watch=progress, again=again))
                progress.end_of_run()
            table.append(over_seeds([result.row(cell.label) for result in results]))
    finally:
        progress.close()
    if not chosen.axes:
        typer.echo(json.dumps(table) if as_json else display.comparison(table))
        return
    from feduca import cross

    table = cross.placed(rows, table)
    typer.echo(json.dumps(table) if as_json else cross.table(chosen, table))
    typer.echo(cross.heat_map(chosen, table, f"{out}/{chosen.name}.png"), err=True)


@app.command()
def resume(
    path: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Go on with an interrupted run from its last checkpoint. (`run` and `compare` do so by themselves.)"""
    from feduca import api, display, runs

    _load(imports)
    if _is_finished(Path(path)):
        _say("already finished; `feduca run --again` repeats it")
        print_run(runs.load(path), as_json)
        return
    chosen, directory = api.recorded(path)
    if (directory.path / "deployment.json").is_file():
        from feduca.flower.cli import resume as resume_deployed

        resume_deployed(directory.path, as_json, chosen.rounds)
        return
    progress = display.Progress(chosen.rounds, metric=chosen.task.metric)
    progress.start(chosen.mechanism["name"])
    try:
        with _resumable(Path(path), imports):
            result = api.resume(path, watch=progress)
    finally:
        progress.close()
    print_run(result, as_json)


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table or figure of the paper (`feduca list`), or a TOML file of yours.")
    ],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A small version; the paper's take under a minute on CPU.")
    ] = False,
    settings: Set = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Restrict an axis, e.g. data=fmnist or method=fedavg|feduca.")
    ] = None,
    device: Device = None,
    out: Out = "runs",
    results: Annotated[
        str | None,
        typer.Option(
            help="Folder for summaries.",
            show_default="results; with --smoke OUT/smoke/results; where --set changes the experiment OUT/changed/results",
        ),
    ] = None,
    lockstep: Annotated[
        int, typer.Option(help="So many runs at a time, their silos in the same calls: fills a GPU.", min=1)
    ] = 1,
    as_json: Json = False,
    again: Again = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="Run only cells that the summary lacks, even where their runs are gone.")
    ] = False,
    imports: Import = None,
) -> None:
    """Reproduce a table or figure of the paper, or run a study of your own; what is done already is skipped."""
    from feduca import display
    from feduca.config import parse_setting
    from feduca.reproduce import reproduce as run_study
    from feduca.reproduce.study import is_file, parse_only, results_folder, summary_name, unjudged

    _load(imports)
    own = is_file(name)
    changes = dict(map(parse_setting, settings or []))
    if device is not None:
        changes["engine.device"] = device
    if smoke:
        out = f"{out}/smoke"
    results = results or str(results_folder(out, smoke, changes))
    written = f"{results}/{summary_name(name)}.json"
    with _repeatable(changes.get("checkpoint.keep", True)), display.study(name) as watch:
        summary = run_study(
            name,
            smoke=smoke,
            settings=changes,
            keep=parse_only(only or []),
            out=out,
            results=results,
            lockstep=lockstep,
            again=again,
            fill=fill,
            watch=watch,
            tell=_say,
        )
    if smoke:
        theirs = "small stand-in data (digits), figures are not comparable with the paper's"
        _say(f"smoke: {'with the settings of [smoke] in ' + name if own else theirs}")
    if as_json:
        typer.echo(json.dumps(summary))
    elif name == "splits":
        from feduca import splits

        typer.echo(splits.study_text(summary, results))
    else:
        typer.echo(display.cells(summary, paper=not smoke and not own, study=name))
    if lacking := unjudged(name, smoke, summary):
        _say(lacking)
    _say(f"summary in {written}")


@app.command("list")
def list_(as_json: Json = False, imports: Import = None) -> None:
    """What there is: recipes, mechanisms, rules, offers, ..., data sets, models, optimisers, engines, precisions."""
    from feduca.catalogue import NOTES, catalogue

    _load(imports)
    entries = catalogue()
    if as_json:
        typer.echo(json.dumps(entries))
        return
    for kind, names in entries.items():
        typer.echo(f"{kind} ({NOTES[kind]})" if kind in NOTES else kind)
        width = max(map(len, names))
        for name, what in names.items():
            typer.echo(f"  {name:<{width}}  {what}")


@app.command()
def show(source: Source = "quickstart", settings: Set = None, as_json: Json = False, imports: Import = None) -> None:
    """Print a recipe in full: every entry with its value, what it extends and all defaults filled in."""
    from feduca import show as shown

    _load(imports)
    chosen = _recipe(source, settings, None, None, None)
    typer.echo(chosen.model_dump_json() if as_json else shown.text(chosen))


@app.command()
def doctor(out: Out = "runs", as_json: Json = False) -> None:
    """Check that everything a run needs is here and works."""
    from feduca.doctor import examine

    print_findings(examine(out), as_json)


@app.command()
def audit(
    source: Source = "quickstart",
    settings: Set = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 3,
    deviators: Annotated[
        int | None,
        typer.Option(
            help="How many silos are tried as the lone deviator, per seed.", show_default="5, or all if fewer"
        ),
    ] = None,
    grid: Annotated[str, typer.Option(help="Inflations to choose from in the best-response dynamics.")] = "0,0.05,0.1",
    sweeps: Annotated[int, typer.Option(help="Most rounds of best responses.")] = 3,
    conduct: Annotated[
        bool, typer.Option("--conduct", help="Audit deeds instead of reports: refusing, free-riding, lying about data.")
    ] = False,
    device: Device = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Does it pay to misreport? Everybody inflates; one silo deviates alone; best responses until nobody moves."""
    from feduca import audit as economist

    _load(imports)
    chosen = _recipe(source, settings, rounds, None, device)
    if conduct:
        from feduca import incentives
        from feduca.commit import commit

        deeds = incentives.incentives(chosen, range(seeds), deviators, tell=_say) | {
            "command": " ".join(["feduca", *sys.argv[1:]]),
            "commit": commit(),
        }
        typer.echo(json.dumps(deeds, indent=1) if as_json else incentives.text(deeds))
        return
    plan = economist.Plan(tuple(range(seeds)), deviators, economist.parse_grid(grid), sweeps)
    found = economist.audit(chosen, plan, tell=_say)
    typer.echo(json.dumps(found) if as_json else economist.text(found))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Run directories.", metavar="RUN...")],
    out: Annotated[str, typer.Option("-o", "--out", help="The page to write.")] = "report.html",
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write all charts into one PDF beside the page.")] = False,
    figures: Annotated[str | None, typer.Option(help="Also write each chart as SVG, PNG and PDF here.")] = None,
) -> None:
    """Show runs as one self-contained page: who is in, who is out and why, what was promised and delivered."""
    from feduca.report import write

    for written in write(runs, Path(out), pdf=pdf, figures=figures):
        typer.echo(f"written to {written}")


@app.command()
def watch(
    run: Annotated[str, typer.Argument(help="A run directory, or a folder of them.", metavar="RUN")] = "runs",
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8765,
) -> None:
    """Watch runs in a browser while they go on."""
    from feduca.dashboard import watch as serve

    serve(run, host, port, _say)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run directory.", metavar="RUN")],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the models.")],
    imports: Import = None,
) -> None:
    """Write the shared model and every silo's deployed model as safetensors, with a model card."""
    from feduca.export import export_models

    _load(imports)
    exported = export_models(run, out)
    typer.echo(f"{len(exported.models)} models written to {exported.path}")


app.add_typer(deploy_app, name="deploy")


@app.command()
def solve(
    file: Annotated[str, typer.Argument(help="A JSON file.", metavar="FILE")],
    as_json: Json = False,
) -> None:
    """Solve one participation program, for people who have their own training loop.

    \b
    {"zeta": [[a, b, c], ...], "gamma": [0.4, null, ...], "s": [0.6, 0.4], "eps": 0}
    u_k(r) = -a r^2 + b r + c is client k's curve, gamma what it asks for (null: nothing), s the mixture.
    """
    from feduca import program

    solved = program.to_json(program.allocate(**program.read_problem(file)))
    if as_json:
        typer.echo(json.dumps(solved))
        return
    typer.echo(
        f"{solved['status']}, gap {solved['gap']}, {solved['iterations']} iterations. {solved['reason']}".strip()
    )
    for k, (weight, slack, satisfied) in enumerate(zip(solved["alpha"], solved["slack"], solved["satisfied"])):
        typer.echo(
            f"client {k}: weight {weight:.6f}, slack {slack:.3g}, {'satisfied' if satisfied else 'not satisfied'}"
        )


@app.command()
def partition(
    source: Source = "quickstart",
    plot: Annotated[bool, typer.Option("--plot", help="Draw client x class heat maps (PNG and SVG).")] = False,
    settings: Set = None,
    seed: Seed = None,
    out: Annotated[str, typer.Option(help="Folder for the pictures.")] = "runs/partition",
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Show how a recipe spreads its data over the silos."""
    from feduca import splits

    _load(imports)
    chosen = _recipe(source, settings, None, seed, None)
    shown = splits.describe(chosen, chosen.seeds[0], Path(out) if plot else None)
    typer.echo(json.dumps(shown) if as_json else splits.text(shown))


@app.command()
def bench(
    name: Annotated[
        str, typer.Argument(help="gpu (the paper's runs) or cpu (beside a plain loop, pfl and Flower).")
    ] = "cpu",
    out: Annotated[str, typer.Option(help="Folder for runs and summaries.")] = "runs/bench",
    rounds: Rounds = None,
    settings: Set = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A quick try whose figures mean little; cpu: under a minute, on digits.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time the simulator here: ratios side by side, absolute times on a GPU.

    cpu is about five minutes of rounds on two cores and needs Fashion-MNIST; gpu is about as long on an H200 and needs CIFAR-10
    and Fashion-MNIST (`feduca doctor` says whether they are here, `feduca list` where they come from).
    """
    from feduca import bench as benchmarks
    from feduca.config import parse_setting

    found = benchmarks.run(name, Path(out), _say, rounds, dict(map(parse_setting, settings or [])), smoke)
    typer.echo(json.dumps(found) if as_json else benchmarks.text(name, found))
    _say(f"saved in {benchmarks.file(name, Path(out), smoke)}")


def main() -> None:
    """Entry point: errors that feduca raises on purpose become one line."""
    import signal
    import threading

    import typer.core

    from feduca.errors import FeducaError, InputError

    typer.core.HAS_RICH = False  # or typer escapes "[default: ...]" for rich, which does not print our help

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended)  # what ends here as if by Ctrl-C is recorded and can be resumed
    try:
        code = app(prog_name="feduca", standalone_mode=False)
    except FeducaError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"feduca: {error}", err=True)
        code = 2 if isinstance(error, InputError) else 1
    except click.UsageError as error:
        code = _misused(error)
    except click.Abort:
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _misused(error: click.UsageError) -> int:
    """An unknown option, a missing argument, ...: one line, too. (Without any argument there is help instead.)"""
    if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2; earlier ones print help by themselves
        error.show()
        return error.exit_code
    said = " ".join(error.format_message().split()).rstrip(".")
    said = re.sub(r"(Did you mean [^?]*\?) \1", r"\1", said)  # typer and click may both ask
    where = "feduca" if error.ctx is None else error.ctx.command_path
    typer.echo(f"feduca: {said[:1].lower()}{said[1:]}; `{where} --help` has the options", err=True)
    return error.exit_code


if __name__ == "__main__":
    main()
