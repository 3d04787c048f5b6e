"""`feduca deploy ...`. Imports nothing heavy until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feduca.cli import silo as silos
from feduca.cli.options import Json, Rounds, Set, Source, print_findings, print_run, say
from feduca.cli.whole import Whole, flower_is_here

app = typer.Typer(
    cls=Whole,
    help="Silos on machines of their own, over Flower (needs `feduca[flower]`).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Seed = Annotated[int | None, typer.Option(help="Run this seed.")]
Again = Annotated[bool, typer.Option("--again", help="Start over, even where there is a run to go on with.")]


@app.callback()
def _deploy() -> None:
    """Silos on machines of their own, over Flower (needs `feduca[flower]`)."""


def _recipe(source: str, settings: list[str] | None, rounds: int | None, seed: int | None, clients: int | None) -> Any:
    """A recipe for one run, with one seed and nothing to compare, dealt to `clients`.

    A folder of silos' files has its own, and so have data that nature dealt; it is given under its whole path, since apps run
    elsewhere.
    """
    from feduca import api
    from feduca.recipes.folders import NATURAL, is_folder
    from feduca.recipes.schema import parse_setting

    flower_is_here()
    chosen = api.recipe(source, dict(map(parse_setting, settings or [])), rounds=rounds, seed=seed)
    changes: dict[str, Any] = {"seeds": chosen.seeds[:1]}
    if is_folder(chosen.task.data):
        changes["task.data"] = str(Path(chosen.task.data).absolute())
    elif clients is not None and chosen.task.data not in NATURAL:
        changes["task.clients"] = clients
    return chosen.single().with_settings(changes)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    source: Source = "quickstart",
    silos: Annotated[str, typer.Option(help="The silos' names with commas between them, or how many.")] = "3",
    address: Annotated[str, typer.Option(help="host:port at which silos reach the server.")] = "127.0.0.1:8444",
    bind: Annotated[str | None, typer.Option(help="IP address of the one interface to listen on.")] = None,
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server (repeatable).")] = None,
    own: Annotated[Path | None, typer.Option("--app", help="A folder with your own deployed.py.")] = None,
    out: Annotated[str, typer.Option(help="Folder for run directories, seen from the server's.")] = "runs",
    config: Annotated[
        list[str] | None, typer.Option(help="An entry for server.toml or a silo.toml, e.g. north.data=/data.csv.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--for", help="Also write files that start it: systemd, compose or kubernetes.")
    ] = None,
    bundle: Annotated[
        str | None,
        typer.Option(help="Also write packages to install: wheel (feduca alone) or full (all that it needs)."),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="host:port of /metrics and /health; '' for none.")] = None,
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
) -> None:
    """Write everything a federation needs: app, certificates, keys, configuration, start scripts."""
    from feduca.flower import folder as folders
    from feduca.flower import install

    given = [f"silo-{k}" for k in range(int(silos))] if silos.isdigit() else [s.strip() for s in silos.split(",")]
    chosen = _recipe(source, settings, rounds, seed, None if own is not None else len(given))
    names = folders.silo_names(chosen, len(given)) if own is None and silos.isdigit() else given
    install.check(target, bundle)
    inside = target in install.CONTAINERS  # which publish ports of theirs, none of which is on their loopback
    folders.init(
        folder,
        chosen,
        names,
        address=address,
        bind=bind or ("0.0.0.0" if inside else None),
        hosts=host or [],
        out=out,
        app=own,
        config=_entries(config or []),
        metrics=("0.0.0.0:9464" if inside else "127.0.0.1:9464") if metrics is None else metrics,
        beside=lambda part: install.write(part, target, bundle),
    )
    typer.echo(
        f"written to {folder}: server/ for {address}, silos/ for {', '.join(names)}; README.md says what goes where"
    )


def _entries(config: list[str]) -> dict[str, dict[str, Any]]:
    """`WHO.KEY=VALUE` as {who: {key: value}}."""
    from feduca.errors import ConfigError
    from feduca.recipes.schema import parse_setting

    found: dict[str, dict[str, Any]] = {}
    for text in config:
        dotted, value = parse_setting(text)
        who, dot, key = dotted.rpartition(".")
        if not dot or not who:
            raise ConfigError(f"--config wants WHO.KEY=VALUE, got {text!r}; for instance north.data=/data/north.csv")
        found.setdefault(who, {})[key] = value
    return found


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(help="A folder that `deploy init` wrote.")],
    name: Annotated[str, typer.Argument(help="The new silo's name.")],
) -> None:
    """Make the folder and key of one more silo. It may join while the federation runs."""
    from feduca.flower import control, install
    from feduca.flower import folder as folders

    flower_is_here()
    server = folders.read_server(folder)
    folders.check_user(server.path)
    path = folders.add_silo(folder, name)
    install.write_silo(folder, path)
    there = control.running(server)
    if there:
        control.register(server)
    how = "its key is registered" if there else f"copy server/keys/{name}.pub into server/keys on the server"
    typer.echo(f"written to {path}; {how}")


app.command()(silos.approve)


@app.command()
def remove(
    folder: Annotated[Path, typer.Argument(help="The server's folder, or the whole deployment.")],
    name: Annotated[str, typer.Argument(help="The silo.")],
) -> None:
    """Take a silo's key away: it is refused at once. What it sent stays, unless it leaves with `erase` first."""
    from feduca.flower import control
    from feduca.flower import folder as folders

    flower_is_here()
    server = folders.read_server(folder)
    folders.check_user(server.path)
    folders.remove_key(server, name)
    if control.running(server):
        control.register(server)
    typer.echo(f"{name} is refused from now on")


@app.command()
def rotate(
    folder: Annotated[Path, typer.Argument(help="The whole deployment, or a silo's folder.")],
    name: Annotated[str | None, typer.Argument(help="The silo, where the folder is a whole deployment.")] = None,
) -> None:
    """Make a new key for a silo; the old one is refused as soon as the server has the new public key."""
    from feduca.flower import control
    from feduca.flower import folder as folders

    flower_is_here()
    folders.check_user(folder)
    mine, server = folders.rotate(folder, name)
    if server is None:
        typer.echo(f"copy {mine.path}/key.pub to server/keys/{mine.name}.pub on the server, then start.sh again")
        return
    if control.running(server):
        control.register(server)
    typer.echo(f"{mine.name} has a new key; copy {mine.path}/key to its machine and start it again")


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="The whole deployment, with its ca/.")],
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server (repeatable).")] = None,
) -> None:
    """Make a new server certificate from the same authority, for the same names; silos need nothing new."""
    from feduca.flower import folder as folders

    flower_is_here()
    folders.check_user(folder)
    names = folders.renew(folder, host or [])
    typer.echo(
        f"written for {', '.join(names)}; copy server/server.crt and server.key to the server, then start.sh again"
    )


@app.command()
def superlink(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")],
    run: Annotated[
        bool, typer.Option("--run", help="Run the federation, too, and go on with it whenever its app ends early.")
    ] = False,
) -> None:
    """Run the SuperLink of a server folder and register its silos' keys, later ones too. Ends with Ctrl-C."""
    from feduca.flower import control
    from feduca.flower import folder as folders
    from feduca.flower.operate.serve import serve
    from feduca.flower.processes import until_told

    flower_is_here()
    server = folders.read_server(folder)
    folders.check_user(server.path)

    def ready() -> None:
        names = sorted(control.registered(server)) or ["nobody"]
        typer.echo(f"silos reach the server at {server.address}; registered: {', '.join(names)}", err=True)

    with until_told() as told:
        serve(server, told, ready, run=run)


@app.command()
def silo(folder: Annotated[Path, typer.Argument(help="The silo's folder.")]) -> None:
    """Run a silo's SuperNode, and start it again whenever it ends. Ends with Ctrl-C."""
    import logging

    from feduca.flower import deploy
    from feduca.flower import folder as folders
    from feduca.flower.check import examine
    from feduca.flower.processes import until_told

    flower_is_here()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    mine = folders.read_silo(folder)
    folders.check_user(mine.path, mine.state)
    typer.echo(f"{mine.name} reports to {mine.superlink}; log: {mine.state}/supernode.log", err=True)

    def diagnose() -> None:
        for finding in examine(mine.path):
            if not finding.ok:
                logging.getLogger("feduca").warning("%s: %s; %s", finding.what, finding.seen, finding.remedy)

    with until_told() as told:
        deploy.keep_silo(mine, told, diagnose)


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="The server's folder, where its SuperLink is running.")],
    as_json: Json = False,
    again: Again = False,
) -> None:
    """Run the federation, or go on with it, and wait for its end. Start it beside the SuperLink."""
    from feduca.flower import deploy
    from feduca.flower import folder as folders

    flower_is_here()
    server = folders.read_server(folder)
    folders.check_user(server.path)
    print_run(deploy.run(server, again=again, watch=_watch(deploy.recipe_of(server).rounds), say=say), as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A whole deployment, a server's folder, or a silo's.")],
    exchange: Annotated[
        bool,
        typer.Option(
            "--exchange",
            help="Also ask every connected silo who it is (takes half a minute; three times that where one is missing).",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Is everything in order? One line per finding, with a remedy."""
    from feduca.flower.check import examine
    from feduca.flower.folder import check_user

    flower_is_here()
    check_user(folder, folder / "state")
    print_findings(examine(folder, exchange=exchange), as_json)


@app.command()
def up(
    source: Source = "quickstart",
    silos: Annotated[int, typer.Option(min=1, help="How many silos; a folder of silos' files has its own.")] = 3,
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    out: Annotated[Path, typer.Option(help="Folder for run directories.")] = Path("runs"),
    folder: Annotated[
        Path | None, typer.Option(help="Bring up this deployment (of `init`) instead of a new one.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="host:port of /metrics and /health; unset, what the folder's server.toml says.")
    ] = None,
    as_json: Json = False,
    again: Again = False,
) -> None:
    """Run a whole federation on this machine, with TLS and authentication, to try it out. Leaves nothing running."""
    import signal

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    chosen = _recipe(source, settings, rounds, seed, silos)
    from feduca.flower import deploy
    from feduca.flower.folder import check_user

    signal.signal(signal.SIGTERM, ended)  # so that everything started is stopped, too
    if folder is not None:
        check_user(folder)
        with deploy.standing(folder, metrics) as server:
            result = deploy.run(server, again=again, watch=_watch(deploy.recipe_of(server).rounds), say=say)
        print_run(result, as_json)
        return
    watch = _watch(chosen.rounds)
    print_run(deploy.up(chosen, out, silos=silos, again=again, watch=watch, say=say, metrics=metrics), as_json)


def resume(path: Path, as_json: bool, rounds: int) -> None:
    """`feduca resume` of a deployed run."""
    flower_is_here()
    from feduca.flower import deploy

    print_run(deploy.resume(path, watch=_watch(rounds), say=say), as_json)


def _watch(rounds: int) -> Any:
    from feduca.cli import progress as display
    from feduca.core import wording

    def line(record: dict[str, Any], clients: dict[str, Any]) -> None:
        marks, accuracy = display.strip(clients["status"]), wording.percent(record["accuracy"])
        typer.echo(f"round {record['round']}/{rounds}  accuracy {accuracy} %  in {marks}", err=True)

    return line
