"""`segstore consume`: prints records to standard output. On disk: only reads. Threads: one."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable

import rich_click as click

import segstore
from segstore.cli.options import open_reading, store_option, time_value
from segstore.config.arguments import ISOLATION_LEVELS
from segstore.records import Records
from segstore.storage.meta.topics import find_topic

# --- formats -----------------------------------------------------------------------------------

# These functions make the output of `consume`.


def ndjson(records: Records, partition: int) -> bytes:
    """Return a JSON object for each record, a line each, which `produce` can read. Bytes that are not UTF-8
    are base64, and a field says so.
    """
    lines = []
    for record in records:
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
        lines.append(json.dumps(row, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def values(records: Records, partition: int) -> bytes:
    """Return each value as a line; null is an empty line."""
    return b"".join(b"%b\n" % (value or b"") for value in records.values)


def raw(records: Records, partition: int) -> bytes:
    """Return the bytes of the values, with nothing between them."""
    return b"".join(value or b"" for value in records.values)


FORMATS: dict[str, Callable[[Records, int], bytes]] = {"ndjson": ndjson, "raw": raw, "values": values}


def as_text(data: bytes | None) -> tuple[str | None, str | None]:
    """Return (text, None) for UTF-8 and null, else (base64, "base64")."""
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

WAIT_MS = 1000
FETCH_BYTES = 1 << 20


def _offset(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value in ("earliest", "latest"):
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither an offset nor earliest or latest")
    return int(value)


@click.command()
@click.argument("topic")
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    multiple=True,
    help="Print only this partition; may be repeated.",
)
@click.option(
    "--offset",
    "-o",
    callback=_offset,
    metavar="N|earliest|latest",
    help="Offset to begin at, earliest or latest; by default earliest.",
)
@click.option(
    "--time",
    "-t",
    "since",
    callback=time_value,
    metavar="TIME",
    help="Begin at this time: ISO 8601 (UTC), or ms.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more records, until Ctrl-C.")
@click.option("--max-records", "-n", type=click.IntRange(0), help="End after so many records.")
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
@store_option
def consume(
    topic: str,
    partition: tuple[int, ...],
    offset: int | str | None,
    since: int | None,
    follow: bool,
    max_records: int | None,
    wanted: str,
    isolation_level: str,
    path: str,
) -> None:
    """Print the records of TOPIC, one partition after the other; with --follow, as they come.

    In NDJSON a key or value that is not UTF-8 is base64, and "key_encoding" or "value_encoding" says so.
    """
    if offset is not None and since is not None:
        raise click.UsageError("Begin at --offset or at --time, not both.")
    with open_reading(path) as store:
        ids = find_topic(store.topics(), topic).partition_ids
        logs = [store.partition(topic, number) for number in dict.fromkeys(partition or ids)]
        tails = [Tail(log, first_offset(log, offset, since), isolation_level) for log in logs]
        printer = Printer(FORMATS[wanted], max_records)
        _drain(tails, printer)
        while follow and not printer.done:
            seen = store.publications
            if not sum(tail.step(printer) for tail in tails):
                store.wait(seen, WAIT_MS)


def first_offset(log: segstore.PartitionLog, offset: int | str | None, since: int | None) -> int:
    """Return the offset at which reading begins: the log end offset where no record is as late as `since`.
    Raises OffsetOutOfRangeError.
    """
    if since is not None:
        found = log.offset_for_time(since)
        return log.end_offset if found is None else found
    if offset is None or offset == "earliest":
        return log.start_offset
    if isinstance(offset, str):
        return log.end_offset
    start, end = log.start_offset, log.end_offset
    if not start <= offset <= end:
        raise segstore.OffsetOutOfRangeError(offset, start, end, f"{log.topic}-{log.partition}")
    return offset


def _drain(tails: list[Tail], printer: Printer) -> None:
    """Print all records up to the present end of each partition."""
    for tail in tails:
        end = tail.log.end_offset
        while not printer.done and tail.step(printer, end):
            continue


class Printer:
    """Writes records to standard output, at most `limit` of them."""

    def __init__(self, form: Callable[[Records, int], bytes], limit: int | None) -> None:
        self._form, self._left = form, limit

    @property
    def done(self) -> bool:
        return self._left == 0

    def print(self, records: Records, partition: int) -> None:
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        sys.stdout.buffer.write(self._form(records, partition))
        sys.stdout.buffer.flush()


class Tail:
    """A partition, and the offset that is read next."""

    def __init__(self, log: segstore.PartitionLog, offset: int, isolation_level: str) -> None:
        self.log, self.offset, self._isolation_level = log, offset, isolation_level

    def step(self, printer: Printer, end: int | None = None) -> bool:
        """Print some records below offset `end`, and return whether there were any."""
        if printer.done or (end is not None and self.offset >= end):
            return False
        records = self.log.read(self.offset, FETCH_BYTES, isolation_level=self._isolation_level)
        self.offset = records.next_offset
        if end is not None and records.next_offset > end:
            records = records.take(records.offsets < end)
            self.offset = end
        if len(records):
            printer.print(records, self.log.partition)
        return len(records) > 0
