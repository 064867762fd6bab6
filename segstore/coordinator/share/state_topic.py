"""The topic `__share_group_state`: its creation, its partitions, and writes to it.

On disk: the topic. It is not compacted, because a share partition's updates have another key than its
snapshots; instead outdated records are pruned. The topic is created with Kafka's settings when the first
share partition is initialised. If the store's directory is a copy of a broker's directory, the first write
sets these settings on the broker's topic. Java's hash of a share partition's key chooses the partition for
its records (Kafka: ShareCoordinatorService.partitionFor).
Threads: any; each call asks the store for the partitions that exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from segstore.config import StoreConfig
from segstore.coordinator.java_hash import partition_among
from segstore.coordinator.share.keys import ShareKey
from segstore.errors import RecordTooLargeError, UnknownTopicOrPartitionError
from segstore.records import CODECS, HEADER_SIZE, Columns, Template
from segstore.records.encode import batch_cap
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.partition import Partition
from segstore.storage.meta.topic_info import MADE_WITH, SHARE_GROUP_STATE, TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

TOPIC = SHARE_GROUP_STATE
_AS_KAFKA = Template(base_sequence=0)
"""As in Kafka's CoordinatorRuntime, batches have a base sequence, but no producer id."""
# An upper bound of the bytes that a batch has in addition to the key and value of its only record.
_AROUND = HEADER_SIZE + 36


class TopicsSeen:
    """A snapshot of the store's topics; it is valid until a topic is created, altered or deleted. `ids` are
    the existing partitions of `__share_group_state`. `is_ours` is False if this topic is missing, or if a
    broker has created it and segstore has not altered it. `partition_for` returns the partition for a share
    partition's records, even if the topic does not exist yet.
    """

    __slots__ = ("_sources", "_store", "_writers", "ids", "is_ours", "partition_for", "topics")

    def __init__(self, store: Store, topics: Mapping[str, TopicInfo], config: StoreConfig) -> None:
        info = topics.get(TOPIC)
        self.topics, self._store = topics, store
        self.ids = () if info is None else info.partition_ids
        self.is_ours = info is not None and info.ours
        count = config.share_coordinator_state_topic_num_partitions
        self.partition_for = lru_cache(maxsize=4096)(partial(_partition_for, self.ids, count))
        self._sources = {info.topic_id: frozenset(info.partition_ids) for info in topics.values()}
        self._writers: dict[int, StateWriter] = {}

    def writer(self, partition: int, config: StoreConfig) -> StateWriter:
        """Return the writer of a partition. Raises StorageError, and UnknownTopicOrPartitionError if the
        partition is missing because the directory is an incomplete copy of a broker's directory.
        """
        found = self._writers.get(partition)
        if found is None:
            log = self._store.partition(TOPIC, partition)
            found = self._writers[partition] = StateWriter(log, config)
        return found

    def check_source(self, key: ShareKey) -> None:
        """Raise UnknownTopicOrPartitionError unless the store has the share partition's topic and
        partition.
        """
        there = self._sources.get(key.topic_id)
        if there is None or key.partition not in there or not key.topic_id:
            reason = (
                f"no topic has the id {key.topic_id!r}" if there is None else f"there are {sorted(there)}"
            )
            raise UnknownTopicOrPartitionError(f"share partition {key}: {reason}")


def _partition_for(ids: tuple[int, ...], count: int, key: ShareKey) -> int:
    return partition_among(str(key), ids, count)


class StateTopic:
    """The topic `__share_group_state` of one open store."""

    def __init__(self, store: Store) -> None:
        self._store, self._config = store, store.writer().config
        self._seen = TopicsSeen(store, {}, self._config)

    def seen(self) -> TopicsSeen:
        """Return a snapshot of the present topics. It is the same object until a topic changes."""
        topics = self._store.engine.topics
        seen = self._seen
        if seen.topics is not topics:
            seen = self._seen = TopicsSeen(self._store, topics, self._config)
        return seen

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the existing partitions of `__share_group_state`; an empty tuple if there are none yet."""
        return self.seen().ids

    def log(self, partition: int) -> PartitionLog | None:
        """Return a partition's log for reading; None if the partition does not exist."""
        return self._store.partition(TOPIC, partition) if partition in self.ids else None

    def make(self) -> TopicsSeen:
        """Create `__share_group_state` if it is missing, or set segstore's settings if a broker has created
        it. Return a new snapshot of the topics. Raises StorageError, and the errors of `Store.create_topic`.
        """
        seen = self.seen()
        if not seen.ids:
            count = self._config.share_coordinator_state_topic_num_partitions
            self._store.own_topic(TOPIC, count, _settings(self._config))
        elif not seen.is_ours:
            self._store._alter_topic(TOPIC, _settings(self._config))
        return self.seen()


def _settings(config: StoreConfig) -> dict[str, str | int | bool]:
    return {
        **MADE_WITH[TOPIC],
        "segment.bytes": config.share_coordinator_state_topic_segment_bytes,
        "min.insync.replicas": config.share_coordinator_state_topic_min_isr,
    }


class StateWriter:
    """Writes to one partition of `__share_group_state`, for the thread that has the partition's lock."""

    def __init__(self, log: PartitionLog, config: StoreConfig) -> None:
        self.log = log
        self._codec = config.share_coordinator_state_topic_compression_codec
        self._acks = Acks(timeout_ms=config.share_coordinator_write_timeout_ms)
        self._largest = self._most = 0
        self._partition: Partition | None = None

    def begin(self) -> int:
        """Find the partition for the next append. Return the largest size of a record's key and value, in
        bytes. Raises OffsetNotAvailableError if the partition has no leader: the caller must not wait for one
        under the partition's lock.
        """
        self._partition = self.log.partition_led()
        largest = self._partition.validator.largest_batch
        if largest != self._largest:
            self._largest, self._most = largest, batch_cap(self._codec, largest, largest) - _AROUND
        return self._most

    def partition_for_write(self) -> Partition:
        """Return the partition that the last call of `begin` has found."""
        assert self._partition is not None
        return self._partition

    def append(self, keys: Sequence[bytes], values: Sequence[bytes | None], now: int) -> int:
        """Append all records with the timestamp `now`, in ms since the epoch; return the first offset. After
        an error either all records were appended, or none. Raises StorageError, and the errors of
        `Acknowledger`.
        """
        compression, acks = CODECS[self._codec] if self._codec else None, self._acks
        if len(keys) == 1:
            record = values[0], keys[0], (), now, compression, _AS_KAFKA
            return append_record(self, *record, sequenced=False, acks=acks).first
        columns = Columns(list(values), list(keys), timestamp=now)
        return append_batches(self, columns, (), compression, _AS_KAFKA, sequenced=False, acks=acks).first


def too_large(size: int, most: int) -> RecordTooLargeError:
    """Return the error for a record whose key and value have `size` bytes."""
    return RecordTooLargeError(
        f"a share partition's state makes a batch of {size + _AROUND:,} bytes: allowed are {most + _AROUND:,}"
    )
