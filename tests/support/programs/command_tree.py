"""Judges the arguments of a `segstore` command that a page shows by the commands' own options, without
running it. Writes nothing.

A word in capitals (TOPIC, HOST:PORT, NAME=VALUE) or `…` stands for a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from segstore.cli.app import COMMANDS as COMMANDS
from segstore.cli.app import ListedCommand, commands
from segstore.cli.command_line import moved

STAND_IN = re.compile(r"[A-Z][A-Z_]*(?:[:=,][A-Z_]+)*(?:\[,\.\.\.\])?|…|\.\.\.")
NARROW = (
    click.Choice,
    click.IntRange,
    click.FloatRange,
    type(click.INT),
    type(click.FLOAT),
    type(click.BOOL),
)
"""Types whose values can be judged without a store or a file."""


class Found(click.UsageError):
    """No such command."""


def context(command: click.Command, name: str | None = None) -> click.Context:
    """Return a context as the program makes it: a command keeps the help option of its first context."""
    return click.Context(command, info_name=name, **commands.context_settings)


def command_of(words: Sequence[str]) -> tuple[list[str], click.Command, list[str]]:
    """Return the names of the command that the words begin with, that command, and the words after its name.
    Raises Found for a name that no command has.
    """
    command: click.Command = commands
    names, rest = [words[0]], list(words[1:])
    while isinstance(command, click.Group):
        rest = moved(rest)
        if not rest or rest[0].startswith("-") or STAND_IN.fullmatch(rest[0]):
            break
        name, *rest = rest
        ctx = context(command, " ".join(names))
        child = command.get_command(ctx, name)
        if child is None:
            raise Found(f"{' '.join(names)} has no command {name!r}")
        command = child.itself() if isinstance(child, ListedCommand) else child
        names.append(name)
    return names, command, rest


def fault(words: Sequence[str], whole: bool = False) -> str | None:
    """Return what is wrong with a command, or None. `whole`: its required arguments must be there, too; a
    sentence may name a command, or one with an option, without them.
    """
    try:
        names, command, rest = command_of(words)
        if rest and isinstance(command, click.Group) and STAND_IN.fullmatch(rest[0]):
            return None  # segstore COMMAND --help
        values, given, left = parsed(names, command, rest)
        if left:
            return f"{left} are too many arguments for {' '.join(names)}"
        _judge(command, values, given)
        names_of = lacking(command, values) if whole else []
        return f"{' '.join(names)} needs {names_of}" if names_of else None
    except click.UsageError as error:
        return error.format_message()


def parsed(
    names: Sequence[str], command: click.Command, rest: Sequence[str]
) -> tuple[dict[str, object], list[click.Parameter], list[str]]:
    """Return the values by parameter's name, the parameters that are given, and the words that are left. The
    value of an option that ends the words may be missing, as in "`segstore mirror --to`".
    """
    ctx = context(command, " ".join(names))
    try:
        values, left, given = command.make_parser(ctx).parse_args(list(rest))
    except click.BadOptionUsage as error:
        if not rest or error.option_name != rest[-1]:
            raise
        values, left, given = command.make_parser(ctx).parse_args([*rest, "VALUE"])
    return values, given, left


def _judge(command: click.Command, values: dict[str, object], given: Sequence[click.Parameter]) -> None:
    ctx = context(command)
    for each in given:
        if isinstance(each.type, NARROW) and not (isinstance(each, click.Option) and each.is_flag):
            for value in _texts(values.get(str(each.name))):
                if not STAND_IN.fullmatch(value):
                    each.type.convert(value, each, ctx)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def lacking(command: click.Command, values: dict[str, object]) -> list[str]:
    """Return the names of required parameters that have no value. A variable of the environment may give the
    store.
    """
    required = [each for each in command.params if each.required and not each.envvar]
    without = [each for each in required if not any(_texts(values.get(str(each.name))))]
    return [each.human_readable_name.removesuffix("...") for each in without]


def options() -> set[str]:
    """Return the options of all commands."""
    return {option for command in _all(commands) for each in command.params for option in _spelled(each)}


def _all(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and the commands below it."""
    command = command.itself() if isinstance(command, ListedCommand) else command
    yield command
    if isinstance(command, click.Group):
        ctx = context(command)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from _all(child)


def _spelled(param: click.Parameter) -> list[str]:
    return [*param.opts, *param.secondary_opts] if isinstance(param, click.Option) else []
