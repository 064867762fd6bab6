"""`segstore mirror`: mirrors topics of a Kafka cluster until it is interrupted, or once; `segstore
end-mirror` makes an ordinary store of the mirror. On disk: through the engine.

Threads: the main thread waits; the mirror has its own.
"""

from __future__ import annotations

from typing import Any

import rich_click as click
from rich.progress import Progress

import segstore
from segstore.cli.options import no_bootstrap, pairs
from segstore.cli.output import progress_bar
from segstore.cli.places.properties import client_settings
from segstore.cli.signals import ended_by_signals
from segstore.following.choice import ALL
from segstore.following.followed_topics import KEEP as KEEP_OLD
from segstore.following.followed_topics import REPLACE
from segstore.mirroring.ending import CUT, KEEP
from segstore.mirroring.mirror import ISOLATIONS

_LOOK_MS = 500


@click.command()
@click.argument("bootstrap", metavar="BOOTSTRAP")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False))
@click.option(
    "--topics",
    "-t",
    metavar="NAME",
    multiple=True,
    help="A topic, or a regular expression for whole names; may be repeated, and may have several, with"
    " commas between them. By default every topic that is not internal.",
)
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATIONS)),
    default="uncommitted",
    show_default=True,
    help="How far is mirrored: up to the high watermark, or up to the last stable offset, so that no open"
    " transaction comes.",
)
@click.option("--once", is_flag=True, help="End when all is there that the source had at the start.")
@click.option(
    "--recreated",
    type=click.Choice([KEEP_OLD, REPLACE]),
    default=KEEP_OLD,
    show_default=True,
    help="What becomes of the mirror of a topic that was deleted at the source and made anew.",
)
@click.option(
    "--command-config",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help="A properties file of the client, as Kafka's tools have it: TLS, SASL.",
)
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="A setting of the client or of the mirror, such as security.protocol=SSL; may be repeated.",
)
def mirror(
    bootstrap: str,
    directory: str,
    topics: tuple[str, ...],
    isolation: str,
    once: bool,
    recreated: str,
    command_config: Any,
    given: dict[str, str],
) -> None:
    """Mirror topics of the Kafka cluster at BOOTSTRAP (HOST:PORT, with commas between several) into
    DIRECTORY, until Ctrl-C.

    Bytes, offsets, leader epochs, topic ids, transactions, settings and committed offsets of groups are kept
    as they are there. The client needs the rights of an ordinary consumer. DIRECTORY is a store, which can be
    read all the while; called again, the command goes on where it stopped.
    """
    held = {} if command_config is None else client_settings(command_config.read(), command_config.name)
    chosen = [part for text in topics for part in text.split(",") if part] or [ALL]
    with (
        ended_by_signals(),
        segstore.mirror(
            bootstrap, directory, chosen, isolation=isolation, recreated=recreated, config={**held, **given}
        ) as running,
    ):
        click.echo(f"{directory} mirrors {bootstrap}")
        with progress_bar(0, "mirror", "offsets") as bar:
            while not (running.wait_caught_up(_LOOK_MS) if once else running.wait(_LOOK_MS)):
                _show(bar, running)
        for problem in running.problems.values():
            click.echo(problem, err=True)
        if once:
            click.echo(_told(running))


def _show(bar: Progress, running: segstore.Mirror) -> None:
    known = [each for each in running.partitions() if each.source_end_offset >= 0]
    total = sum(max(each.source_end_offset, each.end_offset) - each.start_offset for each in known)
    done = sum(each.end_offset - each.start_offset for each in known)
    lag = sum(each.lag.records for each in known)
    waits = running.error or next((each.error for each in known if each.error), None)
    bar.update(
        bar.task_ids[0],
        total=total,
        completed=done,
        description=f"mirror, {lag:,} records behind" + (f": {waits}" if waits else ""),
    )


def _told(running: segstore.Mirror) -> str:
    partitions = running.partitions()
    offsets = sum(each.end_offset - each.start_offset for each in partitions)
    topics = len({each.topic for each in partitions})
    return f"mirrored {topics} topics, {len(partitions)} partitions, {offsets:,} offsets"


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False))
@click.option(
    "--open-transactions",
    type=click.Choice([CUT, KEEP]),
    default=CUT,
    show_default=True,
    help="Whether logs are cut at their last stable offset, since nobody will end the transactions that are"
    " open there; copies of what is cut are kept.",
)
@no_bootstrap
def end_mirror(directory: str, open_transactions: str) -> None:
    """Make an ordinary store of the mirror in DIRECTORY, under new leader epochs."""
    ended = segstore.end_mirror(directory, open_transactions)
    for each in ended:
        if each.cut:
            kept = f"; copies: {', '.join(each.kept)}" if each.kept else ""
            click.echo(f"{each.topic}-{each.partition}: {each.cut:,} offsets were cut{kept}")
    click.echo(f"{directory} is an ordinary store with {len(ended)} mirrored partitions")
