"""`GroupOffsets`: what groups have committed, and their membership as it is kept. A store's shared part.

On disk: owner of the topic `__consumer_offsets` (see `offsets_topic`, `schemas`). A commit is one
record batch of one append: a crash keeps all of it or nothing.
Threads: any; one lock for each partition of the topic, under which commits are written one after the other.
What is in memory changes after the log did. A partition is read when one of its groups is first asked for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from segstore.client.groups.offsets_expiry import EmptySince, expired
from segstore.client.groups.offsets_load import load
from segstore.client.groups.offsets_state import GroupState, Held, OffsetsState
from segstore.client.groups.offsets_topic import TOPIC, OffsetsTopic
from segstore.client.groups.offsets_write import Writer, check_group, check_offsets
from segstore.client.groups.schemas import (
    Commit,
    GroupRecord,
    MemberRecord,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from segstore.client.shared import existing, shared
from segstore.client.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import SegstoreError
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.records.encoded import PLAIN
from segstore.storage.store import Store

log = logging.getLogger("segstore")

__all__ = ["TOPIC", "GroupOffsets", "GroupRecord", "MemberRecord"]

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_MINUTE_MS = 60_000


class _Partition:
    """A partition of the topic, and what was read of it; `state` is None before that."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.state: OffsetsState | None = None


class GroupOffsets:
    """Ask for it with `shared(store, GroupOffsets)`."""

    def __init__(self, store: Store) -> None:
        store._context.check_writable()
        self._store, self._topic = store, OffsetsTopic(store)
        self._config, self._clock = store._writer().config, store._context.clock
        self._lock = threading.Lock()
        self._partitions: dict[int, _Partition] = {}
        self._opened_ms, self._closed = self._clock(), False
        self.empty_since: EmptySince = self._empty_since
        """Who knows the members tells by this since when a group has none: the group coordinator."""
        interval = self._config.offsets_retention_check_interval_ms / 1000
        store._context.scheduler.every(interval, self._expire_in_background)

    def close(self) -> None:
        """The store is being closed: nothing expires any more."""
        self._closed = True

    # --- which partition ------------------------------------------------------------------------

    def partition_for(self, group: str) -> int:
        """The partition of `__consumer_offsets` that holds the group's records. InvalidGroupIdError."""
        return self._topic.partition_for(check_group(group))

    @contextmanager
    def _held(self, partition: int) -> Iterator[OffsetsState]:
        """What a partition says, with its lock held."""
        with self._lock:
            held = self._partitions.setdefault(partition, _Partition())
        with held.lock:
            if held.state is None:
                source = self._topic.log(partition)
                if source is None:
                    # Nothing is kept of what is not there: it may come with other partitions.
                    yield OffsetsState()
                    return
                held.state = load(source)
            yield held.state

    def _all(self) -> Iterator[OffsetsState]:
        for partition in self._topic.ids:
            with self._held(partition) as state:
                yield state

    @contextmanager
    def _writing(self, group: str, checked: bool = True) -> Iterator[tuple[OffsetsState, Writer]]:
        """The state and a writer of the group's partition; the topic is made where it is not there."""
        target = self._topic.writable(group)
        with self._held(target.partition) as state:
            if checked:
                state.classic(group)
            yield state, Writer(target, self._config.offsets_topic_compression_codec, self._clock())

    # --- offsets ------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit all of `offsets`, or none: durable as the topic's `flush.messages` says.

        InvalidGroupIdError, InvalidArgumentError, InvalidTypeError, OffsetMetadataTooLargeError,
        UnknownTopicOrPartitionError, RecordTooLargeError (they make no one batch), UnsupportedVersionError,
        StorageError: nothing was committed.
        """
        self._commit(group, offsets, PLAIN)

    def commit_transactional(
        self, group: str, offsets: Offsets, producer_id: int, producer_epoch: int
    ) -> None:
        """As `commit`, within the producer's transaction: they count when `complete` says so.

        InvalidProducerEpochError too.
        """
        self._commit(group, offsets, Template(TRANSACTIONAL_FLAG, producer_id, producer_epoch, 0))

    def _commit(self, group: str, offsets: Offsets, template: Template) -> None:
        check_group(group)
        known = check_offsets(offsets, self._topic.check_topic, self._config.offset_metadata_max_bytes)
        if not known:
            return
        with self._writing(group) as (state, writer):
            keys = [offset_key(group, tp) for tp in known]
            first = writer.write(keys, [offset_value(o, writer.now) for o in known.values()], template)
            for at, (tp, offset) in enumerate(known.items(), first):
                commit = Commit(offset, writer.now)
                if template is PLAIN:
                    state.put_offset(group, tp, commit, at)
                else:
                    state.put_pending(template.producer_id, group, tp, commit, at)

    def complete(self, producer_id: int, committed: bool) -> None:
        """The producer's transaction was ended, its markers are written: its offsets count, or never will."""
        with self._lock:
            read = list(self._partitions.values())
        for held in read:
            with held.lock:
                # What was not read yet will be found with its marker.
                if held.state is not None:
                    held.state.end(producer_id, committed)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of those partitions that have one, by default of all.

        InvalidGroupIdError, UnsupportedVersionError, CorruptRecordError.
        """
        with self._held(self.partition_for(group)) as state:
            held = state.usable(group).offsets
            wanted = held if partitions is None else [tp for tp in partitions if tp in held]
            return {tp: held[tp].commit.offset for tp in wanted}

    def pending(self, group: str) -> set[TopicPartition]:
        """Those that open transactions are about to commit (Kafka: unstable offsets)."""
        with self._held(self.partition_for(group)) as state:
            return state.pending_of(group)

    def delete(self, group: str, partitions: Collection[TopicPartition] | None = None) -> set[TopicPartition]:
        """Forget those offsets, by default all and the group itself: which there were. Errors as `commit`."""
        if self.partition_for(group) not in self._topic.ids:
            return set()
        with self._writing(group) as (state, writer):
            held, pending = state.usable(group), state.pending_of(group)
            there = set(held.offsets) | pending
            gone = there if partitions is None else there & set(partitions)
            self._drop(state, writer, group, gone, whole=partitions is None and held.record is not None)
        return gone

    def _drop(
        self,
        state: OffsetsState,
        writer: Writer,
        group: str,
        gone: Collection[TopicPartition],
        whole: bool,
    ) -> None:
        """Write tombstones; `whole`: the group's own too."""
        keys = [offset_key(group, tp) for tp in sorted(gone)] + [group_key(group)] * whole
        if not keys:
            return
        first = writer.write(keys, [None] * len(keys))
        for at, tp in enumerate(sorted(gone), first):
            state.drop_offset(group, tp, at)
        if whole:
            state.put_group(group, None)

    # --- groups -------------------------------------------------------------------------------

    def groups(self) -> set[str]:
        """All that have offsets, pending ones too, or a membership that is kept."""
        found: set[str] = set()
        for state in self._all():
            found |= state.names()
        return found

    def group(self, group_id: str) -> GroupRecord | None:
        """The membership as it was written last. UnsupportedVersionError."""
        with self._held(self.partition_for(group_id)) as state:
            return state.classic(group_id).record

    def write_group(self, record: GroupRecord) -> None:
        """Keep a membership. Errors as `commit`."""
        group = check_group(record.group_id)
        with self._writing(group) as (state, writer):
            writer.write([group_key(group)], [group_value(record)])
            state.put_group(group, record)

    # --- expiry ---------------------------------------------------------------------------------

    def expire(
        self, now_ms: int | None = None, is_empty: EmptySince | None = None
    ) -> dict[str, set[TopicPartition]]:
        """Forget what outlived `offsets.retention.minutes`: which, by group.

        A group that has nothing left, and no members, goes too.

        `is_empty(group)`: since when it has no members (ms since the epoch, -1: not known), None where it has
        some; by default `empty_since`. StorageError.
        """
        now = self._clock() if now_ms is None else now_ms
        tell = is_empty or self.empty_since
        gone: dict[str, set[TopicPartition]] = {}
        for partition in self._topic.ids:
            with self._held(partition) as state:
                found = {
                    name: held for name, held in state.groups.items() if self._may_expire(name, partition)
                }
                seen = {name: (held.record, set(held.offsets.values())) for name, held in found.items()}
            # Without the lock: whoever tells may hold one of its own under which it asks for offsets.
            since = {name: tell(name) for name in seen}
            with self._held(partition) as state:
                for name, before in seen.items():
                    old = self._expire_group(state, name, since[name], now, *before)
                    gone |= {name: old} if old else {}
        return gone

    def _may_expire(self, group: str, partition: int) -> bool:
        """A copy of a broker's directory may hold groups whose place is not known."""
        return self._topic.partition_for(group) == partition

    def _expire_group(
        self,
        state: OffsetsState,
        group: str,
        since: int | None,
        now: int,
        record: GroupRecord | None,
        seen: set[Held],
    ) -> set[TopicPartition]:
        """What has come since it was `seen` stays."""
        held = state.groups.get(group)
        if held is None or held.refused or held.foreign or held.record is not record:
            return set()
        retention = self._config.offsets_retention_minutes * _MINUTE_MS
        pending = state.pending_of(group)
        old = {tp for tp in expired(held, since, now, retention) if held.offsets[tp] in seen} - pending
        nothing_left = len(old) == len(held.offsets) and not pending
        whole = nothing_left and since is not None and record is not None
        if old or whole:
            with self._writing(group) as (_, writer):
                self._drop(state, writer, group, old, whole)
        return old

    def _expire_in_background(self) -> None:
        if not self._closed and not self._store._context.closed:
            self.expire()

    def _empty_since(self, group: str) -> int | None:
        """Where nobody knows of members: those that are kept ended with the last process, at the latest."""
        with self._held(self._topic.partition_for(group)) as state:
            record = state.groups.get(group, GroupState()).record
        if record is None:
            return -1
        return self._opened_ms if record.members else record.state_timestamp_ms

    def topic_deleted(self, topic: str) -> None:
        """Forget the offsets of a topic that is no more (Kafka: onPartitionsDeleted). StorageError."""
        if topic == TOPIC:
            with self._lock:
                self._partitions.clear()
            return
        for partition in self._topic.ids:
            with self._held(partition) as state:
                for group in state.names():
                    if self._topic.partition_for(group) == partition:
                        self._forget_topic(state, group, topic)

    def _forget_topic(self, state: OffsetsState, group: str, topic: str) -> None:
        held = state.groups.get(group, GroupState()).offsets
        gone = {tp for tp in {*held, *state.pending_of(group)} if tp.topic == topic}
        if gone:
            with self._writing(group, checked=False) as (_, writer):
                self._drop(state, writer, group, gone, whole=False)


def _after_delete(store: Store, topic: str) -> None:
    """A topic of that name that is made later begins without what was committed for this one."""
    if topic != TOPIC and TOPIC not in store.topics():
        return
    part = existing(store, GroupOffsets) if topic == TOPIC else shared(store, GroupOffsets)
    try:
        if part is not None:
            part.topic_deleted(topic)
    except SegstoreError as error:
        log.warning("%s: deleted, but what groups have committed for it is still there: %s", topic, error)


Store._after_delete.append(_after_delete)
