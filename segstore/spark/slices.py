"""`SliceReader`: reads a slice, which is a range of offsets of a partition, in a Spark task. The task runs in
a process of its own.

On disk: only reads. Threads: one in each task; a `SliceReader` is immutable, and is pickled and sent to the
tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from segstore.errors import DataLossError, OffsetOutOfRangeError, ReplicaOfflineError
from segstore.records import Records
from segstore.replication.observed_log import GONE, UNREADABLE, ObservedLog, OffsetAndEpoch
from segstore.spark.columns import batches
from segstore.spark.filters import NumberRange
from segstore.spark.logs import await_shown, open_store
from segstore.storage.store import store as storage

if TYPE_CHECKING:
    import pyarrow as pa

    from segstore.archiving.log_contents import LogContents
    from segstore.spark.archive_place import ArchivePlace

log = logging.getLogger("segstore.spark")

FEW_ROWS = 16_384
"""The size of reads is doubled until a read returns this many rows, because each batch takes Spark some time,
even if it is small.
"""
FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 24
PATIENCE = 20.0
"""If the directory of one replica can't be read, and another replica does not yet show all records of the
task, the task waits for that replica, at most for this time, in seconds.
"""
_PAUSE = 0.1
_Read = Callable[[int, int], Records]
"""A function (offset, bytes) that reads about this number of bytes, and returns records from the offset on.
"""
_Since = Callable[[int, int], Iterator[Records] | None]
"""A function (offset, end) that returns the archive's records from `offset` to before `end`, which the store
has deleted; None if the archive does not have them.
"""


@dataclass
class OffsetSlice(InputPartition):
    """The offsets of a partition from `start` to before `end`. In a replicated store, the replicas in the
    directories `places` are tried one after another; a replica must have all records below `until`.
    """

    topic: str
    partition: int
    start: int
    end: int
    until: OffsetAndEpoch | None = None
    places: tuple[str, ...] = ()
    archived: LogContents | None = None
    """If the slice is read from an archive, the archive's contents for it; None if it is read from the store.
    """

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class SliceReader:
    """Reads slices. The object is pickled and sent to the tasks. `path` is the store's directory; it is not
    used for a slice that has `places`.
    """

    path: str
    schema: pa.Schema
    isolation_level: str
    fail_on_data_loss: bool
    times: NumberRange
    archive: ArchivePlace | None = None

    def read(self, part: OffsetSlice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows as batches. An error makes the task fail: CorruptRecordError, DataLossError,
        StorageError, ReplicaOfflineError, OffsetNotAvailableError or ArchiveError.
        """
        for records in self._of(part):
            yield from batches(part.topic, part.partition, records, self.schema)

    def _of(self, part: OffsetSlice) -> Iterator[Records]:
        if part.archived is not None:
            return self._of_archive(part, part.archived)
        return self._of_store(part) if part.until is None else self._of_replicas(part, part.until)

    # --- an archive ------------------------------------------------------------------------

    def _of_archive(self, part: OffsetSlice, contents: LogContents) -> Iterator[Records]:
        assert self.archive is not None
        with self.archive.log(contents) as at:
            read = partial(at.read, isolation_level=self.isolation_level, times=self._span, below=part.end)
            try:
                yield from self._records(read, part, part.start)
            except GONE as error:
                self._lost(f"{part}: {error}")

    def _archived_since(self, part: OffsetSlice, topic_id: str) -> Iterator[Records] | None:
        """Return the slice's records, which retention has removed from the store, from the archive; None if
        the archive does not have all of them.
        """
        if self.archive is None:
            return None
        try:
            with self.archive.open() as logs:
                known = logs.contents(part.topic, part.partition)
        except GONE:
            return None
        is_there = known.key.topic_id == topic_id and known.start <= part.start and part.end <= known.end
        return self._of_archive(part, known.part(part.start, part.end)) if is_there else None

    # --- a store in one directory ---------------------------------------------------------

    def _of_store(self, part: OffsetSlice) -> Iterator[Records]:
        with open_store(self.path) as store:
            try:
                at = store.partition(part.topic, part.partition)

                def read(offset: int, size: int) -> Records:
                    await_shown(at, part.end)
                    return at.read(offset, size, isolation_level=self.isolation_level, times=self._span)

                def since(offset: int, end: int) -> Iterator[Records] | None:
                    topic_id = store.topics()[part.topic].topic_id
                    return self._archived_since(replace(part, start=offset, end=end), topic_id)

                yield from self._records(read, part, part.start, since)
            except GONE as error:
                self._lost(f"{part}: {error}")

    # --- replicas -------------------------------------------------------------------------

    def _of_replicas(self, part: OffsetSlice, until: OffsetAndEpoch) -> Iterator[Records]:
        """Yield the records of the first replica that has all of them. If a replica can't be read any more,
        or has lost records, continue with the next one, after the records that were already yielded.
        """
        at, end = part.start, time.monotonic() + PATIENCE
        while True:
            offline, lacking = list[str](), list[str]()
            for place in part.places:
                try:
                    for records in self._of_replica(place, part, until, at):
                        yield records
                        at = records.next_offset
                    return
                except (*GONE, ReplicaOfflineError) as error:
                    lacking.append(f"{place}: {error}")
                except UNREADABLE as error:
                    offline.append(f"{place}: {error}")
                log.warning("%s: reading goes on elsewhere: %s", part, [*offline, *lacking])
            lacks = f"{part}: no replica has all records up to offset {until.offset}: " + "; ".join(
                [*offline, *lacking]
            )
            if not offline:
                self._lost(lacks)
                return
            if not lacking or time.monotonic() >= end:
                raise ReplicaOfflineError(lacks)
            # Try again, because a replica in `lacking` will show all its records when it becomes the leader.
            time.sleep(_PAUSE)

    def _of_replica(
        self, place: str, part: OffsetSlice, until: OffsetAndEpoch, start: int
    ) -> Iterator[Records]:
        """Yield the records of the replica in the directory `place`. Raises ReplicaOfflineError if the
        replica does not have all records below `until`.
        """
        with storage.open(place, "r") as store:
            replica = ObservedLog(store, part.topic, part.partition)
            # The replica is checked before and after the read, because during the read a new leader may
            # replace its records.
            replica.check(until)
            read = partial(
                replica.read_below, until=until, isolation_level=self.isolation_level, times=self._span
            )
            yield from self._records(read, part, start)
            replica.check(until)

    # --- both -----------------------------------------------------------------------------

    @property
    def _span(self) -> tuple[int, int] | None:
        return (self.times.low, self.times.high - 1) if self.times.limited else None

    def _records(
        self, read: _Read, part: OffsetSlice, offset: int, since: _Since = lambda offset, end: None
    ) -> Iterator[Records]:
        size = FIRST_BYTES
        if self.times.limited and self.times.low >= self.times.high:
            return  # No record is in the range of times.
        while offset < part.end:
            try:
                records = read(offset, size)
            except OffsetOutOfRangeError as error:
                below = min(error.start, part.end)
                if offset < below and (archived := since(offset, below)) is not None:
                    yield from archived
                    offset = below
                    continue
                self._lost(str(error))
                if error.start <= offset:
                    return
                offset = error.start
                continue
            if records.next_offset <= offset:
                self._lost(f"{part} ends at offset {offset}, not at {part.end}")
                return
            looked_at = records.next_offset - offset if self.times.limited else len(records)
            offset = records.next_offset
            # The first reads are small, so that no large read is made for a small slice.
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
