"""`GroupOffsets`: the committed offsets of all groups, and the records of groups and their members, in memory
and in the log.

On disk: owns the topic `__consumer_offsets`. A commit is one record batch, so after a crash the log has all
of it or nothing.
Threads: any. Each partition of the topic has a lock for its reads and writes. A change is appended to the log
before memory is changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from segstore.coordinator.offsets.cache import CachedPartition
from segstore.coordinator.offsets.consumer_schema import (
    Change,
    RecordKey,
    Value,
    consumer_key,
    consumer_value,
)
from segstore.coordinator.offsets.schema import (
    GroupRecord,
    MemberRecord,
    OffsetCommitValue,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from segstore.coordinator.offsets.share_records import ShareRecords
from segstore.coordinator.offsets.state import EmptySince, GroupState, OffsetsState, StoredCommit, expired
from segstore.coordinator.offsets.topic import TOPIC, OffsetsWriter, check_group, check_offsets, positions
from segstore.coordinator.shared import existing, shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import OffsetNotAvailableError, SegstoreError, copy_of
from segstore.logger import Logger
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.records.encoded import PLAIN
from segstore.storage.store.store import Store

# --- cleanup -----------------------------------------------------------------------------------

# `OffsetsCleanup` deletes the offsets of deleted topics, offsets that are too old, and empty groups. On disk:
# tombstones in `__consumer_offsets`. Threads: any; the store's scheduler calls `expire` at regular intervals.

_MINUTE_MS = 60_000


class OffsetsCleanup(ShareRecords):
    """The part of `GroupOffsets` that deletes expired offsets, offsets of deleted topics, and empty
    groups.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._opened_ms, self._closed = self._clock(), False
        self.empty_since: EmptySince = self._empty_since
        """The default of `is_empty` in `expire`; the group coordinator replaces this function."""
        self.swept: Callable[[], None] = lambda: None
        """`expire` calls this function at its end; the group coordinator replaces this function."""
        interval = self._config.offsets_retention_check_interval_ms / 1000
        me = weakref.ref(self)  # the scheduler must not keep an unused store alive

        def expire() -> None:
            cleanup = me()
            if cleanup is not None:
                cleanup._expire_in_background()

        store.context.scheduler.every(interval, expire)

    def close(self) -> None:
        """Stop the expiry: later calls by the scheduler delete nothing. Called when the store is closed."""
        self._closed = True

    def expire(
        self, now_ms: int | None = None, is_empty: EmptySince | None = None
    ) -> dict[str, set[TopicPartition]]:
        """Delete the offsets that are older than `offsets.retention.minutes`. Return the partitions of the
        deleted offsets, by group.

        A group without offsets and members is deleted too. `is_empty(group)` returns the time at which the
        group's last member left (ms since the epoch, -1: not known), or None if the group has members; the
        default is `empty_since`. Raises StorageError.
        """
        now = self._clock() if now_ms is None else now_ms
        find_since = is_empty or self.empty_since
        gone: dict[str, set[TopicPartition]] = {}
        for partition in self._topic.ids:
            seen = self._look_up(partition, partial(self._seen, partition))
            # `find_since` takes a group's lock, so it is called without the partition's lock. The coordinator
            # takes the two locks in the order group, partition; the opposite order could deadlock.
            since = {name: find_since(name) for name in seen}
            for name, before in seen.items():
                old = self._look_up(partition, partial(self._expire_group, name, since[name], now, *before))
                gone |= {name: old} if old else {}
        self.swept()
        return gone

    def _seen(
        self, partition: int, state: OffsetsState
    ) -> dict[str, tuple[GroupRecord | None, set[StoredCommit]]]:
        found = {
            name: group_state
            for name, group_state in state.groups.items()
            if self._may_expire(name, partition)
        }
        return {
            name: (group_state.record, set(group_state.offsets.values()))
            for name, group_state in found.items()
        }

    def _may_expire(self, group: str, partition: int) -> bool:
        """Return whether the group's offsets in this partition may expire."""
        # In a copy of a broker's log directory a group may have records in another partition, too. The
        # records in that partition don't expire.
        return self._topic.partition_for(group) == partition

    def _expire_group(
        self,
        group: str,
        since: int | None,
        now: int,
        record: GroupRecord | None,
        seen: set[StoredCommit],
        state: OffsetsState,
    ) -> set[TopicPartition]:
        """Delete the group's expired offsets, except offsets that were committed after `seen` was read, and
        delete the group if it is then empty. Return the partitions of the deleted offsets.
        """
        group_state = state.groups.get(group)
        if (
            group_state is None
            or group_state.refused
            or group_state.foreign
            or group_state.record is not record
        ):
            return set()
        retention = self._config.offsets_retention_minutes * _MINUTE_MS
        pending = state.pending_of(group)
        old = {
            tp for tp in expired(group_state, since, now, retention) if group_state.offsets[tp] in seen
        } - pending
        # Offsets of deleted topics are deleted, whatever their age.
        old |= group_state.offsets.keys() - self._topic.held(group_state.offsets).keys()
        nothing_left = len(old) == len(group_state.offsets) and not pending
        kept = record is not None or bool(group_state.consumer)
        whole = nothing_left and since is not None and kept and not group_state.has_consumers
        if old or whole:
            self._writing(group, lambda state, writer: self._drop(state, writer, group, old, whole))
        return old

    def _expire_in_background(self) -> None:
        if not self._closed and not self._store.context.closed:
            self.expire()

    def _empty_since(self, group: str) -> int | None:
        """Return the time at which the group's last member left (ms since the epoch, -1: not known), or None
        if the group has members. This is `empty_since` in a store without a group coordinator.
        """
        group_state = self._look_up(
            self._topic.partition_for(group), lambda state: state.groups.get(group, GroupState())
        )
        record = group_state.record
        # Members of a consumer group count as present, because they may come back.
        if group_state.has_consumers:
            return None
        if record is None:
            return -1
        # Members of a classic group count as having left when the store was opened.
        return self._opened_ms if record.members else record.state_timestamp_ms

    def topic_deleted(self, topic: str) -> None:
        """Delete the offsets of a deleted topic (Kafka: onPartitionsDeleted). If it is `__consumer_offsets`,
        only drop the loaded partitions from memory. Raises StorageError.
        """
        if topic == TOPIC:
            with self._lock:
                self._partitions.clear()
            return
        for partition in self._topic.ids:
            self._look_up(partition, partial(self._forget_topic, partition, topic))

    def _forget_topic(self, partition: int, topic: str, state: OffsetsState) -> None:
        for group in sorted(state.names()):
            own = state.groups.get(group, GroupState()).offsets
            gone = {tp for tp in {*own, *state.pending_of(group)} if tp.topic == topic}
            if gone and self._topic.partition_for(group) == partition:
                self._writing(group, partial(self._drop_from, group, gone), checked=False)

    def _drop_from(
        self, group: str, gone: set[TopicPartition], state: OffsetsState, writer: OffsetsWriter
    ) -> None:
        self._drop(state, writer, group, gone, whole=False)


# --- group offsets ------------------------------------------------------------

log = Logger("segstore")

__all__ = ["TOPIC", "GroupOffsets", "GroupRecord", "MemberRecord"]

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
NO_IDS: Mapping[str, str] = {}


class GroupOffsets(OffsetsCleanup):
    """The committed offsets and memberships of a store's groups. `shared(store, GroupOffsets)` returns the
    only object for a store.
    """

    # --- offsets ------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets, topic_ids: Mapping[str, str] = NO_IDS) -> None:
        """Commit all of `offsets`, or none. Their durability depends on `flush.messages` of
        `__consumer_offsets`. `topic_ids` maps topic names to ids: an offset counts only for the topic with
        this id, and not for another topic of the same name.

        Raises InvalidGroupIdError, InvalidArgumentError, InvalidTypeError, OffsetMetadataTooLargeError,
        UnknownTopicOrPartitionError, UnsupportedVersionError, StorageError, and RecordTooLargeError if one
        batch can't hold the offsets. If one of these errors is raised, nothing was committed.
        """
        self._commit(group, offsets, PLAIN, topic_ids)

    def refused(self, offsets: Offsets) -> dict[TopicPartition, SegstoreError]:
        """Return the offsets that can't be committed, each with its error. If one offset can't be committed,
        `commit` refuses all offsets.
        """
        found: dict[TopicPartition, SegstoreError] = {}
        most = self._config.offset_metadata_max_bytes
        for at, offset in offsets.items():
            try:
                check_offsets({at: offset}, self._topic.check_topic, most)
            except SegstoreError as error:
                found[at] = copy_of(error)
        return found

    def commit_transactional(
        self,
        group: str,
        offsets: Offsets,
        producer_id: int,
        producer_epoch: int,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        """Commit offsets within the producer's transaction; the offsets count as soon as `complete` is called
        with `committed` True.

        Raises the errors of `commit`, and InvalidProducerEpochError.
        """
        self._commit(group, offsets, Template(TRANSACTIONAL_FLAG, producer_id, producer_epoch, 0), topic_ids)

    def _commit(self, group: str, offsets: Offsets, template: Template, topic_ids: Mapping[str, str]) -> None:
        check_group(group)
        known = check_offsets(offsets, self._topic.check_topic, self._config.offset_metadata_max_bytes)
        if not known:
            return

        def write(state: OffsetsState, writer: OffsetsWriter) -> None:
            commits = {
                tp: OffsetCommitValue(
                    offset, writer.now, topic_id=topic_ids.get(tp.topic) or self._topic.topic_id(tp.topic)
                )
                for tp, offset in known.items()
            }
            keys = [offset_key(group, tp) for tp in commits]
            first = writer.write(keys, [offset_value(each) for each in commits.values()], template)
            for at, (tp, commit) in enumerate(commits.items(), first):
                if template is PLAIN:
                    state.put_offset(group, tp, commit, at)
                else:
                    state.put_pending(template.producer_id, group, tp, commit, at)

        self._writing(group, write)

    def complete(self, producer_id: int, committed: bool, partitions: Collection[int]) -> None:
        """Apply the outcome of the producer's transaction to the offsets that the transaction has sent to
        these partitions of `__consumer_offsets`: a commit makes the offsets count, an abort drops them.
        Called after the markers were written.
        """
        with self._lock:
            loaded = [cached for number, cached in self._partitions.items() if number in partitions]
        for cached in loaded:
            while not _ended(cached, producer_id, committed):
                """The lock is held by a late write; without this loop memory would miss the outcome."""

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of these partitions, or of all partitions if `partitions` is None.
        Negative offsets are left out.

        Raises InvalidGroupIdError, UnsupportedVersionError, CorruptRecordError.
        """
        return positions(self.as_sent(group, partitions))

    def as_sent(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of these partitions, or of all partitions if `partitions` is None.
        Negative offsets are included. Raises the errors of `fetch`.
        """

        def look(state: OffsetsState) -> dict[TopicPartition, OffsetAndMetadata]:
            own = state.usable(group).offsets
            wanted = own if partitions is None else {tp: own[tp] for tp in partitions if tp in own}
            return self._topic.held(wanted)

        return self._look_up(self.partition_for(group), look)

    def pending(self, group: str) -> set[TopicPartition]:
        """Return the partitions for which an open transaction has sent offsets of the group (Kafka:
        unstable offsets).
        """
        return self._look_up(self.partition_for(group), lambda state: state.pending_of(group))

    def delete(self, group: str, partitions: Collection[TopicPartition] | None = None) -> set[TopicPartition]:
        """Delete the group's offsets of these partitions. If `partitions` is None, delete the group with all
        its offsets. Return the partitions that had an offset. Raises the errors of `commit`.
        """
        if self.partition_for(group) not in self._topic.ids:
            return set()

        def write(state: OffsetsState, writer: OffsetsWriter) -> set[TopicPartition]:
            group_state, pending = state.usable(group), state.pending_of(group)
            there = set(group_state.offsets) | pending
            gone = there if partitions is None else there & set(partitions)
            self._drop(state, writer, group, gone, whole=partitions is None)
            return gone

        return self._writing(group, write)

    # --- groups -------------------------------------------------------------------------------

    def groups(self) -> set[str]:
        """Return the ids of all groups for which the log has committed offsets, offsets of an open
        transaction, or records of the group or its members.
        """
        found: set[str] = set()
        for partition in self._topic.ids:
            found |= self._look_up(partition, OffsetsState.names)
        return found

    def group(self, group_id: str) -> GroupRecord | None:
        """Return the last record of a classic group, or None if there is no such record. Raises
        UnsupportedVersionError.
        """
        return self._look_up(self.partition_for(group_id), lambda state: state.known(group_id).record)

    def consumer(self, group_id: str) -> dict[RecordKey, Value]:
        """Return the records of a consumer group (KIP-848); an empty dict for a group of another type. Raises
        UnsupportedVersionError.
        """
        return self._look_up(self.partition_for(group_id), lambda state: dict(state.known(group_id).consumer))

    def write_consumer(self, group_id: str, changes: Iterable[Change], *, ends_classic: bool = False) -> None:
        """Write all of these records of a consumer group, or none. If `ends_classic`, the same batch deletes
        the record of the classic group with this id. Raises the errors of `commit`.
        """
        group, records = check_group(group_id), list(changes)

        def write(state: OffsetsState, writer: OffsetsWriter) -> None:
            keys = [consumer_key(group, key) for key, _ in records]
            values = [None if value is None else consumer_value(value) for _, value in records]
            classic = [group_key(group)] * ends_classic
            writer.write(classic + keys, [None] * len(classic) + values)
            if ends_classic:
                state.put_group(group, None)
            for key, value in records:
                state.put_consumer(group, key, value)

        self._writing(group, write)

    def end_consumer(self, group_id: str) -> None:
        """Delete the records of a consumer group that has no members; the group's offsets stay. Raises the
        errors of `commit`.
        """
        self.write_consumer(group_id, [(key, None) for key in self.consumer(group_id)])

    def write_group(self, record: GroupRecord, *, ends_consumer: bool = False) -> None:
        """Write the record of a classic group. If `ends_consumer`, the same batch deletes the records of the
        consumer group with this id. Raises the errors of `commit`.
        """
        group = check_group(record.group_id)

        def write(state: OffsetsState, writer: OffsetsWriter) -> None:
            ended = list(state.known(group).consumer) if ends_consumer else []
            keys = [consumer_key(group, key) for key in ended]
            writer.write([*keys, group_key(group)], [*[None] * len(keys), group_value(record)])
            state.put_group(group, record)
            for key in ended:
                state.put_consumer(group, key, None)

        self._writing(group, write)


def _ended(cached: CachedPartition, producer_id: int, committed: bool) -> bool:
    """Apply the outcome of a producer's transaction to a partition in memory; return False if the partition's
    lock could not be acquired in time, else True.
    """
    with suppress(OffsetNotAvailableError), cached.lock:
        # A partition that is not loaded yet gets the outcome later: its load reads the transaction's marker.
        if cached.state is not None:
            cached.state.end(producer_id, committed)
        return True
    return False


def forget_topic(store: Store, topic: str) -> None:
    """Delete the offsets of a deleted topic, so that a later topic of this name begins without offsets. An
    error is only logged.
    """
    part = existing(store, GroupOffsets) if topic == TOPIC else shared(store, GroupOffsets)
    try:
        if part is not None:
            part.topic_deleted(topic)
    except SegstoreError as error:
        log.warning("%s: deleted, but what groups have committed for it is still there: %s", topic, error)
