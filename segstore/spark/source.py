"""The source "segstore", with PySpark's interfaces: a schema, a reader for batch queries, and a reader for
streaming queries.

On disk: only reads. Threads: PySpark creates each object in the process of the planner, and sends it to the
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

from segstore.replication.observed_log import OffsetAndEpoch
from segstore.spark.columns import arrow_schema, ddl
from segstore.spark.filters import NumberRange, Pushed, push
from segstore.spark.micro_batch import range_of
from segstore.spark.offsets import Offsets, epochs_from_json, from_json, names, to_json
from segstore.spark.options import SourceOptions, parse_options, settled_path
from segstore.spark.plan import Lookup, PlannedRange, Positions, divide
from segstore.spark.slices import OffsetSlice, SliceReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCANS_APART = hasattr(DataSourceReader, "pushLimit")
"""True if each scan of a DataFrame has its own plan. In PySpark 4.3 all scans share one plan, so filters must
not be pushed down: after `df.where(a)`, `df.count()` would count only the rows that pass `a`.
"""
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def schema(given: Mapping[str, str]) -> str:
    """Return the columns of Spark's Kafka source as DDL text. Spark calls this function before all others, so
    it checks the options. Raises ConfigError.
    """
    options = parse_options(given)
    with Lookup(options) as lookup:
        lookup.partitions()
    return ddl(options.include_headers)


def reader(given: Mapping[str, str], columns: StructType) -> DataSourceReader:
    """Return a reader for a batch query. Raises ConfigError."""
    options = parse_options(given)
    wanted = SCANS_APART if options.filter_pushdown is None else options.filter_pushdown
    # If PySpark's setting for the pushdown of filters is off, PySpark refuses a reader with `pushFilters`. If
    # the setting is on, this code runs in PySpark's worker for pushdown, whose module is then loaded.
    kind = FilteringReader if wanted and _PUSHDOWN_WORKER in sys.modules else BatchReader
    return kind(options, arrow_schema(columns))


def stream_reader(given: Mapping[str, str], columns: StructType) -> DataSourceStreamReader:
    """Return a reader for a streaming query. If an option is wrong, the reader's first method that is called
    raises ConfigError.
    """

    return StreamReader(settled_path(given), columns)


class BatchReader(DataSourceReader):
    """Reads the records of a batch query, up to the ends that partitions have when the query is planned."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self.pushed = Pushed()
        options.begin(streaming=False)
        options.end()

    def partitions(self) -> list[InputPartition]:
        """Plan the query, and return its slices. Raises ConfigError, DataLossError."""
        with Lookup(self.options) as lookup:
            return list(slices(lookup, self._ranges(lookup)))

    def _ranges(self, lookup: Lookup) -> list[PlannedRange]:
        every = lookup.partitions()
        begins = lookup.resolve(self.options.begin(streaming=False), every, begin=True)
        ends = lookup.resolve(self.options.end(), every, begin=False)
        wanted = [each for each in every if self.pushed.wants(*each)]
        return [
            _narrowed(lookup, self.pushed, PlannedRange(each, begins[each], ends[each])) for each in wanted
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If `partitions` returns no slice, PySpark calls this with a partition that it has made itself.
        if not isinstance(partition, OffsetSlice):
            return iter(())
        return slice_reader(self.options, self.columns, self.pushed.times).read(partition)


class FilteringReader(BatchReader):
    """A BatchReader that evaluates filters. Spark calls `pushFilters` before any other method."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pushed, left = push(filters)
        return left


def slice_reader(options: SourceOptions, columns: pa.Schema, times: NumberRange | None = None) -> SliceReader:
    """Return the reader for the tasks of a query."""
    level, fail = options.isolation_level, options.fail_on_data_loss
    return SliceReader(options.path, columns, level, fail, times or NumberRange(), options.archive)


def slices(
    lookup: Lookup, ranges: list[PlannedRange], known: Positions | None = None
) -> Iterator[OffsetSlice]:
    """Divide ranges into slices, as many as the options require, and yield the slices. `known` has the leader
    epochs of some ends of ranges; those of all other ends are read from the logs.
    """
    options = lookup.options

    def edge(whole: PlannedRange, offset: int) -> int:
        return lookup.logs.edge(whole.partition, offset)

    places = {each.partition: lookup.logs.places(each.partition) for each in ranges if each.size}
    ends = {each.partition: each.end for each in ranges if places.get(each.partition)}
    until = lookup.positions(ends, known or {})
    for part in divide(ranges, options.min_partitions, options.max_records_per_partition, edge):
        at = part.partition
        for source in lookup.sources(part):
            yield OffsetSlice(*at, source.start, source.end, until.get(at), places[at], source.archived)


def _narrowed(lookup: Lookup, pushed: Pushed, whole: PlannedRange) -> PlannedRange:
    """Return the part of a range in which records can pass the filters on offset and timestamp."""
    start, end = max(whole.start, pushed.offsets.low), min(whole.end, pushed.offsets.high)
    if start < end and pushed.times.limited:
        if pushed.times.low >= pushed.times.high:
            return whole._replace(end=whole.start)
        # The filters on time only change the start. They can't change the end, because timestamps need not
        # rise: after a record that is too late there may be a record that passes.
        late = lookup.logs.ask(whole.partition, lambda log: log.offset_for_time(pushed.times.low))
        start = end if late is None else max(start, late)
    return whole._replace(start=start, end=max(start, end))


# --- source stream -----------------------------------------------------------------------------

# A `StreamReader` reads the records that were appended after the last micro-batch, within the limits of the
# options.
#
# Threads: one, in a process that PySpark keeps for the query. Offsets are passed as
# {"topic": {"partition": offset}}, as in Spark's Kafka source. A micro-batch ends before its end offsets.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of a streaming query. PySpark creates two objects for a query. It sends one to the
    tasks, which call `read`, and calls the other methods of the other object.
    """

    def __init__(self, given: Mapping[str, str], columns: StructType) -> None:
        self._given, self._asked_schema = given, columns
        self._available: Positions | None = None
        self._triggered_at = float("-inf")

    # PySpark does not show the exceptions of the constructor. So options, columns and the lookup are created
    # when they are first used.

    @cached_property
    def options(self) -> SourceOptions:
        options = parse_options(self._given)
        options.check_stream()
        return options

    @cached_property
    def columns(self) -> pa.Schema:
        return arrow_schema(self._asked_schema)

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.options)

    # --- offsets --------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, Any]]:
        """Return the begin offsets of a query without a checkpoint. Raises ConfigError, DataLossError."""
        assert self.columns is not None
        begin, available = self.options.begin(streaming=True), self._available
        every = self._lookup.partitions()
        # Spark calls this after `prepareForTriggerAvailableNow`. A partition that was added between the two
        # calls has no fixed end, and is omitted.
        partitions = [each for each in every if available is None or each in available]
        found = self._lookup.positions(self._lookup.resolve(begin, partitions, begin=True))
        self._end_no_earlier(found)
        return _to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`, unless the trigger reads all available
        records.
        """
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Store the present partitions and their ends, because the query reads only the records that are in
        the logs now.
        """
        self._available = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, Any]]:
        """Return the end offsets of the next micro-batch; `start` if the micro-batch must wait for more
        records.
        """
        begin = _from_json(start)
        latest = self._latest(begin) if self._available is None else self._still(self._available, begin)
        if not isinstance(limit, ReadAllAvailable) and self._has_to_wait(begin, latest):
            return _to_json(begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _to_json(self._admitted(begin, latest, most))

    def reportLatestOffset(self) -> dict[str, dict[str, Any]]:
        """Return the present ends of the logs, which Spark shows in the query's progress."""
        return to_json({each: at.offset for each, at in self._latest().items()})

    def _latest(self, begin: Positions | None = None) -> Positions:
        self._lookup.logs.refresh()
        partitions = self._lookup.partitions(all_there=self.options.fail_on_data_loss)
        return self._lookup.latest(partitions, begin)

    def _still(self, available: Positions, begin: Positions) -> Positions:
        """Return the fixed ends. If some of them are below `begin`, first find these ends again."""
        # A fixed end is below `begin` if a new leader did not yet show all its records when the end was
        # found.
        early = [at for at in begin if at in available and available[at].offset < begin[at].offset]
        self._available = {**available, **self._lookup.latest(early, begin)} if early else available
        return self._available

    def _end_no_earlier(self, begin: Positions) -> None:
        """Set each fixed end that is below `begin` to `begin`: the records below `begin` were appended after
        the ends were fixed.
        """
        available = self._available or {}
        early = [each for each in begin if each in available and available[each].offset < begin[each].offset]
        available |= {each: begin[each] for each in early}

    def _has_to_wait(self, begin: Positions, latest: Positions) -> bool:
        """Return whether the next micro-batch must wait: there are fewer records than minOffsetsPerTrigger,
        and maxTriggerDelay has not passed.
        """
        least, now = self.options.min_offsets_per_trigger, time.monotonic()
        if least is None or self._available is not None:
            return False
        began, new = self._present(begin, latest), 0
        for each, end in latest.items():
            if each in begin and end.offset < begin[each].offset:
                return False  # The log was truncated. `partitions` will report the loss.
            new += max(end.offset - began[each], 0)
        if new < least and (now - self._triggered_at) * 1000 < self.options.max_trigger_delay_ms:
            return True
        self._triggered_at = now
        return False

    def _present(self, begin: Positions, latest: Positions) -> Offsets:
        """Return, for each partition, the first offset from `begin` on that can still be read. Deleted
        offsets must not count when a limit of offsets is applied.
        """
        begins = {each: begin[each].offset if each in begin else 0 for each in latest}
        return begins | {
            each: max(start, begins[each]) for each, start in self._lookup.earliest(list(latest)).items()
        }

    def _admitted(self, begin: Positions, latest: Positions, most: int | None) -> Positions:
        ends = {each: at.offset for each, at in latest.items()}
        if most is not None:
            ends = rate_limited(self._present(begin, latest), ends, most)
        # If only the leader epoch of an end changed, Spark would run a micro-batch without records. So an end
        # with an unchanged offset and an unknown leader epoch stays as it is.
        still = {
            each: begin[each]
            for each, end in ends.items()
            if each in begin and begin[each].offset == end and min(begin[each].epoch, latest[each].epoch) < 0
        }
        moved = {each: end for each, end in ends.items() if each not in still}
        return {**self._lookup.positions(moved, latest, begin), **still}

    # --- micro-batches --------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a micro-batch. If some of its records were deleted, or lost in an election,
        raises DataLossError, unless failOnDataLoss is false.
        """
        begins, ends = _from_json(start), _from_json(end)
        missing = sorted(begins.keys() - ends.keys())
        self._lookup.logs.refresh()
        if missing:
            self._lookup.lost(f"{names(missing)} is gone: the topic was deleted")
        found = [range_of(self._lookup, each, begins.get(each), ends[each]) for each in sorted(ends)]
        known = {it.partition: at for it, at in filter(None, found) if at is not None}
        return list(slices(self._lookup, [it for it, _ in filter(None, found)], known))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OffsetSlice):
            return iter(())
        return slice_reader(self.options, self.columns).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark's checkpoint has the offsets, and a read does not delete records."""

    def stop(self) -> None:
        if "_lookup" in self.__dict__:
            self._lookup.close()


def _to_json(positions: Positions) -> dict[str, dict[str, Any]]:
    known = {each: at.epoch for each, at in positions.items() if at.epoch >= 0}
    return to_json({each: at.offset for each, at in positions.items()}, known)


def _from_json(parsed: dict[str, Any]) -> Positions:
    epochs = epochs_from_json(parsed)
    return {each: OffsetAndEpoch(at, epochs.get(each, -1)) for each, at in from_json(parsed).items()}


def rate_limited(begin: Offsets, latest: Offsets, most: int) -> Offsets:
    """Return ends with which about `most` offsets are read. These are divided among the partitions in
    proportion to their numbers of new offsets; but of each partition with new offsets at least one is read
    (KafkaMicroBatchStream.rateLimit).
    """
    sizes = {each: end - begin[each] for each, end in latest.items() if end > begin[each]}
    total = sum(sizes.values())
    ends = dict(latest)
    for each, size in sizes.items():
        ends[each] = min(latest[each], begin[each] + max(most * size // total, 1))
    return ends
