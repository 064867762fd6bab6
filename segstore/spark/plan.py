"""Plans a read: `divide` makes parts of ranges of offsets, `Lookup` asks the store what to read, and
`SliceReader` reads one part in a task.

On disk: only reads. Threads: one plans a query, one reads in each task; values can be used from any. The
number of parts is that of Spark's KafkaOffsetRangeCalculator; parts begin at the edges of record batches
where possible.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.records import Records
from segstore.spark.columns import batches
from segstore.spark.filters import Bounds
from segstore.spark.offsets import EARLIEST, LATEST, Offsets, OffsetSpec, names
from segstore.spark.options import SourceOptions
from segstore.storage.store import store as storage
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

Edge = Callable[["Range", int], int]
"""(range, offset) -> the base offset of the batch that has the offset."""


class Range(NamedTuple):
    """Offsets of a partition, `end` exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def divide(ranges: list[Range], least_parts: int | None, most_records: int | None, edge: Edge) -> list[Range]:
    """Return ranges that together are `ranges`: none of more than `most_records` offsets, about
    `least_parts` of them or more, without empty ones.
    """
    parts = [each for each in ranges if each.size]
    if most_records is not None:
        parts = [part for each in parts for part in _capped(each, most_records, edge)]
    if least_parts is not None and len(parts) < least_parts:
        parts = [part for each, n in _shares(parts, least_parts) for part in _evenly(each, n, edge)]
    return parts


def _capped(whole: Range, most: int, edge: Edge) -> Iterator[Range]:
    """Cut a range into parts of `most` offsets; a batch larger than that is cut within, because the number
    of records was asked for.
    """
    start = whole.start
    while whole.end - start > most:
        cut = edge(whole, start + most)
        cut = cut if cut > start else start + most
        yield whole._replace(start=start, end=cut)
        start = cut
    yield whole._replace(start=start)


def _evenly(whole: Range, n: int, edge: Edge) -> Iterator[Range]:
    start = whole.start
    for i in range(1, n):
        cut = edge(whole, whole.start + whole.size * i // n)
        if cut > start:
            yield whole._replace(start=start, end=cut)
            start = cut
    yield whole._replace(start=start)


def _shares(parts: list[Range], least: int) -> Iterator[tuple[Range, int]]:
    """Yield how many parts each range gets: small ranges stay whole, the others share the rest by size."""
    total = sum(each.size for each in parts)
    small = {each for each in parts if _count(each.size, total, least) == 1}
    total -= sum(each.size for each in small)
    left = max(least - len(small), 1)
    for each in parts:
        yield each, 1 if each in small else _count(each.size, total, left)


def _count(size: int, total: int, parts: int) -> int:
    return max(round(size / total * parts), 1) if total else 1


# --- lookup ------------------------------------------------------------------------------------

# A `Lookup` tells the driver which partitions a query reads, from which offsets, and up to which offsets.


def open_store(path: str) -> Store:
    """Open the store to read. Raises ConfigError where there is no directory."""
    try:
        return storage.open(path, "r")
    except StorageError as error:
        raise ConfigError(
            f"option path={path!r}: {error.strerror}: give the directory of a store, or of a broker's logs"
        ) from error


class Lookup:
    """Looks up in the store what one query reads. It is a context manager."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.store = open_store(options.path)

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    # --- partitions -----------------------------------------------------------------------

    def partitions(self, *, all_there: bool = True) -> list[TopicPartition]:
        """Return the partitions of the subscription, in order. Raises ConfigError where one does not exist,
        unless `all_there` is False: then the others are returned.
        """
        subscription, topics = self.options.subscription, self.store.topics()
        if subscription.pattern or subscription.option == "subscribePattern":
            match = re.compile(subscription.pattern).fullmatch
            wanted = [name for name, info in topics.items() if match(name) and not info.internal]
        else:
            wanted = list(subscription.topics or dict.fromkeys(topic for topic, _ in subscription.partitions))
        found = []
        for topic in wanted:
            if topic in topics and topics[topic].error is None:
                found += [TopicPartition(topic, number) for number in topics[topic].partition_ids]
            elif all_there:
                self._raise_unknown(topic, 0)
        if subscription.partitions:
            for each in set(subscription.partitions).difference(found) if all_there else ():
                self._raise_unknown(*each)
            found = [each for each in found if each in subscription.partitions]
        return sorted(found)

    def _raise_unknown(self, topic: str, partition: int) -> None:
        option = self.options.subscription.option
        try:
            self.store.partition(topic, partition)
        except UnknownTopicOrPartitionError as error:
            raise ConfigError(f"option {option}: {error} (path={self.options.path!r})") from error

    def log(self, partition: TopicPartition) -> PartitionLog:
        """Return the partition's log. Raises UnknownTopicOrPartitionError, StoreClosedError."""
        return self.store.partition(*partition)

    # --- offsets --------------------------------------------------------------------------

    def earliest(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the log start offsets."""
        return {each: self.log(each).start_offset for each in partitions}

    def latest(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the present end offsets of those partitions that still exist."""
        found = {}
        for each in partitions:
            try:
                found[each] = self.end_of(each)
            except (UnknownTopicOrPartitionError, StoreClosedError):
                log.debug("%s was deleted meanwhile", each)
        return found

    def end_of(self, partition: TopicPartition) -> int:
        """Return the end of the records that are visible at the isolation level."""
        at = self.log(partition)
        return at.end_offset if self.options.isolation_level == "read_uncommitted" else at.last_stable_offset

    def resolve(self, spec: OffsetSpec, partitions: list[TopicPartition], *, begin: bool) -> Offsets:
        """Return the offsets that an option stands for; offsets that it names are checked against the logs.

        Raises ConfigError, DataLossError.
        """
        numbers = spec.of(partitions)
        if spec.times:
            return {each: self._at_time(spec, each, numbers[each], begin) for each in partitions}
        found = {}
        for each in partitions:
            number = numbers[each]
            if number == EARLIEST:
                found[each] = self.log(each).start_offset
            elif number == LATEST:
                found[each] = self.end_of(each)
            else:
                found[each] = self._within(spec.option, each, number)
        return found

    def _at_time(self, spec: OffsetSpec, partition: TopicPartition, time: int, begin: bool) -> int:
        end = self.end_of(partition)
        offset = self.log(partition).offset_for_time(time)
        if offset is None and begin and not self.options.or_latest:
            raise ConfigError(
                f"option {spec.option}: {names([partition])} has no record stamped {time} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end then"
            )
        return end if offset is None else min(offset, end)

    def _within(self, option: str, partition: TopicPartition, offset: int) -> int:
        """Return an offset that a user gave, moved to the nearest in the log where data loss is allowed."""
        at = self.log(partition)
        first, end = at.start_offset, at.end_offset
        if not first <= offset <= end:
            self.lost(
                f"option {option}: offset {offset} of {names([partition])} is not there: "
                f"offsets {first} to {end} are; give one of those, or -2 for earliest"
            )
        return min(max(offset, first), self.end_of(partition))

    def lost(self, what: str) -> None:
        """Raise DataLossError, or log a warning where failOnDataLoss is false."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}. With option failOnDataLoss=false what is left is read")
        log.warning("%s; failOnDataLoss=false: what is left is read", what)


# --- slices ------------------------------------------------------------------------------------

# One task of Spark reads a slice of a partition, in a process of its own.

log = logging.getLogger("segstore.spark")

FEW_ROWS = 16_384
"""Reads grow until they return this many rows, since each batch costs Spark something beside its rows."""
FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 24


@dataclass
class Slice(InputPartition):
    """Offsets of a partition, `end` exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class SliceReader:
    """Reads slices; the object is pickled and sent to the tasks."""

    path: str
    schema: pa.Schema
    isolation_level: str
    fail_on_data_loss: bool
    times: Bounds

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows. Raises CorruptRecordError, DataLossError, StorageError, with which the
        task fails.
        """
        with open_store(self.path) as store:
            try:
                at = store.partition(part.topic, part.partition)
                for records in self._records(at, part):
                    yield from batches(part.topic, part.partition, records, self.schema)
            except (UnknownTopicOrPartitionError, StoreClosedError) as error:
                self._lost(f"{part.topic}-{part.partition}: {error}")

    @property
    def _span(self) -> tuple[int, int] | None:
        return (self.times.low, self.times.high - 1) if self.times.limited else None

    def _records(self, at: PartitionLog, part: Slice) -> Iterator[Records]:
        offset, size = part.start, FIRST_BYTES
        if self.times.limited and self.times.low >= self.times.high:
            return  # no record can be wanted
        while offset < part.end:
            try:
                records = at.read(offset, size, isolation_level=self.isolation_level, times=self._span)
            except OffsetOutOfRangeError as error:
                self._lost(str(error))
                if error.start <= offset:
                    return
                offset = error.start
                continue
            if records.next_offset <= offset:
                self._lost(f"{part.topic}-{part.partition} ends at offset {offset}, not at {part.end}")
                return
            looked_at = records.next_offset - offset if self.times.limited else len(records)
            offset = records.next_offset
            # Reads begin small, so that a small slice does not cost a large read.
            size = min(2 * size, MOST_BYTES) if looked_at < FEW_ROWS else size
            yield from self._wanted(records, part.end)

    def _wanted(self, records: Records, end: int) -> Iterator[Records]:
        if records.next_offset > end:
            records = records[: int(records.offsets.searchsorted(end))]
        if len(records):
            yield records

    def _lost(self, what: str) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{what}: it was there when the query was planned, and was removed since, by retention or a "
                "delete. With option failOnDataLoss=false what is left is read"
            )
        log.warning("%s; failOnDataLoss=false: what is left is read", what)
