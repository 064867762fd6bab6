"""What a sweep does to one partition: retention, and compaction. On disk: through `partition` and `cleaner`.

Threads: one sweep at a time. A topic without settings of ours (a broker's) is never swept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from segstore.config import StoreConfig
from segstore.errors import SegstoreError, StorageError, StoreClosedError
from segstore.storage.cleaner import CleanResult, Throttle, clean, cleanable
from segstore.storage.log import retention
from segstore.storage.log.partition import Partition
from segstore.storage.meta.root_checkpoints import OffsetCheckpoint, TopicPartitionKey
from segstore.storage.meta.topics import TopicInfo

Topics = Callable[[], Mapping[str, TopicInfo]]
Open = Callable[[str, int], Partition]


class Swept(NamedTuple):
    """What a sweep did to a partition: segments and bytes that retention let go, records that compaction
    removed and bytes that this freed; `error`: why it failed.
    """

    topic: str
    partition: int
    deleted_segments: int = 0
    deleted_bytes: int = 0
    compacted_records: int = 0
    compacted_bytes: int = 0
    error: str | None = None

    def failed(self, error: Exception) -> Swept:
        """The same, and then an error."""
        return self._replace(error=str(error) or type(error).__name__)

    def plus(self, other: Swept) -> Swept:
        """Both, of the same partition; the later error, if there is any."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return self._replace(error=other.error or self.error, **counts)


_COUNTS = ("deleted_segments", "deleted_bytes", "compacted_records", "compacted_bytes")


class Step(Protocol):
    """One kind of sweep."""

    def due(self, now: int) -> list[TopicPartitionKey]:
        """The partitions that it may have something to do in, in order."""

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        """Sweep one; None where there was nothing to do. SegstoreError, OSError; or it is the `error`."""


def _swept(topics: Topics, wanted: Callable[[TopicInfo], bool]) -> Iterator[TopicPartitionKey]:
    for info in topics().values():
        if info.ours and info.error is None and wanted(info):
            yield from ((info.name, number) for number in info.partition_ids)


class Retention:
    """Rolls segments that are old, and lets those go that the settings no longer keep."""

    def __init__(self, topics: Topics, partition: Open) -> None:
        self._topics, self._partition = topics, partition

    def due(self, now: int) -> list[TopicPartitionKey]:
        return list(_swept(self._topics, lambda info: _kept_for_a_time(info) or _is_compacted(info)))

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        partition = self._partition(*key)
        failed: StorageError | None = None
        try:
            partition.roll_if_old(now)
        except StorageError as error:
            failed = error  # what goes now may be what makes room for it
        gone = partition.log_start.retain(now)
        done = Swept(*key, gone.segments, gone.bytes)
        return done.failed(failed) if failed else done if gone.segments else None


class Compaction:
    """The log cleaner, the dirtiest log first (Kafka: LogCleanerManager.grabFilthiestCompactedLog)."""

    def __init__(
        self,
        topics: Topics,
        partition: Open,
        config: StoreConfig,
        cleaned: OffsetCheckpoint,
        throttle: Throttle,
        checkpoint: Callable[[], None],
    ) -> None:
        """`checkpoint` makes the recovery points durable."""
        self._topics, self._partition, self._config = topics, partition, config
        self._cleaned, self._throttle, self._checkpoint = cleaned, throttle, checkpoint

    def due(self, now: int) -> list[TopicPartitionKey]:
        ranked = [(self._rank(key, now), key) for key in _swept(self._topics, _is_compacted)]
        return [key for rank, key in sorted(ranked, reverse=True) if rank >= 0]

    def _rank(self, key: TopicPartitionKey, now: int) -> float:
        try:
            dirty = cleanable(self._partition(*key), self._cleaned.get(key), now)
        except (SegstoreError, OSError):
            return math.inf  # `run` meets it again, and says so
        return -1.0 if dirty is None else dirty.ratio

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        partition, cleaned = self._partition(*key), self._cleaned
        dirty = cleanable(partition, cleaned.get(key), now)
        if dirty is None:
            return None

        def advanced(offset: int) -> None:
            with partition.names_held():  # else the line may be that of a topic made anew
                cleaned.update({key: offset})

        freed: Swept | None = None

        def swapped(done: CleanResult) -> None:
            nonlocal freed
            records, size = done.records_before - done.records_after, done.bytes_before - done.bytes_after
            counts = Swept(*key, compacted_records=records, compacted_bytes=size)
            freed = counts if freed is None else freed.plus(counts)

        try:
            clean(
                partition,
                self._config,
                now,
                self._throttle,
                cleaned.get(key),
                advanced,
                swapped,
                self._checkpoint,
            )
        except StoreClosedError:
            raise
        except (SegstoreError, OSError) as error:
            return (freed or Swept(*key)).failed(error)  # with what was done before
        return freed


def _kept_for_a_time(info: TopicInfo) -> bool:
    return retention.applies(info.settings)


def _is_compacted(info: TopicInfo) -> bool:
    return "compact" in info.settings.cleanup_policy
