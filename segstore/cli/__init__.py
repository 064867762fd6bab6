"""The `segstore` command: parses arguments, calls the engine, and presents the answer.

On disk: it reads input files that the user names, and writes no files of its own. Threads: the main thread of
the command's process. Each module has a command or a group of related commands; `app` has the list of all
commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from segstore.cli.command_line import command_of
from segstore.cli.importing import imports, thawing

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 + SIGINT, as in shells."""


def keep_standard_streams() -> None:
    """Open /dev/null in place of each closed standard stream. Otherwise a file of the store could be opened
    with the stream's descriptor, and the command's output would be written into that file.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, `fd`
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments` (by default the process's), and return the exit status, or raise
    SystemExit with it.

    A closed standard stream is replaced by /dev/null.
    """
    keep_standard_streams()
    with (
        _signals_of(sys.argv[1:] if arguments is None else arguments),
        thawing(),
        suppress(KeyboardInterrupt),
    ):
        with imports():
            from segstore.cli.app import commands

        commands.main(args=arguments, prog_name="segstore")  # raises SystemExit
    return INTERRUPTED


def _signals_of(arguments: Sequence[str]) -> AbstractContextManager[object]:
    """Return a context manager that notes SIGHUP for `serve`, because the signal may come during the long
    imports. For any other command it does nothing.
    """
    if command_of(arguments) != "serve":
        return nullcontext()
    from segstore.cli.signals import hangups  # only `serve` needs this import

    return hangups()
