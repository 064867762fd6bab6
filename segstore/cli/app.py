"""The group of all commands, and how errors end a command. Threads: one.

Every error of the engine is one line on standard error and exit status 1; wrong usage is status 2, Ctrl-C
130. A reader that closed the pipe (`| head`) ends the command silently with 141, the status of a process
ended by the signal.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import rich_click as click

from segstore.cli.signals import status
from segstore.errors import SegstoreError

BROKEN_PIPE = 141
COMMANDS = {
    **dict.fromkeys(("topics", "create", "alter", "delete"), "segstore.cli.topics"),
    "produce": "segstore.cli.produce",
    "consume": "segstore.cli.consume",
    **dict.fromkeys(("export", "import"), "segstore.cli.export"),
    "groups": "segstore.cli.groups",
    "quotas": "segstore.cli.maintenance",
    "checkpoints": "segstore.cli.checkpoints",
    **dict.fromkeys(("stats", "sweep", "copy"), "segstore.cli.maintenance"),
    "dump": "segstore.cli.dump",
    "check": "segstore.cli.maintenance",
    "bench": "segstore.bench.command",
    "demo": "segstore.demo.command",
}
"""Where each command is, in order of use. A command's module is imported when it is asked for, so that none
brings what another one needs (plots, Spark).
"""


class Commands(click.RichGroup):
    """Runs a command and makes an exit status of what it returns, and a line too of what it raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name  # a word of Python's
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), name)
        return command

    def invoke(self, ctx: click.Context) -> None:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            if result:
                ctx.exit(result)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(BROKEN_PIPE)
        except (KeyboardInterrupt, click.Abort) as error:
            ctx.exit(status(error))
        except (SegstoreError, OSError) as error:
            click.echo(f"segstore: {one_line(error)}", err=True)
            ctx.exit(1)


def one_line(error: Exception) -> str:
    """What an error says, file first, without the number."""
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split()) or type(error).__name__


def _drop_output() -> None:
    # What is left in the buffer would fail again, aloud, when the interpreter ends.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="segstore", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Apache Kafka's storage layer without the broker: look at a store, feed it, read it.

    The store is a directory, given with --store or in SEGSTORE_PATH. Commands that only read work
    beside a live writer, and on a Kafka broker's log directory.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
