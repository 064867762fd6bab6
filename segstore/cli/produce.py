"""`segstore produce`: appends records from a file or standard input. On disk: the engine writes the store.

Threads: one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from segstore.arrays import np
from segstore.choices import CODECS
from segstore.cli.completion import topic_names
from segstore.cli.input_text import Chunk, InputError, InputOptions
from segstore.cli.inputs import FORMATS, Input, of_stream
from segstore.cli.output import progress_bar, rate_text
from segstore.cli.place_option import place_option
from segstore.cli.places.place import Appends, Where

# --- routing -----------------------------------------------------------------------------------

# The router of this section sends columns of records to the partitions of a topic.


class Router:
    """Sends chunks of records to the partitions of a topic, through `appends`."""

    def __init__(self, topic: str, ids: Sequence[int], appends: Appends, partition: int | None) -> None:
        """`ids` are the numbers of the topic's partitions. If `partition` is not None, all records go to this
        partition.
        """
        self.topic, self.appends = topic, appends
        self._ids, self._given = ids, partition
        self._fixed = partition if partition is not None else self._ids[0] if len(self._ids) == 1 else None
        self._turn = 0

    def append(self, chunk: Chunk) -> None:
        """Append the records of a chunk to their partitions. If a record has a partition number that does not
        exist, no record of the chunk is appended.
        """
        if not len(chunk):
            return
        if self._fixed is not None and not any(p is not None for p in chunk.partitions or ()):
            self._append(self._fixed, chunk, None)
            return
        where = self._partitions(chunk)
        for partition in np.unique(where).tolist():
            self._append(partition, chunk, np.flatnonzero(where == partition))

    def _partitions(self, chunk: Chunk) -> Any:
        """Return the partition of each record: the value of --partition. If --partition is not given, it is
        the value of the record's field `partition`. If the record has no such field, the record's key
        determines the partition. All records of a chunk without field and key go to one partition, which
        changes from chunk to chunk.
        """
        from segstore.client.producer.partitioner import NO_PARTITION, partitions_for_keys

        n = len(chunk)
        if self._fixed is not None:
            where = np.full(n, self._fixed)
        elif chunk.keys is None:
            where = np.full(n, NO_PARTITION)
        else:
            where = partitions_for_keys(_objects(chunk.keys), len(self._ids)).astype(np.int64)
        if self._given is None:
            for i, own in enumerate(chunk.partitions or ()):
                if own is not None:
                    where[i] = self._known(own)
        where[where == NO_PARTITION] = self._ids[self._turn % len(self._ids)]
        self._turn += 1
        return where

    def _known(self, partition: int) -> int:
        if partition not in self._ids:
            raise InputError(
                f"a record is for partition {partition}; {self.topic} has {list(self._ids)}:"
                f" `segstore alter {self.topic} --partitions {partition + 1}` adds it"
            )
        return partition

    def _append(self, partition: int, chunk: Chunk, rows: Any) -> None:
        keys, values = _take(chunk.keys, rows), _take(chunk.values, rows)
        headers = _take(chunk.headers, rows)
        self.appends.append(
            partition,
            values,
            keys=keys
            if keys is not None and (not isinstance(keys, list) or any(k is not None for k in keys))
            else None,
            timestamps=_stamps(_take(chunk.timestamps, rows)),
            headers=headers if _has_headers(headers) else None,
        )


def _has_headers(column: Any) -> bool:
    if column is None or isinstance(column, list):
        return any(column or ())
    return bool(column.null_count < len(column))


def _objects(column: Any) -> list[bytes | None]:
    """Return the keys in a column as bytes. Text of an Arrow column is encoded as UTF-8."""
    if isinstance(column, list):
        return column
    keys = column.to_pylist()
    return [k.encode() if isinstance(k, str) else k for k in keys]


def _take(column: Any, rows: Any) -> Any:
    if column is None or rows is None:
        return column
    return [column[i] for i in rows.tolist()] if isinstance(column, list) else column.take(rows)


def _stamps(stamps: list[int | None] | None) -> list[int] | None:
    if stamps is None or all(s is None for s in stamps):
        return None
    now = time.time_ns() // 1_000_000
    return [now if s is None else s for s in stamps]


# --- produce ------------------------------------------------------------


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "-f",
    "wanted",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Format of the input; auto: by the file's suffix, else lines.",
)
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    help="Send all records to this partition; else by key, as Kafka does it.",
)
@click.option("--key-field", "--key-column", metavar="NAME", help="Field or column that is the key.")
@click.option("--value-field", "--value-column", metavar="NAME", help="Field or column that is the value.")
@click.option(
    "--timestamp-field", "--timestamp-column", metavar="NAME", help="Field or column with ISO 8601 or ms."
)
@click.option(
    "--key-separator",
    "separator",
    metavar="TEXT",
    help="Text that stands between key and value of a line; each line must have it.",
)
@click.option(
    "--plain", is_flag=True, help="Take whole objects or rows as values, whatever their fields are called."
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
@place_option
def produce(
    topic: str,
    source: Any,
    wanted: str,
    partition: int | None,
    compression: str | None,
    batch_bytes: int,
    where: Where,
    **fields: Any,
) -> None:
    """Append records to TOPIC from FILE, or from standard input.

    \b
    lines    a record a line
    ndjson   objects with key, value, headers, timestamp and partition,
             as `consume` prints them; with --plain or --key-field
             whole objects are the values
    csv      rows below a header row, as JSON or one --value-column
    parquet  columns key, value, timestamp, headers and partition,
             or rows as JSON; arrow the same

    Times are ISO 8601 (UTC if no zone is given) or ms since the epoch. Records with a key go to the partition
    that Kafka's producer would choose (murmur2).
    """
    from segstore.storage.meta.topics import find_topic

    opened, options = of_stream(source), InputOptions(**fields)
    started = time.perf_counter()
    with where.appending(topic) as place:
        ids = find_topic(place.topics(), topic).partition_ids
        into = ids if partition is None else (partition,)
        router = Router(topic, ids, place.appends(topic, into, compression, batch_bytes), partition)
        try:
            feed(opened, wanted, options, router)
        except BaseException as error:
            if not isinstance(error, Exception) or router.appends.records or router.appends.unknown:
                print_summary(router, started)
            raise
    print_summary(router, started)


def feed(opened: Input, wanted: str, options: InputOptions, router: Router) -> None:
    """Append all records of an input, show a progress bar, and wait until the records are acknowledged."""
    appends = router.appends
    with progress_bar(opened.size, f"appending to {router.topic}") as bar, appends:
        for chunk in opened.chunks(wanted, options):
            router.append(chunk)
            bar.update(bar.task_ids[0], completed=opened.position() if opened.size else appends.bytes)


def print_summary(router: Router, started: float) -> None:
    """Print a summary of the appended records. `started` is the value of time.perf_counter at the start."""
    seconds, appends = time.perf_counter() - started, router.appends
    unknown = f", and perhaps {appends.unknown:,} more" if appends.unknown else ""
    click.echo(f"{router.topic}: {rate_text(appends.records, appends.bytes, seconds)}{unknown}", err=True)
