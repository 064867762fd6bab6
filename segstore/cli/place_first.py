"""`PlaceFirst`: --store and --bootstrap may stand in front of a command's name as well as behind it.

Nothing on disk. Threads: one.
"""

from __future__ import annotations

import click

from segstore.cli.help import Group

_PLACES = ("--store", "-s", "--bootstrap", "-b")


class PlaceFirst(Group):
    """A group of commands that hands these options on to the command that is named behind them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, moved(args))


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
