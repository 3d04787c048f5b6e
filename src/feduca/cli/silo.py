"""`feduca silo ...`: what a silo's operator does and sees, on the silo's own machine. The server is never asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feduca.cli.options import Json, say
from feduca.cli.whole import Whole, flower_is_here

app = typer.Typer(
    cls=Whole,
    help="One silo, for its operator: in or out, approvals, a local page, its model (needs `feduca[flower]`).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(help="The silo's folder.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for this silo's own log; it never leaves the silo.")]


@app.callback()
def _silo() -> None:
    """One silo, for its operator: in or out, approvals, a local page, its model (needs `feduca[flower]`)."""


@app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Say whether this silo is in or out and why, what it gained, what left it and what waits for you."""
    import json

    flower_is_here()
    from feduca.flower.view import seen

    known = seen(folder)
    if as_json:
        typer.echo(json.dumps(known))
        return
    for line in _in_words(known, folder):
        typer.echo(line)


def _in_words(silo: dict[str, Any], folder: Path) -> list[str]:
    last, model, totals = silo["last"], silo["model"], silo["totals"]
    if silo["out"]:
        lines = [f"{silo['silo']} is out: {silo['out']}"]
    elif not last["decision"]:
        lines = [f"{silo['silo']} may take part; no message has come yet"]
    else:
        lines = [f"{silo['silo']} is {'in' if silo['in'] else 'not in'}: {last['decision']}, {last['reason']}"]
    gain, epsilon = silo["gain"], silo["epsilon"]
    lines.append(f"rounds worked: {silo['worked']}")
    lines.append(f"gain over alone: {'not measured' if gain is None else format(gain, '+.4f')}")
    lines.append(f"sent: {totals['bytes']:.0f} bytes in {totals['messages']} messages, {totals['models']} with a model")
    lines.append(f"epsilon spent: {'no differential privacy' if epsilon is None else format(epsilon, '.3f')}")
    score = "" if model is None or model["accuracy"] is None else f", {model['accuracy']:.4f} on its validation data"
    lines.append("deploys: " + ("nothing yet" if model is None else f"{model['what']}{score}"))
    lines.append(f"policy: {'; '.join(silo['policy']) or 'none of its own, the recipe decides'}")
    if silo["outdated"]:
        names = ", ".join(silo["outdated"])
        lines.append(f"silo.toml has changed since the silo was started ({names}); end start.sh and start it again")
    lines += [f"waits for your approval: {what}; `feduca silo approve {folder}`" for what in silo["waiting"]]
    return lines


@app.command()
def pause(folder: Folder, reason: Reason = "") -> None:
    """Take no part from now on, not even in the round that is going on; `resume` takes it back."""
    mine = _mine(folder)
    _word(mine, "veto", reason)
    typer.echo(f"{mine.name} takes no part until `feduca silo resume {folder}`")


@app.command()
def resume(folder: Folder) -> None:
    """Take part again after a pause."""
    mine = _mine(folder)
    there = (mine.state / "veto").is_file()
    (mine.state / "veto").unlink(missing_ok=True)
    typer.echo(f"{mine.name} takes part again" if there else f"{mine.name} was not paused")


@app.command()
def leave(
    folder: Folder,
    erase: Annotated[
        bool,
        typer.Option("--erase", help="Also ask the server to forget what this silo sent; not what is in secure sums."),
    ] = False,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave the federation for good. The server never asks this silo again in this run."""
    mine = _mine(folder)
    if not yes:
        _sure(f"Let {mine.name} leave for good?")
    _word(mine, "leave", ": ".join(filter(None, ("erase" if erase else "", reason))))
    typer.echo(f"{mine.name} says so with its next answer")
    if erase:
        typer.echo("what it added to sums of secure aggregation stays in them: the server cannot take it out")


def _sure(question: str) -> None:
    """Go on only if the operator says yes."""
    if not typer.confirm(question):
        typer.echo("nothing has changed")
        raise typer.Exit(1)


def approve(
    folder: Folder,
    bundle: Annotated[
        Path | None,
        typer.Option("--app", help="An app's folder or .fab file; without it, the one that the server sent."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking, if you have read it already.")] = False,
) -> None:
    """Show how the app and settings that the server sent differ from the approved ones, and approve them if you say yes."""
    mine = _mine(folder)
    from feduca.flower import approval, consent

    asked = None if bundle is not None else consent.waiting(mine.path)
    if bundle is not None:
        content = approval.bundle(bundle) if bundle.is_dir() else approval.read(bundle)
    else:
        there = (mine.path / approval.PROPOSED).is_file()
        content = None if asked is not None and not there else approval.proposed(mine.path)
    if content is not None:
        typer.echo(approval.difference(mine.path, content) or "no file of it differs from the approved app")
        seen = approval.fingerprint(content)
        if not yes:
            _sure(f"Let {mine.name} run app {seen[:12]} on its data?")
        approval.approve(mine.path, content)
        typer.echo(f"{mine.name} runs app {seen[:12]} from the next message on")
    if asked is not None:
        typer.echo(consent.difference(mine.path, asked) or "none of its settings differs from the approved ones")
        what = f"in run {asked.run}" if asked.run else "with these settings"
        if not yes:
            _sure(f"Let {mine.name} work {what}?")
        consent.approve(mine.path, asked)
        typer.echo(f"{mine.name} works {what} from the next message on")


app.command()(approve)


@app.command()
def watch(
    folder: Folder,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8766,
) -> None:
    """Show this silo in a browser on this machine: scores, gain, what was sent, policy. Ends with Ctrl-C."""
    flower_is_here()
    from feduca.flower.board import watch as serve

    serve(folder, port, say)


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the model.")],
) -> None:
    """Write the model that this silo may deploy now, with a model card and checksums."""
    flower_is_here()
    from feduca.flower import kept
    from feduca.flower.folder import check_user

    if out.absolute().is_relative_to(folder.absolute()):
        check_user(folder)
    done = kept.export(folder, out)
    typer.echo(f"{kept.WHAT[done.card['silo']['what']]}, of round {done.card['rounds']}, written to {done.path}")


def _mine(folder: Path) -> Any:
    """A silo that is to be changed."""
    flower_is_here()
    from feduca.flower.folder import check_user, read_silo

    mine = read_silo(folder)
    check_user(mine.path, mine.state)
    return mine


def _word(mine: Any, name: str, text: str) -> None:
    from feduca.runs.files import write_whole

    mine.state.mkdir(mode=0o700, exist_ok=True)
    write_whole(mine.state / name, f"{text}\n" if text else "")
