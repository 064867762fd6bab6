"""`Scan`: the records of a range of offsets. Some megabytes of them are read at a time.

On disk: only reads. Threads: any number may iterate over one scan, each from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing, OffsetOutOfRangeError
from segstore.records import Record, Records

if TYPE_CHECKING:
    import pyarrow

    from segstore.storage.log.reading import Reading

T = TypeVar("T")
AT_A_TIME = 1 << 20
"""Default bytes of a read; larger reads are not faster."""


class Edge(Enum):
    """The two ends of a log, which are the default bounds of a range.

    None is not allowed as a bound, because `offset_for_time` returns None if no record is at or after the
    given time. A caller who passes that None as a bound must not get the whole log.
    """

    EARLIEST = "earliest"
    LATEST = "latest"

    def __repr__(self) -> str:
        return self.name


EARLIEST, LATEST = Edge.EARLIEST, Edge.LATEST
_LEFT_OUT = {
    "start": "leave it out to begin where the log begins. If offset_for_time returned None, no record is that"
    " late: there is nothing to read. scan(from_time=...) takes the time itself",
    "end": "leave it out to end where the log ends, also if offset_for_time returned None: all records are"
    " earlier. scan(to_time=...) takes the time itself",
}


def given_edge(value: Any) -> Any:
    """Return the edge that a str or an Edge names. Return any other value unchanged."""
    return Edge(value) if isinstance(value, str) and value in ("earliest", "latest") else value


def given_bound(name: str, value: Any, first: int, last: int) -> int:
    """Return the offset for the argument `start` or `end`, of a log from `first` up to `last`. Raises
    InvalidArgumentError, and InvalidTypeError, which has a hint if `value` is None.
    """
    value = given_edge(value)
    if value is None:
        raise InvalidTypeError(f"{name}=None: must be an int, EARLIEST or LATEST; {_LEFT_OUT[name]}")
    if isinstance(value, str):
        raise InvalidTypeError(f'{name}={value!r}: must be an int, "earliest" or "latest", no other str')
    if isinstance(value, Edge):
        return first if value is EARLIEST else last
    return arguments.whole(name, value, None)


class Times(NamedTuple):
    """Time bounds of a range, ms since the epoch: from the first record at or after `start` up to the first
    record at or after `end`. A bound of None is no bound.
    """

    start: int | None = None
    end: int | None = None


def given_times(start: int | Edge, end: int | Edge, from_time: Any, to_time: Any) -> Times:
    """Return the time bounds for the arguments `from_time` and `to_time`. Raises InvalidTypeError, and
    InvalidArgumentError if an end of the range has both an offset and a time as bound, or if the range ends
    before its start.
    """
    for by_offset, is_given, by_time, time in (
        ("start", given_edge(start) is not EARLIEST, "from_time", from_time),
        ("end", given_edge(end) is not LATEST, "to_time", to_time),
    ):
        if is_given and time is not None:
            raise InvalidArgumentError(
                f"{by_time}={time!r}: {by_offset} is given too; only one of them may be"
            )
    since = None if from_time is None else arguments.moment("from_time", from_time)
    until = None if to_time is None else arguments.moment("to_time", to_time)
    if since is not None and until is not None and until < since:
        raise InvalidArgumentError(f"to_time={to_time!r}: must not be before from_time={from_time!r}")
    return Times(since, until)


class ScannedLog(Protocol):
    """The methods of `PartitionLog` that a scan needs."""

    topic: str
    partition: int

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""

    @property
    def end_offset(self) -> int:
        """Return the end of the log as readers see it."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, None if there is no such record."""

    def read(
        self, offset: int, max_bytes: int = ..., *, isolation_level: str = ..., check_crcs: bool = ...
    ) -> Records:
        """Return the records from `offset` on, about `max_bytes` of the log."""

    def with_reading(self, offset: int, committed: bool, use: Callable[[Reading], T]) -> T:
        """Call `use` with a `Reading` of the current view; return the result of `use`. Raises
        OffsetOutOfRangeError for an `offset` that readers can't read or wait for.
        """


def reads(log: ScannedLog, start: int, end: int, max_bytes: int = AT_A_TIME, **how: Any) -> Iterator[Records]:
    """Yield the records from `start` up to `end`, about `max_bytes` of the log at a time. If the log's
    present end, or its last stable offset, is below `end`, stop at that offset. `how` are options of
    `PartitionLog.read`, whose errors are raised.
    """
    while start < end:
        records = log.read(start, max_bytes, **how)
        if records.next_offset <= start:
            return
        start = records.next_offset
        yield records.take(records.offsets < end) if start > end else records


class Scan:
    """The result of `PartitionLog.scan`: an iterable of each Record from offset `start` up to `end`. Both
    offsets are fixed when `scan` is called. Memory stays at some megabytes for a range of any length.
    """

    def __init__(
        self, log: ScannedLog, start: int | Edge, end: int | Edge, times: Times, how: dict[str, Any]
    ) -> None:
        first, last = log.start_offset, log.end_offset
        start, end = given_edge(start), given_edge(end)

        def offset_at(time: int) -> int:
            offset = log.offset_for_time(time)
            return last if offset is None else min(offset, last)

        if times.start is not None:
            self.start = offset_at(times.start)
        else:
            self.start = given_bound("start", start, first, last)
            if not first <= self.start <= last:
                raise OffsetOutOfRangeError(self.start, first, last, f"{log.topic}-{log.partition}")
        bound = given_bound("end", end, first, last)
        if end is not LATEST and times.start is None and bound < self.start:
            raise InvalidArgumentError(f"end={bound}: must not be below the start, {self.start}")
        fixed = bound if times.end is None else offset_at(times.end)
        self.end = max(self.start, min(fixed, last))
        self._log, self._how = log, how
        self._from_start = start is EARLIEST and times.start is None

    def __repr__(self) -> str:
        return f"<Scan of {self._log.topic}-{self._log.partition}, offsets {self.start} to {self.end}>"

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.reads())

    def reads(self, max_bytes: int = AT_A_TIME) -> Iterator[Records]:
        """Yield Records, each of about `max_bytes` of the stored log, but of at least one batch. Raises the
        errors of `PartitionLog.read`, for example OffsetOutOfRangeError if retention has removed records of
        the range.
        """
        first = max(self.start, self._log.start_offset) if self._from_start else self.start
        return reads(self._log, first, self.end, max_bytes, **self._how)

    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """Return the whole range as one pyarrow.Table, with the columns of `Records.to_arrow`. Raises
        MissingPackageError without pyarrow, InvalidArgumentError for an unknown column.
        """
        with Needing("pyarrow", "to_arrow"):
            from segstore.records.arrow import table_of
        return table_of(self.reads(), columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with Needing("pyarrow", "__arrow_c_stream__"):
            from segstore.records.arrow import reader_of
        return reader_of(self.reads()).__arrow_c_stream__(requested_schema)
