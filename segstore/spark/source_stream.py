"""A stream's reader: what is new since the last micro-batch, as much of it as the options admit.

On disk: reads only. Threads: one, in a process that PySpark keeps for the query. Offsets are {"topic":
{"partition": offset}}, the form of Spark's Kafka source, `end` exclusive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from segstore.coordinator.structs import TopicPartition
from segstore.errors import StoreClosedError, UnknownTopicOrPartitionError
from segstore.spark.columns import arrow_schema
from segstore.spark.lookup import Lookup
from segstore.spark.offsets import Offsets, from_json, names, to_json
from segstore.spark.options import SourceOptions, parse_options
from segstore.spark.plan import Range
from segstore.spark.slices import Slice
from segstore.spark.source import slice_reader, slices

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made twice for a query: one answers the methods below, the other travels to the tasks and reads."""

    def __init__(self, given: Mapping[str, str], columns: StructType) -> None:
        self._given, self._asked = given, columns
        self._available: Offsets | None = None
        self._triggered_at = float("-inf")

    # PySpark hides what the constructor raises: so all is made when it is first used.

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
        """Where a query without a checkpoint begins. ConfigError, DataLossError."""
        assert self.columns is not None
        begin = self.options.begin(streaming=True)
        return to_json(self._lookup.resolve(begin, self._lookup.partitions(), begin=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands it back to `latestOffset`, except where it wants all that there is."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that will be read."""
        self._available = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """How far the next micro-batch goes: `start` itself where it has to wait."""
        begin = from_json(start)
        latest = self._latest() if self._available is None else self._available
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        if self._has_to_wait(begin, latest):
            return to_json(begin)
        return to_json(self._admitted(begin, latest, limit) if isinstance(limit, ReadMaxRows) else latest)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """What there is, for the query's progress."""
        return to_json(self._latest())

    def _latest(self) -> Offsets:
        partitions = self._lookup.partitions(all_there=self.options.fail_on_data_loss)
        return self._lookup.latest(partitions)

    def _has_to_wait(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether there is less than minOffsetsPerTrigger, and maxTriggerDelay has not passed."""
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
        """DataLossError where something of it is gone, unless failOnDataLoss is false."""
        begins, ends = from_json(start), from_json(end)
        gone = sorted(begins.keys() - ends.keys())
        if gone:
            self._lookup.lost(f"{names(gone)} is gone: the topic was deleted")
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
        """Nothing to do: the checkpoint holds the offsets, and the log is kept by its topic's settings."""

    def stop(self) -> None:
        if "_lookup" in self.__dict__:
            self._lookup.close()


def rate_limited(begin: Offsets, latest: Offsets, most: int) -> Offsets:
    """Ends so that `most` offsets are read, shared among partitions in proportion to what they have; each
    gets at least one (KafkaMicroBatchStream.rateLimit).
    """
    sizes = {each: end - begin[each] for each, end in latest.items() if end > begin[each]}
    total = sum(sizes.values())
    ends = dict(latest)
    for each, size in sizes.items():
        ends[each] = min(latest[each], begin[each] + max(most * size // total, 1))
    return ends
