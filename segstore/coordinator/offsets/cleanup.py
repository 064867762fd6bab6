"""What becomes of offsets that nobody wants: those of groups long empty, and of topics that are gone.

On disk: tombstones in `__consumer_offsets`. Threads: any; the store's scheduler looks from time to time.
"""

from __future__ import annotations

import weakref
from functools import partial

from segstore.coordinator.offsets.cache import OffsetsCache
from segstore.coordinator.offsets.expiry import EmptySince, expired
from segstore.coordinator.offsets.schema import GroupRecord
from segstore.coordinator.offsets.state import GroupState, Held, OffsetsState
from segstore.coordinator.offsets.topic import TOPIC
from segstore.coordinator.offsets.write import Writer
from segstore.coordinator.structs import TopicPartition
from segstore.storage.store.store import Store

_MINUTE_MS = 60_000


class OffsetsCleanup(OffsetsCache):
    """The part of `GroupOffsets` that forgets."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._opened_ms, self._closed = self._clock(), False
        self.empty_since: EmptySince = self._empty_since
        """Who knows the members tells by this since when a group has none: the group coordinator."""
        interval = self._config.offsets_retention_check_interval_ms / 1000
        me = weakref.ref(self)  # the scheduler must not keep a store that nobody has any more

        def expire() -> None:
            cleanup = me()
            if cleanup is not None:
                cleanup._expire_in_background()

        store._context.scheduler.every(interval, expire)

    def close(self) -> None:
        """The store is being closed: nothing expires any more."""
        self._closed = True

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
            seen = self._held(partition, partial(self._seen, partition))
            # Without the lock: whoever tells may hold one of its own under which it asks for offsets.
            since = {name: tell(name) for name in seen}
            for name, before in seen.items():
                old = self._held(partition, partial(self._expire_group, name, since[name], now, *before))
                gone |= {name: old} if old else {}
        return gone

    def _seen(self, partition: int, state: OffsetsState) -> dict[str, tuple[GroupRecord | None, set[Held]]]:
        found = {name: held for name, held in state.groups.items() if self._may_expire(name, partition)}
        return {name: (held.record, set(held.offsets.values())) for name, held in found.items()}

    def _may_expire(self, group: str, partition: int) -> bool:
        """A copy of a broker's directory may hold groups whose place is not known."""
        return self._topic.partition_for(group) == partition

    def _expire_group(
        self,
        group: str,
        since: int | None,
        now: int,
        record: GroupRecord | None,
        seen: set[Held],
        state: OffsetsState,
    ) -> set[TopicPartition]:
        """What has come since it was `seen` stays."""
        held = state.groups.get(group)
        if held is None or held.refused or held.foreign or held.record is not record:
            return set()
        retention = self._config.offsets_retention_minutes * _MINUTE_MS
        pending = state.pending_of(group)
        old = {tp for tp in expired(held, since, now, retention) if held.offsets[tp] in seen} - pending
        old |= held.offsets.keys() - self._topic.held(held.offsets).keys()  # of topics that are gone
        nothing_left = len(old) == len(held.offsets) and not pending
        whole = nothing_left and since is not None and record is not None
        if old or whole:
            self._writing(group, lambda state, writer: self._drop(state, writer, group, old, whole))
        return old

    def _expire_in_background(self) -> None:
        if not self._closed and not self._store._context.closed:
            self.expire()

    def _empty_since(self, group: str) -> int | None:
        """Where nobody knows of members: those that are kept ended with the last process, at the latest."""
        record = self._held(
            self._topic.partition_for(group), lambda state: state.groups.get(group, GroupState()).record
        )
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
            self._held(partition, partial(self._forget_topic, partition, topic))

    def _forget_topic(self, partition: int, topic: str, state: OffsetsState) -> None:
        for group in state.names():
            held = state.groups.get(group, GroupState()).offsets
            gone = {tp for tp in {*held, *state.pending_of(group)} if tp.topic == topic}
            if gone and self._topic.partition_for(group) == partition:
                self._writing(group, partial(self._drop_from, group, gone), checked=False)

    def _drop_from(self, group: str, gone: set[TopicPartition], state: OffsetsState, writer: Writer) -> None:
        self._drop(state, writer, group, gone, whole=False)
