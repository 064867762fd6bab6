"""`segstore import`: what `export` wrote, into a topic. On disk: by the engine. Threads: one."""

from __future__ import annotations

from typing import Any

import rich_click as click

import segstore
from segstore.cli.input_chunk import InputOptions
from segstore.cli.inputs import of_stream
from segstore.cli.options import config_option, open_reading, store_option
from segstore.cli.produce import run
from segstore.cli.routing import Router
from segstore.config import TopicConfig
from segstore.names import check_topic
from segstore.storage.topics import find_topic

FORMATS = ("parquet", "arrow", "ndjson")


@click.command(name="import")
@click.argument("topic")
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "-f",
    "wanted",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Form of the input; auto: by the file's suffix.",
)
@click.option(
    "--partitions", type=click.IntRange(1, 100_000), help="Make TOPIC, with so many; it must not be there."
)
@config_option
@store_option
def import_(
    topic: str, source: Any, wanted: str, partitions: int | None, config: dict[str, str], path: str
) -> None:
    """Append the records that `export` wrote to TOPIC, from FILE or from standard input.

    Each goes to the partition that it was in, in the same order, with its key, value, headers and timestamp;
    offsets are given anew.
    """
    held = of_stream(source)
    form = held.format(wanted)
    if form not in FORMATS:
        raise click.UsageError("Which format? Give --format: the input does not say it by its suffix.")
    if config and partitions is None:
        raise click.UsageError("--config is for a topic that is made: give --partitions too.")
    with _store(topic, partitions, config, path) as store:
        try:
            router = Router(store, topic, None, None, 1 << 16)
            run(held, form, InputOptions(), router, store)
        except BaseException:
            if partitions is not None:
                _undo(store, topic)
            raise


def _store(topic: str, partitions: int | None, config: dict[str, str], path: str) -> segstore.Store:
    if partitions is None:
        with open_reading(path) as store:
            find_topic(store.topics(), topic)
        return segstore.open(path)
    check_topic(topic)
    TopicConfig.parse(config)
    store = segstore.open(path)
    try:
        store.create_topic(topic, partitions, config)
    except BaseException:
        store.close()
        raise
    return store


def _undo(store: segstore.Store, topic: str) -> None:
    """A topic that was made for nothing would stand in the way of the next try."""
    if not any(store.partition(topic, n).end_offset for n in store.topics()[topic].partition_ids):
        store.delete_topic(topic)
