"""The command `segstore`: parses arguments, calls the engine, and prints the result.

On disk: files that the user names are read or written. The command line has no files of its own. Threads: the
main thread of the command's process. Each module has a command, or a group of related commands. `app` has the
list of all commands.
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
    """Open /dev/null in place of each closed standard stream. If the stream stayed closed, the next file that
    is opened would get its descriptor number, and the command's output could be written into a file of the
    store.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The new descriptor gets the lowest free number, which is `fd`.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments` (None: the arguments of the process). Raise SystemExit with the exit
    status. After Ctrl-C during the imports, return INTERRUPTED.

    If a standard stream is closed, it is opened as /dev/null.
    """
    keep_standard_streams()
    with (
        _signals_of(sys.argv[1:] if arguments is None else arguments),
        thawing(),
        suppress(KeyboardInterrupt),
    ):
        with imports():
            from segstore.cli.app import commands

        commands.main(args=arguments, prog_name="segstore")  # This call raises SystemExit.
    return INTERRUPTED


def _signals_of(arguments: Sequence[str]) -> AbstractContextManager[object]:
    """Return a context manager for the imports, which take long. If the command is `serve`, the context
    manager records a SIGHUP that comes during its block. For all other commands it does nothing.
    """
    if command_of(arguments) != "serve":
        return nullcontext()
    from segstore.cli.signals import hangups  # Only `serve` needs this import.

    return hangups()
