"""The group of all commands, and what becomes of errors. Nothing on disk. Threads: one.

Every error of the engine is one line on standard error and exit status 1; wrong usage is status 2,
Ctrl-C 130, and a reader that went away (`| head`) 141, quietly, as of a process that the signal ended.
"""

from __future__ import annotations

import os
import sys

import rich_click as click

from segstore.bench.ending import status
from segstore.cli.alter import alter
from segstore.cli.bench import bench
from segstore.cli.check import check
from segstore.cli.checkpoints import checkpoints
from segstore.cli.consume import consume
from segstore.cli.copy import copy
from segstore.cli.create import create
from segstore.cli.delete import delete
from segstore.cli.demo import demo
from segstore.cli.dump import dump
from segstore.cli.export import export
from segstore.cli.groups import groups
from segstore.cli.import_ import import_
from segstore.cli.produce import produce
from segstore.cli.quotas import quotas
from segstore.cli.stats import stats
from segstore.cli.sweep import sweep
from segstore.cli.topics import topics
from segstore.errors import SegstoreError

BROKEN_PIPE = 141


class Commands(click.RichGroup):
    """Runs a command and makes an exit status of what it returns, and a line too of what it raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in order of use, not of the alphabet

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


RECORDS = (produce, consume, export, import_)
KEEPING = (stats, sweep, copy, dump, check)
for command in (topics, create, alter, delete, *RECORDS, groups, quotas, checkpoints, *KEEPING, bench, demo):
    commands.add_command(command)
