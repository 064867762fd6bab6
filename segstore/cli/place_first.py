"""`PlaceFirst`: a group of commands that allows --store and --bootstrap before a command's name, too.

Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from typing import Any

import click

from segstore.cli.command_line import moved, place_size
from segstore.cli.help import CommandGroup


class PlaceFirst(CommandGroup):
    """A group of commands that allows --store and --bootstrap before the command's name. These options are
    passed to the named command. If no command is named, they are passed to the command `default`.
    """

    def __init__(self, *args: Any, default: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = moved(args)
        help_ = next((each for each in args if each in ctx.help_option_names), None)
        if args and not place_size(args[0]) and not (self._default and args[0].startswith("-")):
            return super().parse_args(ctx, args)
        if help_ is not None:
            return super().parse_args(ctx, [help_])
        if self._default:
            return super().parse_args(ctx, [self._default, *args])
        if args:
            example = f"{ctx.command_path} {self.list_commands(ctx)[0]} {' '.join(args)}"
            raise click.UsageError(f"Missing command, as in `{example}`", ctx)
        return super().parse_args(ctx, args)
