"""The group of all commands, which turns errors into messages and exit statuses. Threads: one.

An error of the engine is printed as one line on standard error, and the exit status is 1. Wrong usage gives
status 2, and Ctrl-C gives status 130. If the command writes to a pipe that its reader has closed (`| head`),
it ends silently with status 141, as if SIGPIPE had ended it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from segstore.cli.help import WIDEST, colour, dressed, wrong_usage
from segstore.cli.importing import imports, thawing
from segstore.cli.place_first import PlaceFirst
from segstore.cli.places.locked import locked_text
from segstore.cli.signals import status
from segstore.errors import SegstoreError, StoreLockedError
from segstore.version import VERSION

BROKEN_PIPE = 141
COMMANDS = {
    "topics": (
        "segstore.cli.topics",
        "List topics with their partitions, offsets, bytes and settings. With a TOPIC, list each of its"
        " partitions.",
    ),
    "create": (
        "segstore.cli.topics",
        "Create TOPIC, and the store if there is none yet.",
    ),
    "alter": (
        "segstore.cli.topics",
        "Change TOPIC's settings, or add partitions.",
    ),
    "delete": (
        "segstore.cli.topics",
        "Remove TOPIC with all its records.",
    ),
    "produce": (
        "segstore.cli.produce",
        "Append records to TOPIC from FILE, or from standard input.",
    ),
    "consume": (
        "segstore.cli.consume",
        "Print the records of TOPIC, one partition after the other; with --follow, as they come.",
    ),
    "export": (
        "segstore.cli.export",
        "Write the records of TOPIC to FILE, or to standard output (-), one partition after the other.",
    ),
    "import": (
        "segstore.cli.export",
        "Append the records that `export` wrote to TOPIC, from FILE or from standard input.",
    ),
    "sql": (
        "segstore.cli.sql",
        "Run SQL on the topics of the store, by DuckDB. Each topic is a view with the topic's name.",
    ),
    "groups": (
        "segstore.cli.groups",
        "Show consumer and share groups and their lag, alter their settings, reset offsets, delete.",
    ),
    "quotas": (
        "segstore.cli.maintenance",
        "Show the byte rates of clients, or change the rates of one client: producer_byte_rate and"
        " consumer_byte_rate, in bytes a second.",
    ),
    "serve": (
        "segstore.cli.serve",
        "Serve the store to Kafka's clients, as a cluster of one broker, until Ctrl-C.",
    ),
    "config": (
        "segstore.cli.config",
        "Judge files of settings for `segstore serve --config`.",
    ),
    "members": (
        "segstore.cli.members",
        "Show the processes that share the store: which is the host, which are stopped, and which hold"
        " the lock of a log.",
    ),
    "mirror": (
        "segstore.cli.mirror",
        "Mirror topics of the Kafka cluster at BOOTSTRAP (HOST:PORT, with commas between several) into"
        " DIRECTORY, until Ctrl-C.",
    ),
    "follow": (
        "segstore.cli.follow",
        "Keep DIRECTORY as the hot standby of the primary at HOST:PORT, until Ctrl-C.",
    ),
    "promote": (
        "segstore.cli.follow",
        "Let the standby in DIRECTORY take its primary's place. A running `segstore follow` of DIRECTORY"
        " stops.",
    ),
    "demote": (
        "segstore.cli.demote",
        "Remove a primary's standby, so that the primary alone acknowledges acks=all.",
    ),
    "unfence": (
        "segstore.cli.unfence",
        "Let the demoted primary in DIRECTORY lead again, if no other node leads.",
    ),
    "end-mirror": (
        "segstore.cli.mirror",
        "Turn the mirror in DIRECTORY into an ordinary store, under new leader epochs.",
    ),
    "checkpoints": (
        "segstore.cli.checkpoints",
        "Look into Spark's checkpoint directories, in their present and in earlier states.",
    ),
    "stats": (
        "segstore.cli.maintenance",
        "Show segments, bytes, records, offsets, dirty ratio, last sweep and errors of every partition.",
    ),
    "replicas": (
        "segstore.cli.replicas",
        "Show leaders, in-sync and eligible replicas of a replicated store. With a TOPIC, show each replica's"
        " directory, too. For the directory of a primary or a standby, show its mode, and the standby's lag.",
    ),
    "elect": (
        "segstore.cli.replicas",
        "Elect leaders of partitions of a replicated store, by default of all.",
    ),
    "reassign": (
        "segstore.cli.replicas",
        "Move a partition of a replicated store, or all of a topic, to other directories; wait until that"
        " is done.",
    ),
    "heal": (
        "segstore.cli.replicas",
        "Read all replicas of partitions of a replicated store, by default of all partitions, and replace"
        " damaged records by copies from a sound replica.",
    ),
    "replicate": (
        "segstore.cli.replicas",
        "Turn a store without replicas, with new directories, into a replicated store, without copying.",
    ),
    "unreplicate": (
        "segstore.cli.replicas",
        "Turn a DIRECTORY with all partitions of a replicated store into a store without replicas,"
        " without copying.",
    ),
    "sweep": (
        "segstore.cli.maintenance",
        "Run retention and compaction now, as each topic's settings ask for. An open store does this in the"
        " background.",
    ),
    "upgrade": (
        "segstore.cli.maintenance",
        "Convert messages that Kafka wrote before 0.11 (magic 0 and 1) to record batches of magic 2.",
    ),
    "copy": (
        "segstore.cli.maintenance",
        "Copy the store to TARGET, which must not exist yet. Another process may be writing the store.",
    ),
    "archive": (
        "segstore.cli.archive",
        "Archive the store to URI, such as s3://bucket/log or a directory, until Ctrl-C. With `verify`, read"
        " and check every object of an archive.",
    ),
    "restore": (
        "segstore.cli.restore",
        "Restore a store from the archive at URI into DIRECTORY, which must not exist yet.",
    ),
    "dump": (
        "segstore.cli.dump",
        "Show the content of files: batches, index entries, snapshots, checkpoints.",
    ),
    "check": (
        "segstore.cli.maintenance",
        "Check the bytes, indexes, checkpoints and names of a store, which may be in use.",
    ),
    "bench": (
        "segstore.bench.command",
        "Measure why a log is fast, on this machine.",
    ),
    "demo": (
        "segstore.demo.command",
        "Append all flights of 2013, with a kill -9 midway; read them by offset, by date and by "
        "key; replay them to a group of consumers, one of which dies; take a disk away from a "
        "replicated store; let librdkafka use a store over the network; kill a primary, and "
        "promote its hot standby; archive a store, lose it, and bring it back as it was a minute "
        "before; let Spark count delays per airline and hour as a stream, whose driver is killed, "
        "and flights of an archive; check the store.",
    ),
}
"""For each command, in the order in which help lists them: (its module, the first paragraph of its help). The
module is imported when the command is called. So the list of commands does not import the engine, and no
command imports packages that only other commands need (plots, Spark).
"""


class ListedCommand(click.Command):
    """A placeholder for a command in the list of commands. When it is called, it imports the real command and
    calls it.
    """

    def __init__(self, name: str) -> None:
        self._module, text = COMMANDS[name]
        super().__init__(name=name, help=text)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        return self.itself().make_context(*args, **extra)

    def itself(self) -> click.Command:
        """Import the real command, and return it."""
        # the name of the command's function
        name = "import_" if self.name == "import" else str(self.name).replace("-", "_")
        with imports():
            command: click.Command = getattr(import_module(self._module), name)
        return dressed(command)


class Commands(PlaceFirst):
    """The group of all commands. The return value of a command's function is the exit status. An exception is
    printed as one line on standard error, and determines the exit status. Wrong usage is an exception, too.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return ListedCommand(cmd_name) if cmd_name in COMMANDS else None

    def main(self, *args: Any, **extra: Any) -> Any:
        with thawing():
            return super().main(*args, color=colour(), **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _refuse(error)

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
        except click.ClickException as error:
            _refuse(error)
        except StoreLockedError as error:
            click.echo(f"segstore: {locked_text(error)}", err=True)
            ctx.exit(1)
        except (SegstoreError, OSError) as error:
            click.echo(f"segstore: {one_line(error)}", err=True)
            ctx.exit(1)


def _refuse(error: click.ClickException) -> NoReturn:
    """Print an error of wrong usage, and exit with the error's exit status."""
    click.echo(wrong_usage(error), err=True)
    raise click.exceptions.Exit(error.exit_code) from None


def one_line(error: Exception) -> str:
    """Return an error's message as one line. The line of an OSError has the file and the reason, but not the
    errno.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split()) or type(error).__name__


def _drop_output() -> None:
    # Buffered output is written to /dev/null. If the output stayed in the buffer, the interpreter would write
    # it to the closed pipe at exit, and print another error.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)
@click.version_option(VERSION, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Apache Kafka's storage layer without the broker: look at a store, feed it, read it.

    The store is a directory, given with --store PATH, or in SEGSTORE_PATH. Commands that
    only read work beside a live writer, and on a Kafka broker's log directory.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
