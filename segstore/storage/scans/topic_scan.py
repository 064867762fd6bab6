"""`TopicScan`: the records of a topic's partitions as columns. Some megabytes of them are read at a time.

On disk: only reads. Threads: any number may iterate over one scan, each from its beginning.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.choices import ISOLATION_LEVELS
from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing
from segstore.integers import INT64_MAX

from .bounds import ALL, INT64_MIN, Bounds
from .piece_reader import PieceReader
from .pieces import TopicRange
from .scan import Edge, Scan, ScannedLog, given_times, reads

if TYPE_CHECKING:
    from typing import TypeAlias

    import pyarrow

    from segstore.records import Records

    Finish: TypeAlias = Callable[[pyarrow.RecordBatch], pyarrow.RecordBatch]


class TopicRecord(NamedTuple):
    """One record of a topic: timestamp in ms since the epoch, timestamp_type 0 (CreateTime) or 1
    (LogAppendTime), key and value bytes or None, headers as pairs of str and (bytes or None).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


COLUMNS = TopicRecord._fields
"""The columns of a topic's table."""


@lru_cache(maxsize=64)
def _kind_of(columns: tuple[str, ...]) -> Any:
    """Return a record class with these columns as fields; a repeated column gets a name from its index
    (`_3`).
    """
    name = TopicRecord.__name__
    fields: Any = namedtuple(name, columns, rename=True)  # type: ignore[misc]
    reduce = {"__reduce__": lambda record: (_record, (columns, tuple(record)))}
    return type(name, (fields,), {"__slots__": (), "__module__": __name__, **reduce})


def _record(columns: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Return a record that has these values, for unpickling."""
    return _kind_of(columns)._make(values)


def given_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the argument `columns` as a tuple; None stays None. Raises InvalidTypeError, and
    InvalidArgumentError for an unknown column.
    """
    if columns is None:
        return None
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise InvalidTypeError(f"columns={columns!r}: must be a list of names")
    names = tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgumentError(f"column {name!r}: allowed are {', '.join(COLUMNS)}")
    return names


class TopicScan:
    """The result of `Store.scan`: an iterable of each `TopicRecord`, one partition after the other, between
    the start and end offsets that were fixed when `scan` was called. If `columns` is given, a record has only
    these fields. Memory stays at some megabytes for ranges of any length.
    """

    def __init__(
        self, topic: str, ranges: Sequence[TopicRange], columns: tuple[str, ...] | None, how: dict[str, Any]
    ) -> None:
        self.topic, self.ranges, self.columns, self._how = topic, tuple(ranges), columns, how

    def __repr__(self) -> str:
        shown = ", ".join(f"{each.log.partition}: {each.start} to {each.end}" for each in self.ranges)
        return f"<TopicScan of {self.topic}, offsets by partition {{{shown}}}>"

    def __iter__(self) -> Iterator[TopicRecord]:
        if self.columns is None:
            return self._records()
        kind, at = _kind_of(self.columns), [COLUMNS.index(name) for name in self.columns]
        return (kind._make([record[i] for i in at]) for record in self._records())

    def _records(self) -> Iterator[TopicRecord]:
        for partition, records in self.reads():
            kinds = records.timestamp_types.tolist()
            for record, kind in zip(records, kinds, strict=True):
                offset, timestamp, key, value, headers = record
                yield TopicRecord(self.topic, partition, offset, timestamp, kind, key, value, headers)

    def reads(self, bounds: Bounds = ALL) -> Iterator[tuple[int, Records]]:
        """Yield (partition, Records), about a megabyte of the stored log at a time."""
        for log, start, end in self._within(bounds):
            for records in reads(log, start, end, **self._how):
                yield log.partition, records

    def batches(
        self, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Finish | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield all records within `bounds`, and perhaps records outside of the bounds, as record batches of
        these columns (by default the scan's own), in order of partition and offset. `finish` is called with
        each batch, by any thread, and the result of `finish` is yielded in place of the batch.

        A few threads read pieces of 8 MiB of the logs (larger pieces if only headers are read). If the whole
        scan is smaller than one piece, the calling thread reads it. At most eight pieces are in memory,
        besides the batches that the caller keeps. A compressed piece takes at most 64 MiB and one batch. If
        only topic, partition, offset and timestamp_type are wanted, only headers of batches are read, except
        for batches with gaps and messages of magic 0 and 1, which are read whole.
        """
        with Needing("pyarrow", "a table"):
            from .columns import pooled, schema_of
            from .table_stream import batches_of
        schema = schema_of(self.columns if columns is None else given_columns(columns))
        times = None
        if (bounds.first_time, bounds.last_time) != (INT64_MIN, INT64_MAX):
            times = bounds.first_time, bounds.last_time
        committed = self._how["isolation_level"] != "read_uncommitted"
        reader = PieceReader(schema.names, committed, self._how["check_crcs"], times, pooled)
        yield from batches_of(self.topic, self._within(bounds), schema, reader, finish)

    def _within(self, bounds: Bounds) -> Iterator[TopicRange]:
        for log, start, end in self.ranges:
            if bounds.partitions is not None and log.partition not in bounds.partitions:
                continue
            first = start
            # The records before `earliest` are left out: all of them have earlier timestamps.
            if bounds.first_time > INT64_MIN:
                earliest = log.offset_for_time(bounds.first_time)
                first = end if earliest is None else max(start, earliest)
            yield TopicRange(log, max(first, bounds.first_offset), min(end, bounds.last_offset + 1))

    @property
    def schema(self) -> pyarrow.Schema:
        """Return the schema of the scan's table. Raises MissingPackageError without pyarrow."""
        with Needing("pyarrow", "schema"):
            from .columns import schema_of
        return schema_of(self.columns)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return all records as one pyarrow.Table of these columns, by default the scan's own. Raises
        MissingPackageError without pyarrow, InvalidArgumentError for an unknown column.
        """
        with Needing("pyarrow", "to_arrow"):
            import pyarrow

            from .columns import schema_of
        wanted = self.columns if columns is None else given_columns(columns)
        return pyarrow.Table.from_batches(self.batches(wanted), schema_of(wanted))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with Needing("pyarrow", "__arrow_c_stream__"):
            import pyarrow
        return pyarrow.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(
            requested_schema
        )


def scan_topic(
    logs: Callable[[Iterable[int] | None], Sequence[ScannedLog]],
    topic: str,
    partitions: Iterable[int] | None,
    start: int | Edge,
    end: int | Edge,
    from_time: int | datetime | None,
    to_time: int | datetime | None,
    columns: Sequence[str] | None,
    isolation_level: str,
    check_crcs: bool,
) -> TopicScan:
    """Return the scan for the arguments of `Store.scan`. `logs` returns the logs of the given partitions, or
    of all partitions if its argument is None.
    """
    how = {
        "isolation_level": arguments.one_of("isolation_level", isolation_level, ISOLATION_LEVELS),
        "check_crcs": arguments.switch("check_crcs", check_crcs),
    }
    wanted = given_columns(columns)
    times = given_times(start, end, from_time, to_time)
    if partitions is not None and (
        isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable)
    ):
        raise InvalidTypeError(f"partitions={partitions!r}: must be a list of ints")
    scans = [(log, Scan(log, start, end, times, how)) for log in logs(partitions)]
    return TopicScan(topic, [TopicRange(log, each.start, each.end) for log, each in scans], wanted, how)
