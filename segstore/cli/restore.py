"""`segstore restore`: makes a store from an archive. On disk: the engine writes the store. Threads: one. The
engine downloads in its own threads.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import segstore
from segstore.cli.options import json_option, no_bootstrap, parse_time
from segstore.cli.output import counted, print_json, progress_bar, size_text, time_text
from segstore.cli.signals import ended_by_signals

if TYPE_CHECKING:
    from segstore.coordinator.structs import TopicPartition

_AT = "TIME|TOPIC:PARTITION:OFFSET"
_TIME_AND_OFFSETS = "Give --at one time, or offsets of partitions, not both."


def _at(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> int | dict[TopicPartition, int] | None:
    """Return the values of --at: a time in ms since the epoch, or a dict with an end offset for each
    partition. If --at is not given, return None.
    """
    offsets = dict(end for text in given if (end := _end_offset(text)) is not None)
    if len(offsets) != len(given):
        if offsets or len(given) > 1:
            raise click.BadParameter(_TIME_AND_OFFSETS if offsets else "Give one time.")
        return _time(given[0])
    return offsets or None


def _end_offset(text: str) -> tuple[TopicPartition, int] | None:
    """If the text is TOPIC:PARTITION:OFFSET, return (partition, offset). For a time, and for any other text,
    return None.
    """
    topic, _, rest = text.partition(":")
    number, _, offset = rest.partition(":")
    if not (topic and number.isdecimal() and offset.isdecimal()) or _is_time(text):
        return None
    return segstore.TopicPartition(topic, int(number)), int(offset)


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither ISO 8601, as 2013-07-01T12:00:00Z, nor ms since the epoch, nor"
            " TOPIC:PARTITION:OFFSET"
        ) from None


@click.command()
@click.argument("uri", metavar="URI")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False))
@click.option(
    "--at",
    metavar=_AT,
    multiple=True,
    callback=_at,
    help="The log as it was: each partition up to its last record before one that is stamped later than TIME"
    " (ISO 8601, in UTC, or ms); or partitions up to these offsets, exclusive, which may be repeated. By"
    " default the newest state.",
)
@click.option(
    "--topics",
    "-t",
    metavar="NAME",
    multiple=True,
    help="A topic; may be repeated, and may have several, with commas between them. Internal topics, which"
    " have groups' offsets and transactions, come in any case. By default all.",
)
@json_option
@no_bootstrap
def restore(uri: str, directory: str, at: Any, topics: tuple[str, ...], as_json: bool) -> None:
    """Restore a store from the archive at URI into DIRECTORY, which must not exist yet.

    Segments and their indexes are the same, byte for byte. Transactions are complete or absent, and groups
    have their committed offsets of that moment. Every object that is read is checked.
    """
    from segstore.archiving.sizes import log_bytes

    chosen = [part for text in topics for part in text.split(",") if part] or None
    # Only the progress bar needs the total, which costs requests.
    total = log_bytes(uri, chosen) if sys.stderr.isatty() else None
    with ended_by_signals(), progress_bar(total, f"restoring {directory}") as bar:
        made = segstore.restore(
            uri, directory, at, chosen, progress=lambda size: bar.advance(bar.task_ids[0], size)
        )
    if as_json:
        print_json(made._asdict())
        return
    click.echo(
        f"{directory}: {counted(made.partitions, 'partition')}, {counted(made.segments, 'segment')},"
        f" {size_text(made.bytes)} of log, as of {time_text(made.time)}",
        err=True,
    )
