"""`segstore consume`: prints records to standard output. On disk: only reads. Threads: one."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from segstore.choices import ISOLATION_LEVELS
from segstore.cli.completion import topic_names
from segstore.cli.options import time_value
from segstore.cli.place_option import place_option
from segstore.cli.places.place import Batch, Where
from segstore.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from segstore.coordinator.group.admin import Log

# --- formats -----------------------------------------------------------------------------------

# These functions make the output of `consume`.


def ndjson(records: Batch, partition: int) -> bytes:
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


def values(records: Batch, partition: int) -> bytes:
    """Return each value as a line; null is an empty line."""
    return b"".join(b"%b\n" % (value or b"") for value in records.values)


def raw(records: Batch, partition: int) -> bytes:
    """Return the bytes of the values, with nothing between them."""
    return b"".join(value or b"" for value in records.values)


FORMATS: dict[str, Callable[[Batch, int], bytes]] = {"ndjson": ndjson, "raw": raw, "values": values}


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


def _offset(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value in ("earliest", "latest"):
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither an offset nor earliest or latest")
    return int(value)


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    multiple=True,
    help="Print only this partition; may be repeated.",
)
@click.option(
    "--from-offset",
    "--offset",
    "-o",
    "offset",
    callback=_offset,
    metavar="N|earliest|latest",
    help="Offset to begin at, earliest or latest; by default earliest.",
)
@click.option(
    "--from-time",
    "--time",
    "-t",
    "since",
    callback=time_value,
    metavar="TIME",
    help="Begin at this time: ISO 8601 (UTC), or ms.",
)
@click.option(
    "--last", "-l", type=click.IntRange(0), metavar="N", help="Begin N offsets before each partition's end."
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more records, until Ctrl-C.")
@click.option("--max-records", "-n", type=click.IntRange(0), help="End after this many records.")
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
@place_option
def consume(
    topic: str,
    partition: tuple[int, ...],
    offset: int | str | None,
    since: int | None,
    last: int | None,
    follow: bool,
    max_records: int | None,
    wanted: str,
    isolation_level: str,
    where: Where,
) -> None:
    """Print the records of TOPIC, one partition after the other; with --follow, as they come.

    In NDJSON a key or value that is not UTF-8 is base64, and "key_encoding" or "value_encoding" says so.
    """
    from segstore.storage.meta.topics import find_topic

    if [offset, since, last].count(None) < 2:
        raise click.UsageError("Give only one of --from-offset, --from-time and --last.")
    printer = Printer(FORMATS[wanted], max_records)
    with where.reading() as place:
        numbers = tuple(dict.fromkeys(partition or find_topic(place.topics(), topic).partition_ids))
        with place.reading(topic, numbers, isolation_level) as reading:
            for number, log in reading.logs.items():
                reading.seek(number, first_offset(log, offset, since, last))
            printer.print_all(reading.drain())
            if follow:
                printer.print_all(reading.follow())


def first_offset(log: Log, offset: int | str | None, since: int | None, last: int | None = None) -> int:
    """Return the offset at which reading begins: the log end offset where no record is as late as `since`;
    `last` offsets before that end, where there are so many. Raises OffsetOutOfRangeError.
    """
    if last is not None:
        return max(log.start_offset, log.end_offset - last)
    if since is not None:
        found = log.offset_for_time(since)
        return log.end_offset if found is None else found
    if offset is None or offset == "earliest":
        return log.start_offset
    if isinstance(offset, str):
        return log.end_offset
    start, end = log.start_offset, log.end_offset
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(offset, start, end, f"{log.topic}-{log.partition}")
    return offset


class Printer:
    """Writes records to standard output, at most `limit` of them."""

    def __init__(self, form: Callable[[Batch, int], bytes], limit: int | None) -> None:
        self._form, self._left = form, limit

    def print_all(self, batches: Iterator[tuple[int, Batch]]) -> None:
        """Print records of partitions, until there are no more or enough are printed."""
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
