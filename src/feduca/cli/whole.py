"""What the groups of commands over Flower share."""

from __future__ import annotations

import click
import typer.core

from feduca.cli.options import WHOLE


class Whole(typer.core.TyperGroup):
    """Commands with their whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(WHOLE)) for name, one in commands if one is not None])


def flower_is_here() -> None:
    from importlib.util import find_spec

    from feduca.errors import InputError

    if find_spec("flwr") is None:
        raise InputError('Flower is not installed here; pip install "feduca[flower]"')
