"""The order of a command line: --store and --bootstrap may precede the command's name.

Nothing on disk. Threads: any; no state. Imports no other module, since it runs before all imports.
"""

from __future__ import annotations

from collections.abc import Sequence

_PLACES = ("--store", "-s", "--bootstrap", "-b")


def command_of(args: Sequence[str]) -> str:
    """Return the name of the called command. If no command is called, return the first argument, which may be
    an option, or "" without arguments.
    """
    return next(iter(moved(list(args))), "")


def moved(args: list[str]) -> list[str]:
    """Return the arguments with leading --store and --bootstrap moved after the command's name. If no command
    is called, return them unchanged.
    """
    count = 0
    while count < len(args) and (size := place_size(args[count])):
        count += size
    if not count or count >= len(args) or args[count].startswith("-"):
        return args
    return [args[count], *args[:count], *args[count + 1 :]]


def place_size(argument: str) -> int:
    """Return the number of arguments of an option --store or --bootstrap with its value; 0 for another
    argument.
    """
    if argument in _PLACES:
        return 2
    name, equals, _ = argument.partition("=")
    attached = argument[:2] in ("-s", "-b") and not argument.startswith("--")
    return int((bool(equals) and name in _PLACES) or attached)
