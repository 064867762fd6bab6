"""The source "segstore" with PySpark's interfaces: a schema, a reader of a batch, and a reader of a stream.

On disk: only reads. Threads: PySpark makes each object in the process that plans, and sends it to the
tasks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from segstore.coordinator.structs import TopicPartition
from segstore.errors import CorruptRecordError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.spark.columns import arrow_schema, ddl
from segstore.spark.filters import Bounds, Pushed, push
from segstore.spark.offsets import Offsets, from_json, names, to_json
from segstore.spark.options import SourceOptions, parse_options
from segstore.spark.plan import Lookup, Range, Slice, SliceReader, divide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCANS_APART = hasattr(DataSourceReader, "pushLimit")
"""True if each scan of a DataFrame has its own plan. In PySpark 4.3 all scans share one: after `df.where(a)`
a plain `df.count()` would count only the rows that pass `a`, and so would the other side of a self-join.
"""
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def schema(given: Mapping[str, str]) -> str:
    """Return the columns of Spark's Kafka source. Raises ConfigError: the options are checked here first."""
    options = parse_options(given)
    with Lookup(options) as lookup:
        lookup.partitions()
    return ddl(options.include_headers)


def reader(given: Mapping[str, str], columns: StructType) -> DataSourceReader:
    """Return a reader of a batch query. Raises ConfigError."""
    options = parse_options(given)
    wanted = SCANS_APART if options.filter_pushdown is None else options.filter_pushdown
    # PySpark refuses a reader that could take filters where its setting is off, which only its worker knows.
    kind = FilteringReader if wanted and _PUSHDOWN_WORKER in sys.modules else BatchReader
    return kind(options, arrow_schema(columns))


def stream_reader(given: Mapping[str, str], columns: StructType) -> DataSourceStreamReader:
    """Return a reader of a streaming query; its first method that is called raises what is wrong."""

    return StreamReader(dict(given.items()), columns)


class BatchReader(DataSourceReader):
    """Reads a batch; the ends of all partitions are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self.pushed = Pushed()
        options.begin(streaming=False)
        options.end()

    def partitions(self) -> list[InputPartition]:
        """Return the slices of the query. Raises ConfigError, DataLossError."""
        with Lookup(self.options) as lookup:
            return list(slices(lookup, self._ranges(lookup)))

    def _ranges(self, lookup: Lookup) -> list[Range]:
        every = lookup.partitions()
        begins = lookup.resolve(self.options.begin(streaming=False), every, begin=True)
        ends = lookup.resolve(self.options.end(), every, begin=False)
        wanted = [each for each in every if self.pushed.wants(*each)]
        return [_narrowed(lookup, self.pushed, Range(each, begins[each], ends[each])) for each in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, PySpark makes a partition of its own.
        if not isinstance(partition, Slice):
            return iter(())
        return slice_reader(self.options, self.columns, self.pushed.times).read(partition)


class FilteringReader(BatchReader):
    """A BatchReader that takes filters, before any other method is called."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pushed, left = push(filters)
        return left


def slice_reader(options: SourceOptions, columns: pa.Schema, times: Bounds | None = None) -> SliceReader:
    """Return how the tasks of a query read."""
    level, fail = options.isolation_level, options.fail_on_data_loss
    return SliceReader(options.path, columns, level, fail, times or Bounds())


def slices(lookup: Lookup, ranges: list[Range]) -> Iterator[Slice]:
    """Yield the tasks of a query, as many as its options want."""
    options = lookup.options

    def edge(whole: Range, offset: int) -> int:
        return batch_edge(lookup, whole.partition, offset)

    for part in divide(ranges, options.min_partitions, options.max_records_per_partition, edge):
        yield Slice(*part.partition, part.start, part.end)


def batch_edge(lookup: Lookup, partition: TopicPartition, offset: int) -> int:
    """Return the base offset of the batch that has an offset; the offset itself where no batch has it."""
    try:
        headers = lookup.log(partition).read(offset, 0, check_crcs=False).batches
    except CorruptRecordError:
        return offset  # the task that reads this batch reports it
    return min(int(headers["base_offset"][0]), offset) if len(headers) else offset


def _narrowed(lookup: Lookup, pushed: Pushed, whole: Range) -> Range:
    """Return what filters on offset and time leave of a range: no record before the first one that is late
    enough passes, but any later one may be too early.
    """
    start, end = max(whole.start, pushed.offsets.low), min(whole.end, pushed.offsets.high)
    if start < end and pushed.times.limited:
        if pushed.times.low >= pushed.times.high:
            return whole._replace(end=whole.start)
        late = lookup.log(whole.partition).offset_for_time(pushed.times.low)
        start = end if late is None else max(start, late)
    return whole._replace(start=start, end=max(start, end))


# --- source stream -----------------------------------------------------------------------------

# A `StreamReader` reads the records that are new since the last micro-batch, as many as the options admit.
#
# Threads: one, in a process that PySpark keeps for the query. Offsets are {"topic": {"partition": offset}},
# the form of Spark's Kafka source, `end` exclusive.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. PySpark makes two of these objects for a query: one answers the methods below, the
    other one is sent to the tasks and reads.
    """

    def __init__(self, given: Mapping[str, str], columns: StructType) -> None:
        self._given, self._asked = given, columns
        self._available: Offsets | None = None
        self._triggered_at = float("-inf")

    # PySpark hides the exceptions of the constructor, so everything is made when it is first used.

    @cached_property
    def options(self) -> SourceOptions:
        options = parse_options(self._given)
        options.check_stream()
        return options

    @cached_property
    def columns(self) -> pa.Schema:
        return arrow_schema(self._asked)

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.options)

    # --- offsets --------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Return where a query without a checkpoint begins. Raises ConfigError, DataLossError."""
        assert self.columns is not None
        begin = self.options.begin(streaming=True)
        return to_json(self._lookup.resolve(begin, self._lookup.partitions(), begin=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark hands back to `latestOffset`, except where it wants all that there
        is.
        """
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: only what is in the log now will be read."""
        self._available = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Return how far the next micro-batch goes: `start` itself where it has to wait."""
        begin = from_json(start)
        latest = self._latest() if self._available is None else self._available
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        if self._has_to_wait(begin, latest):
            return to_json(begin)
        return to_json(self._admitted(begin, latest, limit) if isinstance(limit, ReadMaxRows) else latest)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """Return the end of the logs, for the query's progress."""
        return to_json(self._latest())

    def _latest(self) -> Offsets:
        partitions = self._lookup.partitions(all_there=self.options.fail_on_data_loss)
        return self._lookup.latest(partitions)

    def _has_to_wait(self, begin: Offsets, latest: Offsets) -> bool:
        """Return whether there is less than minOffsetsPerTrigger, and maxTriggerDelay has not passed."""
        least, now = self.options.min_offsets_per_trigger, time.monotonic()
        if least is None or self._available is not None:
            return False
        new = sum(end - begin.get(each, 0) for each, end in latest.items())
        if new < least and (now - self._triggered_at) * 1000 < self.options.max_trigger_delay_ms:
            return True
        self._triggered_at = now
        return False

    def _admitted(self, begin: Offsets, latest: Offsets, limit: ReadMaxRows) -> Offsets:
        new = self._lookup.earliest([each for each in latest if each not in begin])
        return rate_limited({**new, **begin}, latest, limit.max_rows)

    # --- micro-batches --------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a micro-batch. Raises DataLossError where some of the records were deleted,
        unless failOnDataLoss is false.
        """
        begins, ends = from_json(start), from_json(end)
        missing = sorted(begins.keys() - ends.keys())
        if missing:
            self._lookup.lost(f"{names(missing)} is gone: the topic was deleted")
        ranges = [self._range(each, begins.get(each), ends[each]) for each in sorted(ends)]
        return list(slices(self._lookup, [each for each in ranges if each is not None]))

    def _range(self, partition: TopicPartition, start: int | None, end: int) -> Range | None:
        lookup, name = self._lookup, names([partition])
        try:
            at = lookup.log(partition)
            first, last = at.start_offset, at.end_offset
        except (UnknownTopicOrPartitionError, StoreClosedError) as error:
            lookup.lost(f"{name} is gone: {error}")
            return None
        if start is None:
            start = 0  # a new partition is read from its first record
        if end < start:
            lookup.lost(f"{name}: its offset went from {start} back to {end}, as if the topic was made anew")
        elif start < end and (start < first or last < end):
            lookup.lost(f"{name}: offsets {start} to {end} were to be read, and {first} to {last} are there")
        return Range(partition, max(start, first), min(end, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):
            return iter(())
        return slice_reader(self.options, self.columns).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, since the checkpoint has the offsets, and the topic's settings decide on retention."""

    def stop(self) -> None:
        if "_lookup" in self.__dict__:
            self._lookup.close()


def rate_limited(begin: Offsets, latest: Offsets, most: int) -> Offsets:
    """Return ends so that `most` offsets are read, shared among partitions in proportion to their records;
    each gets at least one (KafkaMicroBatchStream.rateLimit).
    """
    sizes = {each: end - begin[each] for each, end in latest.items() if end > begin[each]}
    total = sum(sizes.values())
    ends = dict(latest)
    for each, size in sizes.items():
        ends[each] = min(latest[each], begin[each] + max(most * size // total, 1))
    return ends
