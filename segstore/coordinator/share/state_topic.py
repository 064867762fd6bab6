"""The topic `__share_group_state`: how it is created, found and written.

On disk: the topic, which is not compacted, since the deltas of a share partition share no key with its
snapshot; what is not needed any more is pruned. It is created with Kafka's settings when the first share
partition is initialised; a broker's topic becomes ours with the first write. A share partition's records lie
in the partition that Java's hash of its key chooses (Kafka: ShareCoordinatorService.partitionFor).
Threads: any; each call asks the store which partitions exist.
"""

from __future__ import annotations

from collections.abc import Sequence

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
"""A share coordinator's batches have no producer, but a base sequence (Kafka: CoordinatorRuntime)."""
_NUMBERS = 36  # bytes of a record's varints and attributes, at most


class StateTopic:
    """The topic in one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: tuple[object, dict[str, frozenset[int]]] = (None, {})

    @property
    def info(self) -> TopicInfo | None:
        """Return the topic; None if no share partition was ever initialised."""
        return self._store._side.topics.get(TOPIC)

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the partitions that exist."""
        info = self.info
        return () if info is None else info.partition_ids

    def partition_for(self, key: ShareKey) -> int:
        """Return the partition that has, or will have, the share partition's records."""
        count = self._store._writer().config.share_coordinator_state_topic_num_partitions
        return partition_among(str(key), self.ids, count)

    def log(self, partition: int) -> PartitionLog | None:
        """Return a partition's log to read; None if the partition does not exist."""
        return self._store.partition(TOPIC, partition) if partition in self.ids else None

    def writable(self, partition: int) -> PartitionLog:
        """Return a partition's log to write. Raises UnknownTopicOrPartitionError if a copy of a broker's
        directory lacks the partition; StorageError.
        """
        self.make()
        return self._store.partition(TOPIC, partition)

    def make(self) -> None:
        """Create the topic if it is missing. Raises StorageError, and the errors of `Store.create_topic`."""
        info, config = self.info, self._store._writer().config
        if info is None:
            count = config.share_coordinator_state_topic_num_partitions
            self._store._own_topic(TOPIC, count, _settings(config))
        elif not info.ours:
            self._store._alter_topic(TOPIC, _settings(config))

    def check_source(self, key: ShareKey) -> None:
        """Raise UnknownTopicOrPartitionError unless the store has the share partition's topic and
        partition.
        """
        topics = self._store._side.topics
        known, by_id = self._by_id
        if known is not topics:
            by_id = {info.topic_id: frozenset(info.partition_ids) for info in topics.values()}
            self._by_id = topics, by_id
        if key.partition not in by_id.get(key.topic_id, ()) or not key.topic_id:
            there = by_id.get(key.topic_id)
            told = f"no topic has the id {key.topic_id!r}" if there is None else f"there are {sorted(there)}"
            raise UnknownTopicOrPartitionError(f"share partition {key}: {told}")


def _settings(config: StoreConfig) -> dict[str, str | int | bool]:
    return {
        **MADE_WITH[TOPIC],
        "segment.bytes": config.share_coordinator_state_topic_segment_bytes,
        "min.insync.replicas": config.share_coordinator_state_topic_min_isr,
    }


class StateWriter:
    """Writes to one partition of the topic, at `now` (ms since the epoch). It belongs to one thread, which
    holds the partition's lock.
    """

    def __init__(self, log: PartitionLog, config: StoreConfig, now: int) -> None:
        self.now, self._log = now, log
        self._codec = config.share_coordinator_state_topic_compression_codec
        self._acks = Acks(timeout_ms=config.share_coordinator_write_timeout_ms)

    def partition_for_write(self) -> Partition:
        """Return the partition. Raises OffsetNotAvailableError while no replica leads: nobody waits for a
        leader with the partition's lock.
        """
        return self._log.partition_led()

    def check_size(self, key: bytes, value: bytes | None) -> None:
        """Raise RecordTooLargeError for a record that no batch of the topic can hold."""
        size = HEADER_SIZE + len(key) + len(value or b"") + _NUMBERS
        limit = self.partition_for_write().validator.largest_batch
        most = batch_cap(self._codec, limit, limit)
        if size > most:
            raise RecordTooLargeError(
                f"a share partition's state makes a batch of {size:,} bytes: allowed are {most:,}"
            )

    def append(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> int:
        """Append all records, or none; return the first offset. Raises StorageError, and the errors of
        `Acknowledger`.
        """
        compression, acks = CODECS[self._codec] if self._codec else None, self._acks
        if len(keys) == 1:
            record = values[0], keys[0], (), self.now, compression, _AS_KAFKA
            return append_record(self, *record, sequenced=False, acks=acks).first
        columns = Columns(list(values), list(keys), timestamp=self.now)
        return append_batches(self, columns, (), compression, _AS_KAFKA, sequenced=False, acks=acks).first
