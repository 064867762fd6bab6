"""What one task of Spark reads: a slice of a partition, in a process of its own.

On disk: reads only, as every store opened with mode="r". Threads: one, a task's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from segstore.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.records import Records
from segstore.spark.columns import batches
from segstore.spark.filters import Bounds
from segstore.spark.lookup import open_store
from segstore.storage.store.partition_log import PartitionLog

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("segstore.spark")

FEW_ROWS = 16_384
"""Reads grow until they give so many: a batch costs Spark something besides its rows."""
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
    """How slices are read; it travels to the tasks."""

    path: str
    schema: pa.Schema
    isolation_level: str
    fail_on_data_loss: bool
    times: Bounds

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """CorruptRecordError, DataLossError, StorageError: the task fails with it."""
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
