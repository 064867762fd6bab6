"""`OffsetsTopic` creates the topic `__consumer_offsets`, `OffsetsWriter` writes to it, and `ReadOffsets`
reads it in processes that don't write.

On disk: the topic, compacted, created with Kafka's settings when the first offset is committed. A topic that
a broker has created gets these settings at the first write. The partition of a group's records is chosen by
Java's hash of the group id (Kafka: GroupMetadataManager.partitionFor).
Threads: any; each call asks the store for the partitions that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segstore.config import StoreConfig, arguments
from segstore.coordinator.java_hash import partition_among
from segstore.coordinator.offsets.consumer_schema import RecordKey, Value
from segstore.coordinator.offsets.schema import GroupRecord, OffsetCommitValue
from segstore.coordinator.offsets.share_schema import ShareRecordKey, ShareValue
from segstore.coordinator.offsets.state import OffsetsState, StoredCommit, load
from segstore.coordinator.structs import UNKNOWN_EPOCH, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTypeError,
    OffsetMetadataTooLargeError,
    RecordTooLargeError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.integers import INT32_MAX, INT64_MIN
from segstore.protocol.primitives import LONGEST_STRING
from segstore.records import CODECS, HEADER_SIZE, Columns, Template
from segstore.records.encode import batch_cap
from segstore.records.encoded import PLAIN
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import append_batches
from segstore.storage.log.partition import Partition
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS, MADE_WITH, TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

TOPIC = CONSUMER_OFFSETS


class OffsetsTopic:
    """The topic `__consumer_offsets` of one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def info(self) -> TopicInfo | None:
        """Return the topic, or None if it was not created yet."""
        return self._store.engine.topics.get(TOPIC)

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the partitions that exist."""
        info = self.info
        return () if info is None else info.partition_ids

    def partition_for(self, group: str) -> int:
        """Return the partition that the group's records belong to, even if the topic does not exist yet."""
        return partition_among(group, self.ids, self._count)

    def log(self, partition: int) -> PartitionLog | None:
        """Return a partition's log for reading; None if the partition does not exist."""
        return self._store.partition(TOPIC, partition) if partition in self.ids else None

    def writable(self, group: str) -> PartitionLog:
        """Return the log of the group's partition, for writing. If the topic is missing, create it.

        Raises StorageError, and UnknownTopicOrPartitionError if the store is a copy of a broker's log
        directory that lacks the partition.
        """
        info = self.info
        if info is None:
            self._store.own_topic(TOPIC, self._count, self._settings())
        elif not info.ours:
            self._store._alter_topic(TOPIC, self._settings())
        return self._store.partition(TOPIC, self.partition_for(group))

    @property
    def _count(self) -> int:
        return self._store.writer().config.offsets_topic_num_partitions

    def _settings(self) -> dict[str, str | int]:
        config = self._store.writer().config
        return {**MADE_WITH[TOPIC], "segment.bytes": config.offsets_topic_segment_bytes}

    def topic_id(self, topic: str) -> str:
        """Return the present id of a topic, or "" if there is no such topic or the topic has no id."""
        info = self._store.engine.topics.get(topic)
        return "" if info is None else info.topic_id

    def held(self, offsets: Mapping[TopicPartition, StoredCommit]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of topics that exist now. An offset that was committed for an earlier
        topic of the same name is left out: after an interrupted deletion, the log still has it.
        """
        return {tp: own.commit.offset for tp, own in offsets.items() if self._is_of(tp.topic, own.commit)}

    def _is_of(self, topic: str, commit: OffsetCommitValue) -> bool:
        """Return whether the commit is for the present topic of this name; True if one of the two topic ids
        is unknown, for example because the topic can't be read now.
        """
        info = self._store.engine.topics.get(topic)
        return not commit.topic_id or (info is not None and info.topic_id in ("", commit.topic_id))

    def check_topic(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicOrPartitionError unless the partition exists. The error lists the existing
        partitions.
        """
        info = self._store.engine.topics.get(topic)
        if info is None or partition not in info.partition_ids:
            there = f"partitions {list(info.partition_ids)}" if info else "no such topic"
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} is not there: {there}")


# --- write -------------------------------------------------------------------------------------

# The functions below check a commit, and `OffsetsWriter` writes it as one record batch. Threads: any; an
# `OffsetsWriter` belongs to one thread, which holds the partition's lock.

_NUMBERS = 36  # an upper bound of the size of a record's varints and attributes, in bytes


class OffsetsWriter:
    """Writes to one partition of the topic. `now` is the timestamp of the records (ms since the epoch)."""

    def __init__(self, log: PartitionLog, config: StoreConfig, now: int) -> None:
        self._log, self._codec, self.now = log, config.offsets_topic_compression_codec, now
        self._acks = Acks(timeout_ms=config.offsets_commit_timeout_ms)

    def partition_for_write(self) -> Partition:
        """Return the partition. Raises OffsetNotAvailableError if no replica leads: the caller holds the
        partition's lock, and must not wait for a leader.
        """
        return self._log.partition_led()

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None], template: Template = PLAIN) -> int:
        """Append all records as one batch; return the first offset. If RecordTooLargeError, StorageError,
        OffsetNotAvailableError or NotEnoughReplicasError is raised, nothing was written. If
        RequestTimedOutError (offsets.commit.timeout.ms), NotLeaderOrFollowerError or
        NotEnoughReplicasAfterAppendError is raised, the records may still be committed.
        """
        size = HEADER_SIZE + sum(map(len, keys)) + sum(len(value or b"") + _NUMBERS for value in values)
        limit = self.partition_for_write().validator.largest_batch
        most = batch_cap(self._codec, limit, limit)
        if size > most:
            raise RecordTooLargeError(
                f"{len(keys):,} records of a group make a batch of {size:,} bytes: allowed are {most:,}, "
                "since they are written together or not at all"
            )
        columns = Columns(list(values), list(keys), timestamp=self.now)
        compression, acks = CODECS[self._codec], self._acks
        return append_batches(self, columns, (), compression, template, sequenced=False, acks=acks).first


def check_group(group: Any) -> str:
    """Return `group`. Raises InvalidGroupIdError if `group` is not a valid group id."""
    if not isinstance(group, str) or not group:
        raise InvalidGroupIdError(f"group_id={group!r:.80}: must be a str that is not empty")
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise InvalidGroupIdError(f"group_id={group!r:.80}: no UTF-8: {error.reason}") from None
    if size > LONGEST_STRING:
        raise InvalidGroupIdError(f"group_id has {size:,} bytes: allowed are {LONGEST_STRING:,}")
    return group


def check_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], check_topic: Callable[[str, int], None], most: int
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit, ordered by partition. `most` limits the metadata of an offset, in bytes.

    Raises InvalidTypeError, InvalidArgumentError, OffsetMetadataTooLargeError, and the errors of
    `check_topic`.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidTypeError(f"offsets must map TopicPartition to OffsetAndMetadata, not {offsets!r:.80}")
    found = {check_partition(key): _offset(key, value, most) for key, value in offsets.items()}
    for topic, partition in found:
        check_topic(topic, partition)
    return dict(sorted(found.items()))


def positions(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets without negative offsets: for Kafka's clients, these mean that no offset is
    committed.
    """
    return {tp: at for tp, at in offsets.items() if at.offset >= 0}


def check_partition(key: Any) -> TopicPartition:
    """Return a TopicPartition made from kafka-python's TopicPartition, or from a plain tuple. Raises
    InvalidTypeError, InvalidArgumentError.
    """
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str)):
        raise InvalidTypeError(f"{key!r:.80} is no TopicPartition(topic, partition)")
    return TopicPartition(key[0], arguments.whole("partition", key[1], 0, INT32_MAX))


def _offset(key: Any, value: Any, most: int) -> OffsetAndMetadata:
    if not (isinstance(value, tuple) and 1 <= len(value) <= 3):
        raise InvalidTypeError(
            f"{value!r:.80} for {key} is no OffsetAndMetadata(offset, metadata, leader_epoch)"
        )
    parsed = OffsetAndMetadata(*value)
    # Kafka takes any offset, and kafkajs commits -2 for the log start offset, -1 for the log end offset.
    offset = arguments.whole("offset", parsed.offset, INT64_MIN)
    epoch = arguments.whole("leader_epoch", parsed.leader_epoch, UNKNOWN_EPOCH, INT32_MAX)
    note = "" if parsed.metadata is None else parsed.metadata
    if not isinstance(note, str):
        raise InvalidTypeError(f"metadata of {key} must be a str, not {type(note).__name__}")
    try:
        size = len(note.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"metadata {note!r:.80} of {key} is no UTF-8: {error.reason}") from None
    if size > most:
        raise OffsetMetadataTooLargeError(
            f"metadata of {key} has {size:,} bytes: allowed are {most:,} (offset.metadata.max.bytes)"
        )
    return OffsetAndMetadata(offset, note, epoch)


# --- read --------------------------------------------------------------------------------------

# `ReadOffsets` reads committed offsets in a process that does not write the store. On disk: only reads.
# Threads: any; the object does not change.


class ReadOffsets:
    """A snapshot of the committed offsets, with the methods of `GroupOffsets` that read. All partitions are
    searched for a group, because a group's records may be in another partition than `partition_for` returns.
    """

    def __init__(self, store: Store) -> None:
        self._topic = OffsetsTopic(store)
        self._states = [_load(store, self._topic, partition) for partition in self._topic.ids]

    def groups(self) -> set[str]:
        return {name for state in self._states for name in state.names()}

    def fetch(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return positions(self._topic.held(self._of(group).usable(group).offsets))

    def pending(self, group: str) -> set[TopicPartition]:
        return self._of(group).pending_of(group)

    def group(self, group: str) -> GroupRecord | None:
        return self._of(group).known(group).record

    def consumer(self, group: str) -> dict[RecordKey, Value]:
        return self._of(group).known(group).consumer

    def share(self, group: str) -> dict[ShareRecordKey, ShareValue]:
        return self._of(group).known(group).share

    def _of(self, group: str) -> OffsetsState:
        return next((state for state in self._states if group in state.names()), OffsetsState())


def _load(store: Store, topic: OffsetsTopic, partition: int) -> OffsetsState:
    """Return the state of a partition, read from its log, or an empty state if the writer is just creating or
    deleting the partition.
    """
    try:
        source = topic.log(partition)
        return OffsetsState() if source is None else load(source)
    except StoreClosedError:
        store.context.check_open()
        return OffsetsState()
