"""Offsets that are looked up: first, last, by time. Nothing on disk of its own. Threads: any."""

from __future__ import annotations

from segstore.coordinator.structs import OffsetAndTimestamp, TopicPartition
from segstore.errors import OffsetOutOfRangeError
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store


class Lookups:
    """What a consumer of some isolation level sees of the partitions of a store."""

    def __init__(self, store: Store, isolation_level: str) -> None:
        self._store, self._level = store, isolation_level
        self._committed = isolation_level == "read_committed"

    def log(self, tp: TopicPartition) -> PartitionLog:
        """UnknownTopicOrPartitionError."""
        return self._store.partition(tp.topic, tp.partition)

    def end(self, log: PartitionLog) -> int:
        """Where the records that may be read end: the high watermark, or the last stable offset."""
        return log.last_stable_offset if self._committed else log.high_watermark

    def reset(self, log: PartitionLog, where: str) -> int:
        """The offset of "earliest" or "latest"."""
        return log.start_offset if where == "earliest" else self.end(log)

    def for_time(self, log: PartitionLog, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record stamped `timestamp` (ms) or later that may be read."""
        offset = log.offset_for_time(timestamp)
        if offset is None or offset >= self.end(log):
            return None
        try:
            found = log.read(offset, 0, isolation_level=self._level)
        except OffsetOutOfRangeError:  # retention was quicker
            return self.for_time(log, timestamp)
        if not len(found):
            return None
        return OffsetAndTimestamp(
            int(found.offsets[0]), int(found.timestamps[0]), int(found.leader_epochs[0])
        )
