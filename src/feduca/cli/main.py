"""The command line. Imports nothing heavy until a command runs, so that `feduca --help` is instant.

Data go to stdout, progress to stderr. Exit code 0 only on success; 2 for bad input, with one line that says what was wrong, the
value seen and what to do; 1 when a run failed; 130 when it was interrupted. `--debug` adds the traceback.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import click
import typer
import typer.core

from feduca.cli import look, start, study
from feduca.cli.deploy import app as deploy_app
from feduca.cli.options import WHOLE
from feduca.cli.silo import app as silo_app

GROUPS = {  # what a newcomer looks for, and how it begins
    "Start": (("run", "compare", "resume", "rollback", "list", "show", "doctor"), "feduca run tailored"),
    "Look": (("report", "watch", "partition"), "feduca report runs/tailored"),
    "Study": (("reproduce", "audit", "solve", "bench"), "feduca reproduce delta --smoke"),
    "Ship": (("export", "deploy", "silo"), "feduca export RUN -o models"),
}


class Grouped(typer.core.TyperGroup):
    """Commands by what they are for, each group with an example."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        width = max(map(len, known))
        for title, (names, example) in GROUPS.items():
            rows = [(f"{name:<{width}}", known[name].get_short_help_str(WHOLE)) for name in names]
            with formatter.section(f"{title}, e.g. `{example}`"):
                formatter.write_dl(rows)


app = typer.Typer(
    name="feduca",
    cls=Grouped,
    help="Federated learning that rational silos choose to stay in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


for command in (
    start.run,
    study.compare,
    start.resume,
    start.rollback,
    study.reproduce,
    start.list_,
    start.show,
    start.doctor,
    study.audit,
    look.report,
    look.watch,
    look.export,
    study.solve,
    study.partition,
    study.bench,
):
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(deploy_app, name="deploy")
app.add_typer(silo_app, name="silo")


def main() -> None:
    """Entry point: errors that feduca raises on purpose become one line."""
    import io
    import signal
    import threading

    from feduca.cli.streams import Unheard
    from feduca.errors import FeducaError, InputError

    typer.core.HAS_RICH = False  # or typer escapes "[default: ...]" for rich, which does not print our help

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter shows its number
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended)  # what ends here as if by Ctrl-C is recorded and can be resumed
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as __main__ left it while it imported us
            signal.signal(signal.SIGINT, signal.default_int_handler)
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # nohup wants it to go on
            signal.signal(hangup, ended)
    if not isinstance(sys.stderr, Unheard):
        sys.stderr = Unheard(sys.stderr)
    try:
        code = app(prog_name="feduca", standalone_mode=False)
    except FeducaError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"feduca: {error}", err=True)
        code = 2 if isinstance(error, InputError) else 1
    except click.UsageError as error:
        code = _misused(error)
    except BaseException as error:
        if "--debug" in sys.argv or (code := _outside(error)) is None:
            raise
    sys.exit(code if isinstance(code, int) else 0)


def _outside(error: BaseException) -> int | None:
    """What is nobody's bug: an interruption, whatever an import made of it, and what the system refuses. Says it in a line."""
    import errno

    from feduca.cli.streams import give_up_stdout
    from feduca.errors import printable

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt | click.Abort):
            typer.echo("feduca: interrupted", err=True)
            return 130
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC):
        give_up_stdout()  # what a run writes has errors of its own
        if error.errno == errno.ENOSPC:
            say = "cannot write the output: no space left; free some space, then repeat the command"
            typer.echo(f"feduca: {say}", err=True)
        return 1
    if isinstance(error, OSError) and error.filename is not None:
        typer.echo(f"feduca: {printable(str(error.filename), 200)}: {error.strerror}; give another path", err=True)
        return 2
    if isinstance(error, MemoryError):
        typer.echo("feduca: there is not enough memory; use fewer silos, a smaller model or a smaller chunk", err=True)
        return 1
    return None


def _misused(error: click.UsageError) -> int:
    """An unknown option, a missing argument, ...: one line, too. (Without any argument there is help instead.)"""
    from feduca.errors import printable

    if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2; earlier ones print help by themselves
        error.show()
        return error.exit_code
    said = printable(" ".join(error.format_message().split())).rstrip(".")
    said = re.sub(r"(Did you mean [^?]*\?) \1", r"\1", said)  # typer and click may both ask
    where = "feduca" if error.ctx is None else error.ctx.command_path
    typer.echo(f"feduca: {said[:1].lower()}{said[1:]}; `{where} --help` has the options", err=True)
    return error.exit_code


if __name__ == "__main__":
    main()
