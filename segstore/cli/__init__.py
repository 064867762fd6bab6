"""The `segstore` command: parses arguments, calls the engine, and presents the answer.

On disk: it reads input files that the user names, and writes nothing of its own. Threads: the main thread of
its own process. Each module has a command or a group of related ones; `app` puts them together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from segstore.cli.command_line import command_of
from segstore.cli.importing import imports, thawing

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 + SIGINT, as shells have it."""


def keep_standard_streams() -> None:
    """Open each of standard input, output and error that is closed as /dev/null. Otherwise the next file that
    is opened, one of the store's, would get that descriptor, and be written to as if it was the terminal.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, which is `fd`
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments` (by default those of the process), and return the exit status, or raise
    SystemExit with it.

    A standard stream that is closed is replaced by /dev/null.
    """
    keep_standard_streams()
    with (
        _signals_of(sys.argv[1:] if arguments is None else arguments),
        thawing(),
        suppress(KeyboardInterrupt),
    ):
        with imports():
            from segstore.cli.app import commands

        commands.main(args=arguments, prog_name="segstore")  # ends by SystemExit
    return INTERRUPTED


def _signals_of(arguments: Sequence[str]) -> AbstractContextManager[object]:
    """Return a block for `serve` in which SIGHUP is noted before `serve` is imported, which takes a while."""
    if command_of(arguments) != "serve":
        return nullcontext()
    from segstore.cli.signals import hangups  # no other command needs it

    return hangups()
