"""`segstore consume`: prints records to standard output. On disk: the store is only read. Threads: one."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from segstore.choices import ISOLATION_LEVELS
from segstore.cli.completion import topic_names
from segstore.cli.place_option import place_option
from segstore.cli.places.place import Batch, Where
from segstore.cli.ranges import RecordRange, range_options
from segstore.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from segstore.cli.places.place import Queue
    from segstore.cli.places.queues import QueueRecord
    from segstore.coordinator.group.admin import OffsetsLog
    from segstore.records.records import Record

# --- formats -----------------------------------------------------------------------------------

# The functions of this section make the output formats of `consume`.


def ndjson(records: Batch, partition: int) -> bytes:
    """Return a line with a JSON object for each record. `produce` can read these lines. Bytes that are not
    UTF-8 are base64, and then the field NAME_encoding is "base64".
    """
    return lines(row_of(record, partition) for record in records)


def row_of(record: Record | QueueRecord, partition: int) -> dict[str, object]:
    """Return the fields of a record's JSON object."""
    row: dict[str, object] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text, encoding = as_text(data)
        row[name] = text
        if encoding:
            row[f"{name}_encoding"] = encoding
    if record.headers:
        row["headers"] = [_header(name, value) for name, value in record.headers]
    return row


def lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return a line of JSON for each object."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def values(records: Batch, partition: int) -> bytes:
    """Return a line for each value. The line of a null value is empty."""
    return b"".join(b"%b\n" % (value or b"") for value in records.values)


def raw(records: Batch, partition: int) -> bytes:
    """Return the bytes of all values. There are no bytes between two values."""
    return b"".join(value or b"" for value in records.values)


FORMATS: dict[str, Callable[[Batch, int], bytes]] = {"ndjson": ndjson, "raw": raw, "values": values}


def as_text(data: bytes | None) -> tuple[str | None, str | None]:
    """Return (text, None) if `data` is UTF-8, (None, None) if it is None, else (base64 text, "base64")."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _header(name: str, value: bytes | None) -> list[str | None]:
    text, encoding = as_text(value)
    return [name, text, encoding] if encoding else [name, text]


# --- consume ------------------------------------------------------------


@click.command()
@click.argument("topic", shell_complete=topic_names)
@range_options
@click.option(
    "--last", "-l", type=click.IntRange(0), metavar="N", help="Begin N offsets before each partition's end."
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more records, until Ctrl-C.")
@click.option(
    "--max-records", "--max-messages", "-n", type=click.IntRange(0), help="End after this many records."
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(list(FORMATS)),
    default="ndjson",
    show_default=True,
    help="ndjson: an object a line; values: a value a line; raw: the bytes of values, with nothing between.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATION_LEVELS),
    default=ISOLATION_LEVELS[0],
    show_default=True,
    help="read_committed leaves out records of aborted and open transactions.",
)
@click.option(
    "--share",
    metavar="GROUP",
    help="Take records as a member of this share group, as they come, until Ctrl-C.",
)
@click.option(
    "--mode",
    type=click.Choice(["batch", "record-limit"]),
    help="With --share: acquire whole batches (the default), or no more records than are to be printed.",
)
@click.option(
    "--ack",
    type=click.Choice(["accept", "release", "reject"]),
    help="With --share: what becomes of records once they are printed, by default accept.",
)
@click.option(
    "--timeout-ms", type=click.IntRange(0), metavar="N", help="With --share: end if no record comes for N ms."
)
@click.option(
    "--offsets", is_flag=True, help="With --share and ndjson: print delivery counts beside the offsets."
)
@place_option
def consume(
    topic: str,
    limits: RecordRange,
    last: int | None,
    follow: bool,
    max_records: int | None,
    wanted: str,
    isolation_level: str,
    share: str | None,
    mode: str | None,
    ack: str | None,
    timeout_ms: int | None,
    offsets: bool,
    where: Where,
) -> None:
    """Print the records of TOPIC, one partition after the other; with --follow, as they come.

    In NDJSON a key or value that is not UTF-8 is base64, and "key_encoding" or "value_encoding" says so.

    With --share, each record is delivered to one of the group's members at a time, and is acknowledged once
    it is printed.
    """
    _check_options(share is not None, wanted)
    if share is not None:
        from segstore.cli.places.queues import QueueTerms

        terms = QueueTerms(topic, share, ack or "accept", mode == "record-limit")
        if terms.is_strict:
            where.check_offers("consume --mode record-limit")
        form = counted if offsets else FORMATS[wanted]
        with where.changing(topic) as place, place.queue(terms) as queue:
            printed = print_queue(queue, form, timeout_ms, max_records)
        if not printed and max_records != 0:
            click.echo(
                f"no records came: a new share group begins at the log's end; `segstore groups reset {share} "
                f"--to-earliest --topic {topic} --execute` gives it those before",
                err=True,
            )
        return
    from segstore.storage.meta.topics import find_topic

    if [limits.start, limits.from_time, last].count(None) < 2:
        raise click.UsageError("Give only one of --start, --from-time and --last.")
    if follow and (limits.end is not None or limits.to_time is not None):
        raise click.UsageError("--follow has no end: leave out --end and --to-time.")
    printer = Printer(FORMATS[wanted], max_records)
    with where.reading() as place:
        numbers = limits.partitions or find_topic(place.topics(), topic).partition_ids
        with place.reading(topic, numbers, isolation_level) as reading:
            for number, log in reading.logs.items():
                end = None if follow else last_offset(log, limits.end, limits.to_time)
                reading.seek(number, first_offset(log, limits.start, limits.from_time, last), end)
            printer.print_all(reading.drain())
            if follow:
                printer.print_all(reading.follow())


_OF_SHARE = {"mode": "--mode", "ack": "--ack", "timeout_ms": "--timeout-ms", "offsets": "--offsets"}
_OF_PARTITIONS = {
    "partition": "--partition",
    "start": "--start",
    "end": "--end",
    "from_time": "--from-time",
    "to_time": "--to-time",
    "last": "--last",
    "follow": "--follow",
    "isolation_level": "--isolation-level",
}


def _check_options(is_share: bool, wanted: str) -> None:
    """Raise click.UsageError if an option is given that can't be combined with --share, that needs --share,
    or that needs another format.
    """
    context = click.get_current_context()
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    wrong = [text for name, text in (_OF_PARTITIONS if is_share else _OF_SHARE).items() if name in given]
    if wrong:
        why = "with --share: the group has its own place" if is_share else "without --share"
        raise click.UsageError(f"{', '.join(wrong)} can't be given {why}.")
    if "offsets" in given and wanted != "ndjson":
        raise click.UsageError(f"--offsets needs --format ndjson: {wanted} has the values alone.")


def first_offset(
    log: OffsetsLog, offset: int | str | None, since: int | None, last: int | None = None
) -> int:
    """Return the offset of the first record to read. At most one of `last`, `since` and `offset` is given. If
    `last` is given, return the log end offset minus `last`, but at least the log start offset. If `since` is
    given, return the offset of the first record at this time (ms) or later, or the log end offset if there is
    no such record. If `offset` is given, return it ("earliest" means the log start offset, "latest" the log
    end offset). If none is given, return the log start offset. Raises OffsetOutOfRangeError if `offset` is
    not in the log.
    """
    if last is not None:
        return max(log.start_offset, log.end_offset - last)
    if since is not None:
        at = log.offset_for_time(since)
        return log.end_offset if at is None else at
    if offset is None or offset == "earliest":
        return log.start_offset
    if isinstance(offset, str):
        return log.end_offset
    start, end = log.start_offset, log.end_offset
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(offset, start, end, f"{log.topic}-{log.partition}")
    return offset


def last_offset(log: OffsetsLog, offset: int | str | None, until: int | None) -> int:
    """Return the offset after the last record to read. If `until` is given, return the offset of the first
    record at this time (ms) or later, or the log end offset if there is no such record. If `offset` is given,
    return it ("earliest" means the log start offset, "latest" the log end offset). If neither is given,
    return the log end offset.
    """
    if until is not None:
        at = log.offset_for_time(until)
        return log.end_offset if at is None else at
    if isinstance(offset, int):
        return offset
    return log.start_offset if offset == "earliest" else log.end_offset


class Printer:
    """Prints at most `limit` records to standard output."""

    def __init__(self, form: Callable[[Batch, int], bytes], limit: int | None) -> None:
        self._form, self._left = form, limit

    def print_all(self, batches: Iterator[tuple[int, Batch]]) -> None:
        """Print the records of `batches`. Stop when the printer has printed `limit` records."""
        while self._left != 0:
            number, records = next(batches, (0, None))
            if records is None:
                return
            self._print(records, number)

    def _print(self, records: Batch, partition: int) -> None:
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        sys.stdout.buffer.write(self._form(records, partition))
        sys.stdout.buffer.flush()


# --- share groups ------------------------------------------------------------


class Printed(list["QueueRecord"]):
    """Records of a queue's partition, as a list that the functions in FORMATS accept."""

    @property
    def values(self) -> Sequence[bytes | None]:
        """Return the values of the records."""
        return [record.value for record in self]


def counted(records: Any, partition: int) -> bytes:
    """Return a line with a JSON object for each record. The object has the delivery count, too."""
    return lines({**row_of(each, partition), "delivery_count": each.delivery_count} for each in records)


def print_queue(
    queue: Queue, form: Callable[[Any, int], bytes], timeout_ms: int | None, most: int | None
) -> int:
    """Print records of a share group, and acknowledge them, until no record comes within the time-out or
    `most` records are printed. Return the number of printed records.
    """
    printed = 0
    while most != 0 and (records := queue.poll(timeout_ms, most)):
        for partition, group in groupby(records, lambda record: record.partition):
            sys.stdout.buffer.write(form(Printed(group), partition))
        sys.stdout.buffer.flush()
        queue.acknowledge()
        printed += len(records)
        most = None if most is None else most - len(records)
    return printed
