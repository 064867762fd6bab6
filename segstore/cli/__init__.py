"""The `segstore` command: parses, presents, and calls the engine.

On disk: reads input files that its user names, nothing else of its own.
Threads: the main thread of a process of its own. One module per command; `app` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments` (by default the process's): the exit status. SystemExit likewise."""
    try:
        from segstore.cli.app import commands

        commands.main(args=arguments, prog_name="segstore")
    except KeyboardInterrupt:
        return INTERRUPTED
