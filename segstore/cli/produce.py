"""`segstore produce`: records from a file or standard input. On disk: by the engine.

Threads: one.
"""

from __future__ import annotations

import time
from typing import Any

import rich_click as click

from segstore.cli.input_chunk import InputOptions
from segstore.cli.inputs import FORMATS, Input, of_stream
from segstore.cli.options import open_for_change, store_option
from segstore.cli.output import progress_bar, rate_text
from segstore.cli.routing import Router
from segstore.records import CODECS


@click.command()
@click.argument("topic")
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "-f",
    "wanted",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Form of the input; auto: by the file's suffix, else lines.",
)
@click.option(
    "--partition", "-p", type=click.IntRange(0), help="All to this one; else by key, as Kafka does it."
)
@click.option("--key-field", "--key-column", metavar="NAME", help="Field or column that is the key.")
@click.option("--value-field", "--value-column", metavar="NAME", help="Field or column that is the value.")
@click.option(
    "--timestamp-field", "--timestamp-column", metavar="NAME", help="Field or column with ISO 8601 or ms."
)
@click.option(
    "--key-separator", "separator", metavar="TEXT", help="Of lines: what stands between key and value."
)
@click.option(
    "--plain", is_flag=True, help="Whole objects or rows are values, whatever their fields are called."
)
@click.option(
    "--compression", type=click.Choice(CODECS), help="Codec of the batches; by default the topic's."
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, 1 << 30),
    default=65536,
    show_default=True,
    help="Size of record batches before compression.",
)
@store_option
def produce(
    topic: str,
    source: Any,
    wanted: str,
    partition: int | None,
    compression: str | None,
    batch_bytes: int,
    path: str,
    **fields: Any,
) -> None:
    """Append records to TOPIC from FILE, or from standard input.

    \b
    lines    a record a line
    ndjson   {"key": ..., "value": ..., "headers": {...}, "timestamp": ..., "partition": ...}, as `consume`
             prints them; with --plain or --key-field whole objects are the values
    csv      rows below a header row, as JSON or one --value-column
    parquet  columns key, value, timestamp, headers and partition, or rows as JSON; arrow the same

    Times are ISO 8601 (UTC where no zone is named) or ms since the epoch. Records with a key go to the
    partition that Kafka's producer would choose (murmur2).
    """
    held, options = of_stream(source), InputOptions(**fields)
    started = time.perf_counter()
    with open_for_change(path, topic) as store:
        ids = store.topics()[topic].partition_ids
        router = Router(
            topic, ids, lambda n: store.partition(topic, n).append_batch, partition, compression, batch_bytes
        )
        try:
            feed(held, wanted, options, router)
            store.flush()
        finally:
            tell(router, started)


def feed(held: Input, wanted: str, options: InputOptions, router: Router) -> None:
    """Append all of an input, with a progress bar."""
    with progress_bar(held.size, f"appending to {router.topic}") as bar:
        for chunk in held.chunks(wanted, options):
            router.append(chunk)
            bar.update(bar.task_ids[0], completed=held.position() if held.size else router.bytes)


def tell(router: Router, started: float) -> None:
    """A line on what was appended; `started` is of time.perf_counter, s."""
    seconds = time.perf_counter() - started
    click.echo(f"{router.topic}: {rate_text(router.records, router.bytes, seconds)}", err=True)
