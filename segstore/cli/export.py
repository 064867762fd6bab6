"""`segstore export` writes a topic, or a part of it, as Parquet, Arrow IPC or NDJSON; `segstore import`
appends such a file to a topic.

On disk: `export` reads the store, beside a live writer too, and writes the file that the user names, whole
or not at all; `import` writes the store through the engine. Threads: one.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import click

import segstore
from segstore.choices import ISOLATION_LEVELS
from segstore.cli import consume
from segstore.cli.completion import topic_names
from segstore.cli.input_text import InputOptions
from segstore.cli.inputs import SUFFIXES, of_stream
from segstore.cli.options import config_option, store_option, time_value
from segstore.cli.output import progress_bar, rate_text
from segstore.cli.produce import Router, feed, tell
from segstore.cli.replicas import open_replicated, stores_option
from segstore.errors import Needing, StorageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.records import Records
    from segstore.storage.bulk_import import Importing


# --- export sinks ------------------------------------------------------------------------------

# These are the formats that `export` writes into a stream: Parquet, Arrow IPC (the streaming form) and
# NDJSON.


class Sink(Protocol):
    """Writes records in one format. It is a context manager; on exit it writes what ends the format."""

    def write(self, records: Records, partition: int) -> None:
        """Write some records of one partition."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Ndjson:
    """Writes a JSON object a line, as `consume` prints them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, records: Records, partition: int) -> None:
        self._stream.write(consume.ndjson(records, partition))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()


class Tables:
    """Writes Arrow tables through a pyarrow writer, without a Python object for each record."""

    def __init__(self, make: Callable[[Any, Any], Any], stream: BinaryIO) -> None:
        with Needing("pyarrow", "an export to Parquet or Arrow IPC"):
            import pyarrow
            import pyarrow.ipc
            import pyarrow.parquet
        from segstore.records.arrow import HEADER_TYPE

        self._pyarrow = pyarrow
        self._schema = pyarrow.schema(
            [
                pyarrow.field("partition", pyarrow.int32(), nullable=False),
                pyarrow.field("offset", pyarrow.int64(), nullable=False),
                pyarrow.field("timestamp", pyarrow.timestamp("ms", "UTC"), nullable=False),
                ("key", pyarrow.binary()),
                ("value", pyarrow.binary()),
                ("headers", HEADER_TYPE),
            ]
        )
        self._writer = make(stream, self._schema)

    def write(self, records: Records, partition: int) -> None:
        pa, table = self._pyarrow, records.to_arrow()
        numbers = pa.repeat(pa.scalar(partition, pa.int32()), len(records))
        self._writer.write_table(table.add_column(0, "partition", numbers).cast(self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def parquet(stream: BinaryIO) -> Tables:
    """Return a writer of Parquet, compressed with zstd, with a row group for each fetch."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetWriter(to, schema, compression="zstd")

    return Tables(make, stream)


def arrow(stream: BinaryIO) -> Tables:
    """Return a writer of Arrow IPC in the streaming form, which can be written to a pipe."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.ipc

        return pyarrow.ipc.new_stream(to, schema)

    return Tables(make, stream)


SINKS: dict[str, Callable[[BinaryIO], Sink]] = {"parquet": parquet, "arrow": arrow, "ndjson": Ndjson}


# --- export ------------------------------------------------------------

FETCH_BYTES = 8 << 20  # also about the size of a row group before compression


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
    "--partition",
    "-p",
    type=click.IntRange(0),
    multiple=True,
    help="Export only this partition; may be repeated.",
)
@click.option("--from-offset", type=click.IntRange(0), help="First offset; by default the log's start.")
@click.option("--to-offset", type=click.IntRange(0), help="Offset to end before; by default the log's end.")
@click.option(
    "--from-time", callback=time_value, metavar="TIME", help="Begin at this time: ISO 8601 (UTC), or ms."
)
@click.option(
    "--to-time", callback=time_value, metavar="TIME", help="End before the first record from this time on."
)
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATION_LEVELS),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out records of aborted and open transactions.",
)
@click.option("--force", is_flag=True, help="Replace FILE where there is one already.")
@store_option
def export(
    topic: str,
    target: str,
    wanted: str,
    partition: tuple[int, ...],
    from_offset: int | None,
    to_offset: int | None,
    from_time: int | None,
    to_time: int | None,
    isolation_level: str,
    force: bool,
    path: str,
) -> None:
    """Write the records of TOPIC to FILE, or to standard output (-), one partition after the other.

    Columns: partition, offset, timestamp (UTC, ms), key, value, headers. `segstore import` can read the file.
    Records that are appended meanwhile are left out.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.meta.topics import find_topic

    if (from_offset is not None and from_time is not None) or (to_offset is not None and to_time is not None):
        raise click.UsageError("An end of the range is an offset or a time, not both.")
    _check_order("offset", from_offset, to_offset)
    _check_order("time", from_time, to_time)
    form = _form(wanted, target)
    if target == "-" and form != "ndjson" and sys.stdout.isatty():
        raise click.UsageError(f"A terminal can't show {form}: give a FILE, or a pipe.")
    if os.path.isfile(target) and not force:
        raise StorageError(errno.EEXIST, "The file exists already: --force replaces it", target)
    with open_reading(path) as store:
        ids = find_topic(store.topics(), topic).partition_ids
        logs = [store.partition(topic, number) for number in dict.fromkeys(partition or ids)]
        parts = [Part(log, _bounds(log, from_offset, to_offset, from_time, to_time)) for log in logs]
        with _target(target) as stream, SINKS[form](stream) as sink:
            _run(parts, sink, isolation_level, topic)


def _check_order(kind: str, first: int | None, last: int | None) -> None:
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from-{kind} is after --to-{kind}: nothing lies between them.")


def _form(wanted: str, target: str) -> str:
    form = wanted if wanted != "auto" else SUFFIXES.get(os.path.splitext(target)[1].lower(), "")
    if form not in SINKS:
        raise click.UsageError(f"Which format? Give --format: {target!r} does not say it by its suffix.")
    return form


def _bounds(
    log: segstore.PartitionLog, first: int | None, last: int | None, since: int | None, until: int | None
) -> tuple[int, int]:
    start, end = log.start_offset, log.end_offset
    if since is not None:
        first = log.offset_for_time(since)
        first = end if first is None else first
    if until is not None:
        last = log.offset_for_time(until)
    first = max(start, first or 0)
    return first, max(first, end if last is None else min(last, end))


class Part:
    """A partition, and the range of its offsets that is exported."""

    def __init__(self, log: segstore.PartitionLog, bounds: tuple[int, int]) -> None:
        self.log, (self.first, self.end) = log, bounds

    def __len__(self) -> int:
        return self.end - self.first

    def records(self, isolation_level: str) -> Iterator[segstore.Records]:
        return self.log.scan(self.first, self.end, isolation_level=isolation_level).reads(FETCH_BYTES)


def _run(parts: list[Part], sink: Sink, isolation_level: str, topic: str) -> None:
    started, count, size = time.perf_counter(), 0, 0
    with progress_bar(sum(map(len, parts)), f"exporting {topic}", of="offsets") as bar:
        for part in parts:
            at = part.first
            for records in part.records(isolation_level):
                if len(records):
                    sink.write(records, part.log.partition)
                count += len(records)
                size += sum(int(c.lengths.clip(0).sum()) for c in (records.keys, records.values))
                # Progress counts offsets, not records: compaction, transaction markers and aborted
                # transactions leave some offsets without a record.
                behind = min(records.next_offset, part.end)
                bar.update(bar.task_ids[0], advance=behind - at)
                at = behind
    click.echo(f"{topic}: {rate_text(count, size, time.perf_counter() - started)}", err=True)


@contextmanager
def _target(path: str) -> Iterator[BinaryIO]:
    """Yield the stream to write to. A file is written under another name, and replaces the one of this name
    once all is written. A device or a pipe is written to directly.
    """
    if path == "-":
        yield sys.stdout.buffer
        return
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as stream:
            yield stream
        return
    half = f"{path}.part"
    try:
        stream = open(half, "wb")  # noqa: SIM115  closed below
    except OSError as error:
        parent = os.path.dirname(path)
        reason = error.strerror if os.path.isdir(parent) else f"there is no directory {parent}"
        raise StorageError(error.errno, f"The file can't be made there: {reason}", path) from error
    try:
        with stream:
            yield stream
        os.replace(half, path)
    except BaseException:
        _remove(half)
        raise


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


# --- import  -----------------------------------------------------------------------------------

# `segstore import` appends what `export` wrote to a topic, through the engine. Threads: one.

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
    timestamp; it gets a new offset. All become visible at once, when all are durable. If anything fails, no
    record is appended, and a topic or store that was made for them is removed. A replicated store is named by
    all of its directories.
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
    tell(router, started)


@contextmanager
def _importing(
    paths: tuple[str, ...], witness: str | None, topic: str, partitions: int | None, config: dict[str, str]
) -> Iterator[Importing]:
    """Import into a store of one directory, which is made where it is missing, or into a replicated one."""
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.bulk_import import importing, importing_into

    if len(paths) == 1 and witness is None:
        if partitions is None:
            open_reading(paths[0]).close()
        with importing(paths[0], topic, partitions, config) as into:
            yield into
        return
    with open_replicated(paths, witness) as store, importing_into(store, topic, partitions, config) as into:
        yield into
