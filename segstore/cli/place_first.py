"""`PlaceFirst`: --store and --bootstrap may stand in front of a command's name as well as behind it.

Nothing on disk. Threads: one.
"""

from __future__ import annotations

from typing import Any

import click

from segstore.cli.help import Group

_PLACES = ("--store", "-s", "--bootstrap", "-b")


class PlaceFirst(Group):
    """A group of commands that hands these options on to the command that is named behind them, or to the
    command `default` if none is named.
    """

    def __init__(self, *args: Any, default: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = moved(args)
        help_ = next((each for each in args if each in ctx.help_option_names), None)
        if args and not _size(args[0]) and not (self._default and args[0].startswith("-")):
            return super().parse_args(ctx, args)
        if help_ is not None:
            return super().parse_args(ctx, [help_])
        if self._default:
            return super().parse_args(ctx, [self._default, *args])
        if args:
            example = f"{ctx.command_path} {self.list_commands(ctx)[0]} {' '.join(args)}"
            raise click.UsageError(f"Missing command, as in `{example}`", ctx)
        return super().parse_args(ctx, args)


def moved(args: list[str]) -> list[str]:
    """Return the arguments with --store and --bootstrap, which stand in front of all others, put behind the
    name of a command. Where none is named, nothing is moved.
    """
    count = 0
    while count < len(args) and (size := _size(args[count])):
        count += size
    if not count or count >= len(args) or args[count].startswith("-"):
        return args
    return [args[count], *args[:count], *args[count + 1 :]]


def _size(argument: str) -> int:
    """Return how many arguments an option takes with its value; 0 for any other argument."""
    if argument in _PLACES:
        return 2
    name, equals, _ = argument.partition("=")
    attached = argument[:2] in ("-s", "-b") and not argument.startswith("--")
    return int((bool(equals) and name in _PLACES) or attached)
