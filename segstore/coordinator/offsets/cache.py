"""`OffsetsCache`: `__consumer_offsets` in memory. Each partition is read when one of its groups is first
asked for.

On disk: records, and tombstones, of the topic. Threads: any. Each partition of the topic has a lock, under
which it is read and written. Memory changes after the log did. Nobody waits under the lock until a replica
leads, or shows what was committed: the caller gets OffsetNotAvailableError, and may ask again (Kafka:
COORDINATOR_LOAD_IN_PROGRESS). A write waits there for the replicas, at most offsets.commit.timeout.ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

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
    """A partition of the topic and what was read from it; `state` is None before it was read. `is_sure`:
    readers see all that was appended. An append that timed out, or was interrupted, may be committed later.
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
    """The part of `GroupOffsets` that reads, caches and locks."""

    def __init__(self, store: Store) -> None:
        store.context.check_writable()
        self._store, self._topic = store, OffsetsTopic(store)
        self._config, self._clock = store.writer().config, store.context.clock
        self._lock = Mutex()
        self._partitions: dict[int, CachedPartition] = {}

    def partition_for(self, group: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group's records. Raises
        InvalidGroupIdError.
        """
        return self._topic.partition_for(check_group(group))

    def _held(self, partition: int, look: Callable[[OffsetsState], T]) -> T:
        """Return what `look` finds in a partition's state, under the partition's lock. (A generator that is
        a context manager would keep the lock as long as the exception of an interrupt has its frames.)
        """
        held = self._partition(partition)
        with held.lock:
            return look(self._state(held))

    def _partition(self, number: int) -> CachedPartition:
        with self._lock:
            return self._partitions.setdefault(number, CachedPartition(number))

    def _state(self, held: CachedPartition) -> OffsetsState:
        if held.state is None:
            source = self._topic.log(held.number)
            if source is None:
                # No state is kept of a missing topic: it may be created with another number of partitions.
                return OffsetsState()
            source.check_committed()
            held.is_sure = held.is_sure or source.shows_all  # before it is loaded
            state = load(source)
            if not held.is_sure:
                return state  # what is committed later must be read then
            held.state = state
        return held.state

    def check_decided(self, group: str) -> None:
        """Raise OffsetNotAvailableError where a write to the group's partition has failed, and may be
        committed later all the same.
        """
        held = self._partition(self.partition_for(group))
        with held.lock:
            self._check_decided(held, group)

    def _check_decided(self, held: CachedPartition, group: str) -> None:
        source = None if held.is_sure else self._topic.log(held.number)
        if source is not None and not source.shows_all:  # it is asked often: nothing is loaded for it
            raise OffsetNotAvailableError(
                f"group {group!r}: it is not known yet whether the last write of {TOPIC}-{held.number} "
                "is committed"
            )

    def _writing(
        self, group: str, write: Callable[[OffsetsState, OffsetsWriter], T], checked: bool = True
    ) -> T:
        """Call `write` with the state and a writer of the group's partition; the topic is created where it
        is missing. The partition is read anew where its log may have more than memory: an interrupt has ended
        `write`, or its records are not committed yet.
        """
        target = self._topic.writable(group)
        held = self._partition(target.partition)
        with held.lock:
            self._check_decided(held, group)  # nothing after an undecided write is committed before it
            state = self._state(held)
            if checked:
                state.known(group)
            known, was_sure = held.state, held.is_sure
            held.state, held.is_sure = None, False
            try:
                found = write(state, OffsetsWriter(target, self._config, self._clock()))
            except SegstoreError as error:
                if not may_be_written(error):
                    held.state, held.is_sure = known, was_sure
                raise
            # What is committed by now has all that was appended before below it.
            held.state, held.is_sure = known, True
            return found

    def _drop(
        self,
        state: OffsetsState,
        writer: OffsetsWriter,
        group: str,
        gone: Collection[TopicPartition],
        whole: bool,
    ) -> None:
        """Write tombstones of offsets; with `whole` those of the group's membership too."""
        held = state.groups.get(group, GroupState())
        members = list(held.consumer) if whole else []
        shares = list(held.share) if whole else []
        is_classic = whole and held.record is not None
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
