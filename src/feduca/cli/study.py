"""Commands that compare and ask: tables of runs, audits, splits, programs, benchmarks."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feduca.cli.options import (
    Again,
    Device,
    Import,
    Jobs,
    Json,
    Lockstep,
    On,
    Out,
    Rounds,
    Seed,
    Set,
    Slurm,
    Source,
    chosen_recipe,
    command,
    echo,
    folder_of,
    is_finished,
    load_imports,
    place_of,
    repeatable,
    say,
)
from feduca.errors import InputError

if TYPE_CHECKING:
    from feduca.recipes.schema import Recipe


def compare(
    source: Source = "tailored",
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = "runs",
    lockstep: Lockstep = 1,
    jobs: Jobs = None,
    on: On = None,
    slurm: Slurm = None,
    as_json: Json = False,
    again: Again = False,
    imports: Import = None,
) -> None:
    """Run several methods on the same data, from the same initial model, and print one table."""
    from feduca.cli import progress as display
    from feduca.errors import ConfigError
    from feduca.recipes.schema import parse_setting
    from feduca.runs import standing
    from feduca.runs.directory import over_seeds
    from feduca.studies.cells import relabelled, set_by, unreached
    from feduca.studies.execute import execute
    from feduca.studies.jobs import Unfinished

    load_imports(imports)
    where = place_of(on, jobs, slurm)
    chosen = chosen_recipe(source, settings, rounds, seed, device)
    changes = {parse_setting(text)[0]: text for text in settings or []}  # of several about one entry the last counts
    for key, text in changes.items():
        if own := dict.fromkeys(who for who, _ in set_by(chosen, key)):
            say(f"--set {text} does not reach {', '.join(own)}, which set it themselves")
    rows = relabelled(chosen_recipe(source, None, rounds, seed, device), chosen, changes)
    for key, text in changes.items():
        if others := unreached(rows, key, parse_setting(text)[1]):
            if len(others) == len(rows):
                raise ConfigError(f"--set {text} reaches no row: each has a mechanism of its own; set it there")
            say(
                f"--set {text} reaches {len(rows) - len(others)} of {len(rows)} rows; those with another mechanism start from its"
                f" own defaults: {', '.join(others)}"
            )
    wanted = [(cell.recipe, one) for cell in rows for one in cell.recipe.seeds]
    done = 0 if again else sum(is_finished(folder_of(*one, out)) for one in wanted)
    if done:
        say(f"{done} of {len(rows) * len(chosen.seeds)} runs already finished; --again repeats them")
    runs = [(row, row.of_seed(seed)) for row in rows for seed in row.recipe.seeds]
    progress = display.Progress(chosen.rounds, len(runs), chosen.task.metric, not where.here)
    lines: dict[int, dict[str, Any]] = {}
    ends: dict[int, Any] = {}
    lost: dict[int, str] = {}  # by run, who has no standing in the end

    def so_far() -> list[dict[str, Any]]:
        """Rows whose runs are all there, over their seeds."""
        table = []
        for row in rows:
            seeds = [i for i, (mine, _) in enumerate(runs) if mine is row]
            if all(i in lines for i in seeds):
                task = row.recipe.plain()["task"]
                table.append(over_seeds([lines[i] for i in seeds], [ends[i] for i in seeds], task))
        return table

    try:
        with repeatable(chosen.checkpoint.keep):
            for batch in execute(
                [cell for _, cell in runs],
                out=out,
                lockstep=lockstep,
                where=where,
                again=again,
                watch=progress.start,
                rounds=progress,
                tell=(lambda line: None) if as_json else say,
            ):
                lines |= {i: result.row(runs[i][0].label) for i, (result,) in batch}
                ends |= {i: result.clients[-1].get("paired") for i, (result,) in batch}
                lost |= {i: standing.unheard(result.clients, result.silos) for i, (result,) in batch}
                if not chosen.axes:
                    progress.finished(so_far())
    except Unfinished:
        progress.close()
        if table := so_far():
            typer.echo(json.dumps(table) if as_json else display.comparison(table))
        raise
    finally:
        progress.close()
    table = so_far()
    limited = [f"{runs[i][1].label}: {line}" for i, line in sorted(lost.items()) if line]
    see = f"See it: {command('report', f'{out}/{chosen.name}')}"
    if not chosen.axes:
        typer.echo(json.dumps(table) if as_json else display.comparison(table))
        say("\n".join([*limited, see]))
        return
    from feduca.cli import compare_table as cross

    table = cross.placed(rows, table)
    typer.echo(json.dumps(table) if as_json else cross.table(chosen, table))
    say("\n".join(limited))
    typer.echo(cross.heat_map(chosen, table, f"{out}/{chosen.name}.png"), err=True)


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table or figure of the paper (`feduca list recipe`), or your TOML file.")
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
    lockstep: Lockstep = 1,
    jobs: Jobs = None,
    on: On = None,
    slurm: Slurm = None,
    as_json: Json = False,
    again: Again = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="Run only cells that the summary lacks, even where their runs are gone.")
    ] = False,
    imports: Import = None,
) -> None:
    """Reproduce a table or figure of the paper, or run a study of your own; what is done already is skipped."""
    from feduca.cli import progress as display
    from feduca.recipes.schema import parse_setting
    from feduca.studies.execute import is_file, parse_only, results_folder, summary_name, unjudged
    from feduca.studies.execute import reproduce as run_study
    from feduca.studies.jobs import Unfinished

    load_imports(imports)
    where = place_of(on, jobs, slurm)
    own = is_file(name)
    changes = dict(map(parse_setting, settings or []))
    if device is not None:
        changes["engine.device"] = device
    if smoke:
        out = f"{out}/smoke"
    results = results or str(results_folder(out, smoke, changes))
    written = f"{results}/{summary_name(name)}.json"
    try:
        with repeatable(changes.get("checkpoint.keep", True)), display.study(name, not where.here) as watch:
            summary = run_study(
                name,
                smoke=smoke,
                settings=changes,
                keep=parse_only(only or []),
                out=out,
                results=results,
                lockstep=lockstep,
                where=where,
                again=again,
                fill=fill,
                watch=watch,
                tell=say,
            )
    except Unfinished:
        say(f"summary of the others in {written}")
        raise
    if smoke:
        theirs = "small stand-in data (digits), figures are not comparable with the paper's"
        say(f"smoke: {'with the settings of [smoke] in ' + name if own else theirs}")
    if as_json:
        typer.echo(json.dumps(summary))
    elif name == "splits":
        from feduca.analysis import partition_report as splits

        typer.echo(splits.study_text(summary, results))
    else:
        typer.echo(display.cells(summary, paper=not smoke and not own, study=name))
    if lacking := unjudged(name, smoke, summary):
        say(lacking)
    from feduca.studies.sweep import drawn

    if name != "splits" and (picture := drawn(summary)) is not None:
        say(f"drawn in {picture.save(Path(written).with_suffix('.svg'))}")
    say(f"summary in {written}")


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
    sweeps: Annotated[int, typer.Option(help="Rounds of best responses, at most.")] = 3,
    conduct: Annotated[
        bool, typer.Option("--conduct", help="Audit deeds instead of reports: refusing, free-riding, lying about data.")
    ] = False,
    deeds: Annotated[
        str | None, typer.Option(help="Which deeds, with commas between them.", show_default="all of them")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Restrict an axis of a table, e.g. data=digits or method=a|b.")
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(help="Audit every cell of the recipe's table, and keep the figures as NAME.json in this folder."),
    ] = None,
    lockstep: Lockstep = 1,
    device: Device = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Does it pay to misreport? Everybody inflates; one silo deviates alone; best responses until nobody moves."""
    from feduca.analysis import audit as economist

    load_imports(imports)
    chosen = chosen_recipe(source, settings, rounds, None, device)
    if conduct:
        _conduct(chosen, range(seeds), deviators, deeds, only, results, lockstep, as_json)
        return
    if lockstep > 1:
        raise InputError(f"--lockstep {lockstep} is for an audit of conduct: give --conduct, or leave it out")
    plan = economist.Plan(tuple(range(seeds)), deviators, economist.parse_grid(grid), sweeps)
    found = economist.audit(chosen, plan, tell=say)
    typer.echo(json.dumps(found)) if as_json else echo(economist.text(found))


def _conduct(
    chosen: Recipe,
    seeds: range,
    deviators: int | None,
    deeds: str | None,
    only: list[str] | None,
    results: str | None,
    lockstep: int,
    as_json: bool,
) -> None:
    from feduca.analysis import deeds as table
    from feduca.analysis import incentives
    from feduca.runs.commit import commit
    from feduca.studies.execute import parse_only

    about = {"command": shlex.join(["feduca", *sys.argv[1:]]), "commit": commit()}
    named = table.chosen(deeds)
    if results is not None:
        keep = parse_only(only or [])
        found = table.study(chosen, Path(results), keep, about, seeds, deviators, named, say, lockstep)
        typer.echo(json.dumps(found)) if as_json else echo("\n\n".join(map(incentives.text, found)))
        return
    if only:
        raise InputError(f"--only {only[0]} is about a table's cells; give --results FOLDER for their figures, too")
    one = incentives.incentives(chosen, seeds, deviators, None, named, say, lockstep) | about
    typer.echo(json.dumps(one, indent=1)) if as_json else echo(incentives.text(one))


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
    echo(f"{solved['status']}, gap {solved['gap']}, {solved['iterations']} iterations. {solved['reason']}".strip())
    for k, (weight, slack, satisfied) in enumerate(zip(solved["alpha"], solved["slack"], solved["satisfied"])):
        echo(f"client {k}: weight {weight:.6f}, slack {slack:.3g}, {'satisfied' if satisfied else 'not satisfied'}")


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
    from feduca.analysis import partition_report as splits

    load_imports(imports)
    chosen = chosen_recipe(source, settings, None, seed, None)
    shown = splits.describe(chosen, chosen.seeds[0], Path(out) if plot else None)
    typer.echo(json.dumps(shown)) if as_json else echo(splits.text(shown))


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
    from feduca.recipes.schema import parse_setting

    found = benchmarks.run(name, Path(out), say, rounds, dict(map(parse_setting, settings or [])), smoke)
    typer.echo(json.dumps(found)) if as_json else echo(benchmarks.text(name, found))
    say(f"saved in {benchmarks.file(name, Path(out), smoke)}")
