"""`OffsetsCache`: `__consumer_offsets` in memory. A partition is loaded at the first request to one of its
groups.

On disk: writes records and tombstones of the topic. Threads: any. Each partition of the topic has a lock for
its reads and writes. A change is appended to the log before memory is changed. If no replica leads, or if the
leader does not show all committed records yet, a request raises OffsetNotAvailableError (Kafka:
COORDINATOR_LOAD_IN_PROGRESS), and the caller may repeat it. A write holds the lock while it waits for the
replicas, at most for offsets.commit.timeout.ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from segstore.coordinator.loader import committed_now
from segstore.coordinator.offsets.consumer_schema import consumer_key
from segstore.coordinator.offsets.schema import group_key, offset_key
from segstore.coordinator.offsets.share_schema import share_key
from segstore.coordinator.offsets.state import GroupState, OffsetsState, load
from segstore.coordinator.offsets.topic import TOPIC, OffsetsTopic, OffsetsWriter, check_group
from segstore.coordinator.retriable import may_be_written
from segstore.coordinator.structs import TopicPartition
from segstore.errors import OffsetNotAvailableError, SegstoreError
from segstore.mutex import BoundedLock, Mutex
from segstore.storage.store.store import Store

T = TypeVar("T")


class CachedPartition:
    """A partition of the topic in memory; `state` is None until the partition is loaded. If an append timed
    out or was interrupted, its records may still be committed: `is_sure` is then False until readers see all
    records.
    """

    def __init__(self, number: int) -> None:
        self.number, self.lock = number, BoundedLock(self._late)
        self.state: OffsetsState | None = None
        self.is_sure = True

    def _late(self) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(
            f"{TOPIC}-{self.number} is being read or written, which takes long: replicas, or a disk, do not "
            "answer"
        )


class OffsetsCache:
    """The part of `GroupOffsets` that has the loaded partitions and their locks."""

    def __init__(self, store: Store) -> None:
        store.context.check_writable()
        self._store, self._topic = store, OffsetsTopic(store)
        self._config, self._clock = store.writer().config, store.context.clock
        self._lock = Mutex()
        self._partitions: dict[int, CachedPartition] = {}

    def partition_for(self, group: str) -> int:
        """Return the partition of `__consumer_offsets` that the group's records belong to. Raises
        InvalidGroupIdError.
        """
        return self._topic.partition_for(check_group(group))

    def _look_up(self, partition: int, look: Callable[[OffsetsState], T]) -> T:
        """Call `look` with a partition's state, under the partition's lock, and return the result
        of `look`.
        """
        cached = self._partition(partition)
        # No generator-based context manager holds the lock: after an interrupt the lock would stay locked,
        # because the exception keeps the generator's frame alive.
        with cached.lock:
            return look(self._state(cached))

    def _partition(self, number: int) -> CachedPartition:
        with self._lock:
            return self._partitions.setdefault(number, CachedPartition(number))

    def _state(self, cached: CachedPartition) -> OffsetsState:
        if cached.state is None:
            source = self._topic.log(cached.number)
            if source is None:
                # The state of a missing topic is not cached, because the number of its partitions is not
                # known yet.
                return OffsetsState()
            shows_all, state = committed_now(source, partial(load, source))
            cached.is_sure = cached.is_sure or shows_all
            if not cached.is_sure:
                return state  # the state is not cached, because more records may be committed later
            cached.state = state
        return cached.state

    def check_decided(self, group: str) -> None:
        """Raise OffsetNotAvailableError if a write to the group's partition has failed, and may still be
        committed.
        """
        cached = self._partition(self.partition_for(group))
        with cached.lock:
            self._check_decided(cached, group)

    def _check_decided(self, cached: CachedPartition, group: str) -> None:
        source = None if cached.is_sure else self._topic.log(cached.number)
        if source is not None and not source.shows_all:
            raise OffsetNotAvailableError(
                f"group {group!r}: it is not known yet whether the last write of {TOPIC}-{cached.number} "
                "is committed"
            )

    def _writing(
        self, group: str, write: Callable[[OffsetsState, OffsetsWriter], T], checked: bool = True
    ) -> T:
        """Call `write` with the state of the group's partition and a writer of this partition, and return the
        result of `write`. A missing topic is created. If `checked`, and the group has a record of a
        newer version or of an unknown group protocol, raise UnsupportedVersionError. If the outcome of
        `write` is unknown, the partition is loaded again later, because its log may have records that memory
        lacks.
        """
        target = self._topic.writable(group)
        cached = self._partition(target.partition)
        with cached.lock:
            self._check_decided(cached, group)  # no write may follow a write whose outcome is unknown
            state = self._state(cached)
            if checked:
                state.known(group)
            known, was_sure = cached.state, cached.is_sure
            cached.state, cached.is_sure = None, False
            try:
                found = write(state, OffsetsWriter(target, self._config, self._clock()))
            except SegstoreError as error:
                if not may_be_written(error):
                    cached.state, cached.is_sure = known, was_sure
                raise
            # The new records are committed, so all records that were appended before them are committed too.
            cached.state, cached.is_sure = known, True
            return found

    def _drop(
        self,
        state: OffsetsState,
        writer: OffsetsWriter,
        group: str,
        gone: Collection[TopicPartition],
        whole: bool,
    ) -> None:
        """Write tombstones for the offsets of `gone`. If `whole`, also write tombstones for the group's
        members and its group record.
        """
        group_state = state.groups.get(group, GroupState())
        members = list(group_state.consumer) if whole else []
        shares = list(group_state.share) if whole else []
        is_classic = whole and group_state.record is not None
        keys = [offset_key(group, tp) for tp in sorted(gone)] + [group_key(group)] * is_classic
        keys += [consumer_key(group, each) for each in members]
        keys += [share_key(group, each) for each in shares]
        if not keys:
            return
        first = writer.write(keys, [None] * len(keys))
        for at, tp in enumerate(sorted(gone), first):
            state.drop_offset(group, tp, at)
        if is_classic:
            state.put_group(group, None)
        for each in members:
            state.put_consumer(group, each, None)
        for share in shares:
            state.put_share(group, share, None)
