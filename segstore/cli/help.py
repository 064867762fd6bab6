"""Formats help texts, and errors of wrong usage. A help text is plain text, as wide as the terminal, but at
most WIDEST columns. An error of wrong usage is one line with advice. Nothing is on disk. Threads: one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import click

WIDEST = 120
_HYPHEN = "\N{NON-BREAKING HYPHEN}"
"""This character replaces each hyphen while text is wrapped, so that no line is broken after a hyphen of an
option.
"""


class Formatter(click.HelpFormatter):
    """Click's formatter, with two changes: no line is broken at a hyphen, and headings are bold on a
    terminal.
    """

    def write_heading(self, heading: str) -> None:
        """Write a heading in bold."""
        super().write_heading(click.style(heading, bold=True))

    def write_text(self, text: str) -> None:
        """Write a paragraph without line breaks at hyphens."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a definition list without line breaks at hyphens."""
        whole = [(first, second.replace("-", _HYPHEN)) for first, second in rows]
        super().write_dl(whole, col_max, col_spacing)

    def getvalue(self) -> str:
        """Return the formatted text, with ordinary hyphens."""
        return super().getvalue().replace(_HYPHEN, "-")


class HelpContext(click.Context):
    """A click context that formats help with `Formatter`."""

    formatter_class = Formatter


class CommandGroup(click.Group):
    """A group whose commands are listed in order of use, each with the first sentence of its help."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a row of the list of commands for each command."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command)) for name, command in named if command])


def _first_sentence(command: click.Command) -> str:
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"[.;:] ", text.removesuffix("."))[0] + "."


def dressed(command: click.Command) -> click.Command:
    """Set `Formatter` as the formatter of the help of a command and its subcommands. Return the command."""
    command.context_class = HelpContext
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        dressed(inner)
    return command


def colour() -> bool | None:
    """Return False if the environment forbids escape sequences (NO_COLOR, TERM=dumb). If the environment
    allows them, return None.
    """
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return False if unwanted else None


_EXTRA = re.compile(r"Got unexpected extra arguments? \((\S+).*\)")


def wrong_usage(error: click.ClickException) -> str:
    """Return an error of wrong usage as one line. The line names the command that shows the help."""
    message = _no_store(error) or _unknown(error) or " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context is None:
        return f"segstore: {message}"
    if extra := _EXTRA.fullmatch(message):
        message = f"{message}: {_meant(context, extra[1])}"
    path, message = context.command_path, message.rstrip(".")
    return f"{path}: {message}{'' if message.endswith('?') else '.'} See `{path} --help`."


def _no_store(error: click.ClickException) -> str:
    """If the error is that --store is missing, return advice. For all other errors return ""."""
    param = error.param if isinstance(error, click.MissingParameter) else None
    if param is None or "--store" not in param.opts:
        return ""
    return f"Which store? Give --store PATH, or set {param.envvar}."


_NO_COMMAND = re.compile(r"No such command '(.*)'\.")


def _unknown(error: click.ClickException) -> str:
    """If the error is an unknown option or command, return a message with similar names, the most similar
    first. For all other errors return "".
    """
    context: click.Context | None = getattr(error, "ctx", None)
    if context is None:
        return ""
    if isinstance(error, click.NoSuchOption):
        places = {"--store", "--bootstrap"} if isinstance(context.command, click.Group) else set()
        given, kind = error.option_name, "option"
        known = sorted((_options(context.command) | places) - {given})
    elif (match := _NO_COMMAND.fullmatch(error.message)) and isinstance(context.command, click.Group):
        given, kind, known = match[1], "command", context.command.list_commands(context)
    else:
        return ""
    from segstore.config.options import did_you_mean  # Only this error needs the import.

    meant = did_you_mean(given, known)
    return f"No such {kind} {given!r}" + (f": {meant}" if meant else "")


def _options(command: click.Command) -> set[str]:
    shown = (param for param in command.params if isinstance(param, click.Option) and not param.hidden)
    return {name for option in shown for name in option.opts}


def _meant(context: click.Context, extra: str) -> str:
    """Return a guess: the option that the user may have meant by an extra argument. If there is no guess,
    return the arguments that the command takes.
    """
    options = _options(context.command)
    guesses = {
        f"--{extra}": True,
        f"--config {extra}": "=" in extra,
        f"--partitions {extra}": extra.isdecimal(),
        f"--max-records {extra}": extra.isdecimal(),
        f"--store {extra}": os.sep in extra or os.path.isdir(extra),
    }
    for guess, fits in guesses.items():
        if fits and guess.split()[0] in options:
            return f"did you mean {guess}?"
    taken = " ".join(context.command.collect_usage_pieces(context)[1:]) or "no argument"
    return f"it takes {taken}" + (", and the store by --store PATH" if "--store" in options else "")
