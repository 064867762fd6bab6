"""`segstore import`: what `export` wrote, into a topic. On disk: by the engine. Threads: one."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import rich_click as click

from segstore.cli.input_chunk import InputOptions
from segstore.cli.inputs import of_stream
from segstore.cli.options import config_option, open_reading, store_option
from segstore.cli.produce import feed, tell
from segstore.cli.routing import Router
from segstore.storage.bulk_import import importing

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
    offsets are given anew. All become visible at once, when all are durable; where anything fails none is
    there, nor a topic or a store that was made for them.
    """
    held = of_stream(source)
    form = held.format(wanted)
    if form not in FORMATS:
        raise click.UsageError("Which format? Give --format: the input does not say it by its suffix.")
    if config and partitions is None:
        raise click.UsageError("--config is for a topic that is made: give --partitions too.")
    if partitions is None:
        open_reading(path).close()
    started = time.perf_counter()
    with importing(path, topic, partitions, config) as (info, stager):
        ids = info.partition_ids
        router = Router(topic, ids, lambda n: partial(stager.append_batch, topic, n), None)
        feed(held, form, InputOptions(), router)
    tell(router, started)
