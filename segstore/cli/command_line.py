"""The order of a command line: --store and --bootstrap may stand in front of a command's name.

Nothing on disk. Threads: any; no state. Imports nothing, since it is asked before anything is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

_PLACES = ("--store", "-s", "--bootstrap", "-b")


def command_of(args: Sequence[str]) -> str:
    """Return the name of the command that is called; another word if none is named."""
    return next(iter(moved(list(args))), "")


def moved(args: list[str]) -> list[str]:
    """Return the arguments with --store and --bootstrap, which stand in front of all others, put behind the
    name of a command. Where none is named, nothing is moved.
    """
    count = 0
    while count < len(args) and (size := place_size(args[count])):
        count += size
    if not count or count >= len(args) or args[count].startswith("-"):
        return args
    return [args[count], *args[:count], *args[count + 1 :]]


def place_size(argument: str) -> int:
    """Return how many arguments an option takes with its value; 0 for any other argument."""
    if argument in _PLACES:
        return 2
    name, equals, _ = argument.partition("=")
    attached = argument[:2] in ("-s", "-b") and not argument.startswith("--")
    return int((bool(equals) and name in _PLACES) or attached)
