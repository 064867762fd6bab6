"""The order of a command line: --store and --bootstrap may precede the command's name.

Nothing is on disk. Threads: any. This module imports no other module, because it is used before all other
imports.
"""

from __future__ import annotations

from collections.abc import Sequence

_PLACES = ("--store", "-s", "--bootstrap", "-b")


def command_of(args: Sequence[str]) -> str:
    """Return the name of the called command. If no command is called, return the first argument, which may be
    an option, or "" if there are no arguments.
    """
    return next(iter(moved(list(args))), "")


def moved(args: list[str]) -> list[str]:
    """Move options --store and --bootstrap before the command's name to the place after it, and return the
    arguments. If no command is called, return the arguments unchanged.
    """
    count = 0
    while count < len(args) and (size := place_size(args[count])):
        count += size
    if not count or count >= len(args) or args[count].startswith("-"):
        return args
    return [args[count], *args[:count], *args[count + 1 :]]


def place_size(argument: str) -> int:
    """If `argument` is an option --store or --bootstrap, return the number of arguments that the option and
    its value take (1 or 2). For all other arguments return 0.
    """
    if argument in _PLACES:
        return 2
    name, equals, _ = argument.partition("=")
    attached = argument[:2] in ("-s", "-b") and not argument.startswith("--")
    return int((bool(equals) and name in _PLACES) or attached)
