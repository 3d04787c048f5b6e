"""`feduca deploy ...`. Imports nothing heavy until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feduca.console import Json, Rounds, Set, Source, print_findings, print_run

app = typer.Typer(
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

    A folder of silos' files has its own; it is given under its whole path, since apps run elsewhere.
    """
    from feduca import api
    from feduca.config import parse_setting
    from feduca.folders import is_folder

    _flower_is_here()
    chosen = api.recipe(source, dict(map(parse_setting, settings or [])), rounds=rounds, seed=seed)
    changes: dict[str, Any] = {"seeds": chosen.seeds[:1]}
    if is_folder(chosen.task.data):
        changes["task.data"] = str(Path(chosen.task.data).absolute())
    elif clients is not None:
        changes["task.clients"] = clients
    return chosen.single().with_settings(changes)


def _flower_is_here() -> None:
    from importlib.util import find_spec

    from feduca.errors import InputError

    if find_spec("flwr") is None:
        raise InputError('Flower is not installed here; pip install "feduca[flower]"')


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    source: Source = "quickstart",
    silos: Annotated[str, typer.Option(help="The silos' names, with commas; or how many.")] = "3",
    address: Annotated[str, typer.Option(help="host:port at which silos reach the server.")] = "127.0.0.1:8444",
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server (repeatable).")] = None,
    own: Annotated[Path | None, typer.Option("--app", help="A folder with your own deployed.py.")] = None,
    out: Annotated[str, typer.Option(help="Folder for run directories, seen from the server's.")] = "runs",
    config: Annotated[
        list[str] | None, typer.Option(help="An entry for server.toml or a silo.toml, e.g. north.data=/data.csv.")
    ] = None,
    settings: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
) -> None:
    """Write everything a federation needs: app, certificates, keys, configuration, start scripts."""
    from feduca.flower import folder as folders

    given = [f"silo-{k}" for k in range(int(silos))] if silos.isdigit() else [s.strip() for s in silos.split(",")]
    chosen = _recipe(source, settings, rounds, seed, None if own is not None else len(given))
    names = folders.silo_names(chosen, len(given)) if own is None and silos.isdigit() else given
    folders.init(
        folder, chosen, names, address=address, hosts=host or [], out=out, app=own, config=_entries(config or [])
    )
    typer.echo(
        f"written to {folder}: server/ for {address}, silos/ for {', '.join(names)}; README.md says what goes where"
    )


def _entries(config: list[str]) -> dict[str, dict[str, Any]]:
    """`WHO.KEY=VALUE` as {who: {key: value}}."""
    from feduca.config import parse_setting
    from feduca.errors import ConfigError

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
    from feduca.flower import deploy
    from feduca.flower import folder as folders

    _flower_is_here()
    path = folders.add_silo(folder, name)
    server = folders.read_server(folder)
    there = deploy.reachable(f"127.0.0.1:{server.port}")
    if there:
        deploy.register(server)
    how = "its key is registered" if there else f"copy server/keys/{name}.pub into server/keys on the server"
    typer.echo(f"written to {path}; {how}")


@app.command()
def superlink(folder: Annotated[Path, typer.Argument(help="The server's folder.")]) -> None:
    """Run the SuperLink of a server folder and register its silos' keys, later ones too. Ends with Ctrl-C."""
    from feduca.flower import deploy
    from feduca.flower import folder as folders
    from feduca.flower.processes import until_told

    _flower_is_here()
    server = folders.read_server(folder)
    with until_told() as told:
        process = deploy.start_superlink(server)
        try:
            deploy.wait_until_reachable(f"127.0.0.1:{server.port}", process)
            new = deploy.register(server)
            typer.echo(
                f"the SuperLink listens at {server.address}; newly registered: {', '.join(new) or 'nobody'}", err=True
            )
            deploy.keep_registering(server, process, told)
        finally:
            process.stop()
    if not told.is_set():
        from feduca.errors import RunError

        raise RunError(f"the SuperLink ended by itself; {server.path}/superlink.log says why")


@app.command()
def silo(folder: Annotated[Path, typer.Argument(help="The silo's folder.")]) -> None:
    """Run a silo's SuperNode, and start it again whenever it ends. Ends with Ctrl-C."""
    import logging

    from feduca.flower import deploy
    from feduca.flower import folder as folders
    from feduca.flower.processes import until_told

    _flower_is_here()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    mine = folders.read_silo(folder)
    typer.echo(f"{mine.name} reports to {mine.superlink}; log: {mine.path}/supernode.log", err=True)
    with until_told() as told:
        deploy.keep_silo(mine, told)


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="The server's folder, where its SuperLink is running.")],
    as_json: Json = False,
    again: Again = False,
) -> None:
    """Run the federation, or go on with it, and wait for its end. Start it beside the SuperLink."""
    from feduca.flower import deploy
    from feduca.flower import folder as folders

    _flower_is_here()
    server = folders.read_server(folder)
    print_run(deploy.run(server, again=again, watch=_watch(deploy.recipe_of(server).rounds)), as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A whole deployment, a server's folder, or a silo's.")],
    exchange: Annotated[
        bool, typer.Option("--exchange", help="Also ask every connected silo who it is (takes half a minute).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Is everything in order? One line per finding, with a remedy."""
    from feduca.flower.check import examine

    _flower_is_here()
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
    as_json: Json = False,
    again: Again = False,
) -> None:
    """A whole federation on this machine, with TLS and authentication, to try it out. Leaves nothing running."""
    import signal

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    chosen = _recipe(source, settings, rounds, seed, silos)
    from feduca.flower import deploy

    signal.signal(signal.SIGTERM, ended)  # so that everything started is stopped, too
    if folder is not None:
        with deploy.standing(folder) as server:
            result = deploy.run(server, again=again, watch=_watch(deploy.recipe_of(server).rounds))
        print_run(result, as_json)
        return
    print_run(deploy.up(chosen, out, silos=silos, again=again, watch=_watch(chosen.rounds)), as_json)


def resume(path: Path, as_json: bool, rounds: int) -> None:
    """`feduca resume` of a deployed run."""
    _flower_is_here()
    from feduca.flower import deploy

    print_run(deploy.resume(path, watch=_watch(rounds)), as_json)


def _watch(rounds: int) -> Any:
    from feduca import display

    def line(record: dict[str, Any], clients: dict[str, Any]) -> None:
        marks, accuracy = display.strip(clients["status"]), display.percent(record["accuracy"])
        typer.echo(f"round {record['round']}/{rounds}  accuracy {accuracy} %  in {marks}", err=True)

    return line
