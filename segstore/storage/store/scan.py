"""`Scan`: the records of a range of offsets, read some megabytes at a time.

On disk: only reads. Threads: a scan may be iterated by any number of them, each from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing, OffsetOutOfRangeError
from segstore.records import Record, Records

if TYPE_CHECKING:
    import pyarrow

AT_A_TIME = 1 << 20
"""Bytes of a read, by default: larger ones are not quicker."""


class Edge(Enum):
    """The default bounds of a range: where the log begins, and where it ends.

    None is no bound: `offset_for_time` returns it if no record is that late, and a caller who passes the
    answer on must not get the whole log.
    """

    EARLIEST = "earliest"
    LATEST = "latest"

    def __repr__(self) -> str:
        return self.name


EARLIEST, LATEST = Edge.EARLIEST, Edge.LATEST
_LEFT_OUT = {
    "start": "leave it out to begin where the log begins. If offset_for_time returned None, no record is that"
    " late: there is nothing to read",
    "end": "leave it out to end where the log ends, also if offset_for_time returned None: all records are"
    " earlier",
}


def given_bound(name: str, value: Any) -> int:
    """Return the offset that was given as `start` or `end`. Raises InvalidTypeError, with a hint for None;
    InvalidArgumentError.
    """
    if value is None:
        raise InvalidTypeError(f"{name}=None: must be an int; {_LEFT_OUT[name]}")
    return arguments.whole(name, value, None)


class Log(Protocol):
    """What a scan asks of a `PartitionLog`."""

    topic: str
    partition: int

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""

    @property
    def end_offset(self) -> int:
        """Return where readers' part of the log ends."""

    def read(
        self, offset: int, max_bytes: int = ..., *, isolation_level: str = ..., check_crcs: bool = ...
    ) -> Records:
        """See `PartitionLog.read`."""


def reads(log: Log, start: int, end: int, max_bytes: int = AT_A_TIME, **how: Any) -> Iterator[Records]:
    """Yield the records from `start` up to `end`, about `max_bytes` of the log at a time; `how` are options
    of `PartitionLog.read`, whose errors are raised. Where the log ends earlier, or is stable no further, so
    do the records.
    """
    while start < end:
        records = log.read(start, max_bytes, **how)
        if records.next_offset <= start:
            return
        start = records.next_offset
        yield records.take(records.offsets < end) if start > end else records


class Scan:
    """What `PartitionLog.scan` returns: iterating gives each Record from offset `start` up to `end`, which
    were settled when the scan was asked for. Memory stays at some megabytes, however long the range is.
    """

    def __init__(self, log: Log, start: int | Edge, end: int | Edge, how: dict[str, Any]) -> None:
        first, last = log.start_offset, log.end_offset
        self.start = first if start is EARLIEST else given_bound("start", start)
        asked = last if end is LATEST else given_bound("end", end)
        self.end = min(asked, last)
        if start is not EARLIEST and not first <= self.start <= last:
            raise OffsetOutOfRangeError(self.start, first, last, f"{log.topic}-{log.partition}")
        if end is not LATEST and asked < self.start:
            raise InvalidArgumentError(f"end={asked}: must not be below the start, {self.start}")
        self._log, self._from_start, self._how = log, start is EARLIEST, how

    def __repr__(self) -> str:
        return f"<Scan of {self._log.topic}-{self._log.partition}, offsets {self.start} to {self.end}>"

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.reads())

    def reads(self, max_bytes: int = AT_A_TIME) -> Iterator[Records]:
        """Yield Records, each of about `max_bytes` of the log as it is stored, at least one batch. Raises as
        `PartitionLog.read`: OffsetOutOfRangeError where retention has passed the scan meanwhile.
        """
        first = max(self.start, self._log.start_offset) if self._from_start else self.start
        return reads(self._log, first, self.end, max_bytes, **self._how)

    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """Return the whole range as one pyarrow.Table, with the columns of `Records.to_arrow`. Raises
        MissingPackageError without pyarrow, InvalidArgumentError for another column.
        """
        with Needing("pyarrow", "to_arrow"):
            from segstore.records.arrow import table_of
        return table_of(self.reads(), columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with Needing("pyarrow", "__arrow_c_stream__"):
            from segstore.records.arrow import reader_of
        return reader_of(self.reads()).__arrow_c_stream__(requested_schema)
