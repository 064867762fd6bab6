"""`segstore export` writes a topic, or some of its records, as Parquet, Arrow IPC or NDJSON. `segstore
import` appends the records of such a file to a topic.

On disk: `export` reads the store, which another process may be writing to. `export` writes the file that the
user names, either completely or not at all. `import` appends to the store through the engine. Threads: one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import click

from segstore.choices import ISOLATION_LEVELS
from segstore.cli import consume
from segstore.cli.completion import topic_names
from segstore.cli.input_text import InputOptions
from segstore.cli.inputs import SUFFIXES, of_stream
from segstore.cli.new_file import check_new, new_file
from segstore.cli.options import config_option, store_option
from segstore.cli.output import progress_bar, rate_text
from segstore.cli.produce import Router, feed, print_summary
from segstore.cli.ranges import RecordRange, range_options
from segstore.cli.replicas import open_replicated, stores_option
from segstore.cli.signals import ended_by_signals
from segstore.errors import Needing, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from segstore.records import Records
    from segstore.storage.bulk_import import Importing
    from segstore.storage.scans.bounds import Bounds
    from segstore.storage.scans.topic_scan import TopicScan
    from segstore.storage.store.store import Store


# --- export sinks ------------------------------------------------------------------------------

# This section has the formats of `export`: Parquet, Arrow IPC (in the streaming format) and NDJSON.


class ExportedRecords(NamedTuple):
    """The result of one step of an export: `records` records of a partition were written, all below the
    offset `end`. `size` is the number of bytes in their keys and values.
    """

    partition: int
    end: int
    records: int
    size: int


class ExportWriter(Protocol):
    """A writer of records in one format. The writer writes some of the columns `_ALL_COLUMNS`, by default
    COLUMNS.
    """

    def write(self, scan: TopicScan, bounds: Bounds) -> Iterator[ExportedRecords]:
        """Write the records of `scan` that are within `bounds`. Yield an `ExportedRecords` after each
        step.
        """

    def close(self) -> None:
        """Write the rows that are still buffered, and the footer, if the format has one."""


COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns that are exported by default."""


class Ndjson:
    """A writer of lines with a JSON object each, like the output of `consume`."""

    def __init__(self, stream: BinaryIO, columns: Sequence[str] = COLUMNS) -> None:
        self._stream, self._columns = stream, columns

    def write(self, scan: TopicScan, bounds: Bounds) -> Iterator[ExportedRecords]:
        """Write the records of `scan` that are within `bounds`. Yield an `ExportedRecords` after each
        step.
        """
        for partition, records in scan.reads(bounds):
            if len(records):
                self._stream.write(self._lines(scan.topic, partition, records))
            held = {"key": records.keys, "value": records.values}
            size = sum(int(held[each].lengths.clip(0).sum()) for each in held.keys() & {*self._columns})
            yield ExportedRecords(partition, records.next_offset, len(records), size)

    def _lines(self, topic: str, partition: int, records: Records) -> bytes:
        if self._columns == COLUMNS:
            return consume.ndjson(records, partition)
        names = [name for each in self._columns for name in (each, f"{each}_encoding")]
        rows = (
            {"topic": topic, "timestamp_type": kind, **consume.row_of(record, partition)}
            for record, kind in zip(records, records.timestamp_types.tolist(), strict=True)
        )
        return consume.lines({name: row[name] for name in names if name in row} for row in rows)

    def close(self) -> None:
        """Flush the stream."""
        self._stream.flush()


class Tables:
    """A writer that passes Arrow tables to a writer of pyarrow, and makes no Python objects for single
    records.
    """

    def __init__(self, make: Callable[[Any, Any], Any], stream: BinaryIO, columns: Sequence[str]) -> None:
        with Needing("pyarrow", "an export to Parquet or Arrow IPC"):
            from segstore.cli.sql_output import groups
            from segstore.storage.scans.columns import schema_of

            self._columns, self._schema, self._groups = [*columns], schema_of(columns), groups
            self._writer = make(stream, self._schema)

    def write(self, scan: TopicScan, bounds: Bounds) -> Iterator[ExportedRecords]:
        """Write the records of `scan` that are within `bounds`. Yield an `ExportedRecords` after each
        table.
        """
        import pyarrow

        places = [name for name in ("partition", "offset") if name not in self._columns]
        for group in self._groups(scan.batches([*self._columns, *places], bounds)):
            table = pyarrow.Table.from_batches(group)
            self._writer.write_table(table.select(self._columns))
            size = sum(_bytes(table[name]) for name in ("key", "value") if name in self._columns)
            yield ExportedRecords(
                table["partition"][-1].as_py(), table["offset"][-1].as_py() + 1, len(table), size
            )

    def close(self) -> None:
        """Close the pyarrow writer."""
        self._writer.close()


def _bytes(column: Any) -> int:
    from pyarrow import compute

    return int(compute.sum(compute.binary_length(column)).as_py() or 0)


def parquet(stream: BinaryIO, columns: Sequence[str] = COLUMNS) -> Tables:
    """Return a writer of Parquet with zstd compression."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetWriter(to, schema, compression="zstd")

    return Tables(make, stream, columns)


def arrow(stream: BinaryIO, columns: Sequence[str] = COLUMNS) -> Tables:
    """Return a writer of Arrow IPC in the streaming format, which can be written to files and pipes."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.ipc

        return pyarrow.ipc.new_stream(to, schema)

    return Tables(make, stream, columns)


SINKS: dict[str, Callable[[BinaryIO, Sequence[str]], ExportWriter]] = {
    "parquet": parquet,
    "arrow": arrow,
    "ndjson": Ndjson,
}


# --- export ------------------------------------------------------------


def _columns(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = COLUMNS if given is None else tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for name in names:
        if name not in _ALL_COLUMNS:
            raise click.BadParameter(f"no column {name!r}; there are: {', '.join(_ALL_COLUMNS)}")
    return names


_ALL_COLUMNS = ("topic", *COLUMNS[:3], "timestamp_type", *COLUMNS[3:])


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("target", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "-f",
    "wanted",
    type=click.Choice(["auto", *SINKS]),
    default="auto",
    show_default=True,
    help="Format of FILE; auto: by its suffix.",
)
@click.option(
    "--columns",
    metavar="NAME,...",
    callback=_columns,
    help="Columns to write, in this order; by default all but topic and timestamp_type.",
)
@range_options
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATION_LEVELS),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out records of aborted and open transactions.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_option
def export(
    topic: str,
    target: str,
    wanted: str,
    columns: tuple[str, ...],
    limits: RecordRange,
    isolation_level: str,
    force: bool,
    path: str,
) -> None:
    """Write the records of TOPIC to FILE, or to standard output (-), one partition after the other.

    Columns: topic, partition, offset, timestamp (UTC, ms), timestamp_type, key, value, headers. `segstore
    import` can read the file. Records that are appended during the export are left out.
    """
    from segstore.cli.places.of_store import open_reading

    form = _form(wanted, target)
    if target == "-" and form != "ndjson" and sys.stdout.isatty():
        raise click.UsageError(f"A terminal can't show {form}: give a FILE, or a pipe.")
    check_new(target, force)
    with ended_by_signals(), open_reading(path) as store:
        scan = limits.scan(store, topic, isolation_level)
        with new_file(target) as stream:
            _run(scan, limits.bounds, SINKS[form](stream, columns))


def _form(wanted: str, target: str) -> str:
    form = wanted if wanted != "auto" else SUFFIXES.get(os.path.splitext(target)[1].lower(), "")
    if form not in SINKS:
        raise click.UsageError(f"Which format? Give --format: {target!r} does not say it by its suffix.")
    return form


def _run(scan: TopicScan, bounds: Bounds, sink: ExportWriter) -> None:
    """Write the records of a scan, and show a progress bar. The bar counts offsets, not records, because the
    number of records is not known in advance (not each offset has a record that is exported: compaction,
    markers, aborted transactions).
    """
    started, count, size, done = time.perf_counter(), 0, 0, 0
    before, total = _places(scan, bounds)
    with progress_bar(total, f"exporting {scan.topic}", of="offsets") as bar:
        for written in sink.write(scan, bounds):
            count, size = count + written.records, size + written.size
            behind = before[written.partition](written.end)
            bar.update(bar.task_ids[0], advance=behind - done)
            done = behind
        sink.close()
    click.echo(f"{scan.topic}: {rate_text(count, size, time.perf_counter() - started)}", err=True)


def _places(scan: TopicScan, bounds: Bounds) -> tuple[dict[int, Callable[[int], int]], int]:
    """Return ({partition: a function}, number of offsets that the export covers). The function gets an offset
    of its partition, and returns how many of the export's offsets come before that offset, including all
    offsets of the partitions that are exported earlier.
    """
    found: dict[int, Callable[[int], int]] = {}
    total = 0
    for log, start, end in scan.ranges:
        first = max(start, bounds.first_offset)
        last = max(first, min(end, bounds.last_offset + 1))

        def before(offset: int, first: int = first, last: int = last, sum_: int = total) -> int:
            return sum_ + min(offset, last) - first

        found[log.partition] = before
        total += last - first
    return found, total


# --- import  -----------------------------------------------------------------------------------

# `segstore import` appends the records of an export to a topic, through the engine. Threads: one.

FORMATS = ("parquet", "arrow", "ndjson")


@click.command(name="import")
@click.argument("topic", shell_complete=topic_names)
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "-f",
    "wanted",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Format of the input; auto: by the file's suffix.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    help="Create TOPIC with this many partitions; it must not exist.",
)
@config_option
@stores_option
def import_(
    topic: str,
    source: Any,
    wanted: str,
    partitions: int | None,
    config: dict[str, str],
    paths: tuple[str, ...],
    witness: str | None,
) -> None:
    """Append the records that `export` wrote to TOPIC, from FILE or from standard input.

    Each record goes to the partition that it was in, in the same order, with its key, value, headers and
    timestamp; it gets a new offset. All records become visible at once, when all are durable. If anything
    fails, no record is appended, and a topic or store that was created for them is removed. For a replicated
    store, give all its directories.
    """
    from segstore.cli.places.of_store import BatchAppends

    opened = of_stream(source)
    form = opened.format(wanted)
    if form not in FORMATS:
        raise click.UsageError("Which format? Give --format: the input does not say it by its suffix.")
    if config and partitions is None:
        raise click.UsageError("--config is only for a new topic: give --partitions too.")
    started = time.perf_counter()
    with _importing(paths, witness, topic, partitions, config) as (info, stager):
        ids = info.partition_ids
        calls = {n: partial(stager.append_batch, topic, n) for n in ids}
        router = Router(topic, ids, BatchAppends(calls), None)
        feed(opened, form, InputOptions(), router)
    print_summary(router, started)


def _check_topic(store: Store, topic: str) -> None:
    from segstore.storage.meta.topics import check_there

    try:
        check_there(store.topics(), topic)
    except UnknownTopicOrPartitionError as error:
        raise UnknownTopicOrPartitionError(f"{error} (--partitions N makes it)") from error


@contextmanager
def _importing(
    paths: tuple[str, ...], witness: str | None, topic: str, partitions: int | None, config: dict[str, str]
) -> Iterator[Importing]:
    """Open a store, and yield an `Importing` of it. If there is one path and no witness, the store has one
    directory, which is created if it is missing. If there are more paths or a witness, the store is a
    replicated store.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.bulk_import import importing, importing_into

    if len(paths) == 1 and witness is None:
        if partitions is None:
            with open_reading(paths[0]) as store:
                _check_topic(store, topic)
        with importing(paths[0], topic, partitions, config) as into:
            yield into
        return
    with open_replicated(paths, witness) as store, importing_into(store, topic, partitions, config) as into:
        yield into
