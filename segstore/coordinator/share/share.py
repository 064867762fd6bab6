"""`ShareCoordinator`: grants records to the members of a store's share groups, and applies the members'
acknowledgements (KIP-932; Kafka: SharePartitionManager). A store has one ShareCoordinator.

On disk: reads logs; writes the state of acknowledged records through `state_log`, and dead letters through
`dead_letters`. Threads: any; a thread waits for the disk work of another thread only in a write of state. No
method waits for records: a caller that got none calls `acquire` again after a call of the `wake` that it has
registered by `on_available`, or after `Store.publications` has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.metrics import MonotonicMs, monotonic_ms
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import AckBatch, Limits, Outcome
from segstore.coordinator.share.dead_letters import DeadLetterQueue
from segstore.coordinator.share.effects import ShareEffects
from segstore.coordinator.share.grants import COMMITTED, AcquiredPartition, AcquireTerms, ShareFetch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.locks import LockTimer
from segstore.coordinator.share.metrics import ShareMetrics
from segstore.coordinator.share.partitions import IDLE_MS, ShareLeader, ShareLeaders, ShareTurn
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.share.waiters import ShareWaiter, ShareWaiters, Wake
from segstore.coordinator.shared import shared
from segstore.errors import NotLeaderOrFollowerError, SegstoreError, UnknownTopicOrPartitionError
from segstore.storage.producers.aborted_transactions import MOST_SEARCHED
from segstore.storage.store.stats import Family
from segstore.storage.store.store import Store

__all__ = ["AcquireTerms", "AcquiredPartition", "ShareCoordinator", "ShareOffsets"]

DEFAULT_TERMS = AcquireTerms()
Event = Callable[[SharePartition], Outcome]
At = tuple[str, int]
"""A partition, as topic id and partition number."""


class ShareOffsets(NamedTuple):
    """The durable state of a share partition as tools show it (rule Q97 of docs/queue-rules.md): the start
    offset, the leader epoch, and the lag. A start offset or lag of -1 is not known.
    """

    start: int
    leader_epoch: int
    lag: int


class ShareCoordinator:
    """The share coordinator of a store; `shared(store, ShareCoordinator)` returns it."""

    def __init__(self, store: Store, clock: MonotonicMs = monotonic_ms) -> None:
        self._store, self._context, self._clock = store, store.context, clock
        self._settings = group_settings(store)
        self._states = shared(store, StateLog)
        self._waiters = ShareWaiters()
        self._metrics = ShareMetrics()
        self._letters = DeadLetterQueue(store, self._settings, self._metrics)
        self._leaders = ShareLeaders(
            store, self._states, self._settings, clock, self._metrics, self._letters.add
        )
        self._timer = LockTimer(self._context.scheduler, clock, self._run_out)
        self._effects = ShareEffects(
            self._states,
            self._settings,
            clock,
            self._leaders,
            self._waiters,
            self._timer,
            self._letters.add,
        )
        self._letters.settle = self._effects.settle
        self._closed = False
        # This is a weak reference, because the scheduler must not keep an unused store alive.
        me = weakref.ref(self)
        self._context.scheduler.every(IDLE_MS / 1000, partial(_upkeep, me))
        store.on_topic_deleted(self._topic_deleted)
        store._families.append(self.metrics)

    # --- fetches -------------------------------------------------------------------------------

    def acquire(
        self, group: str, member: str, wanted: Sequence[At], terms: AcquireTerms = DEFAULT_TERMS
    ) -> list[AcquiredPartition]:
        """Acquire records of the `wanted` partitions for a member, in the order of `wanted`. Return the
        partitions that have acquired records, or an error. Does not wait for records.

        Errors of a partition: UnknownTopicOrPartitionError, OffsetNotAvailableError, StorageError,
        CorruptRecordError, and IllegalStateError if the partition is not initialised for the group. Raises
        StoreClosedError, ForkedError.
        """
        self._context.check_writable()
        if terms.max_records <= 0 or terms.max_bytes <= 0:
            return []
        settings = self._settings.share(group)
        fetch = ShareFetch(
            self._context, self._leaders, self._effects, self._clock, settings, group, member, terms
        )
        return fetch.acquire(wanted)

    def cancel(self, acquisition: AcquiredPartition) -> None:
        """Undo an acquisition, because the answer with its records can't be sent: the records become
        available with the delivery count that they had before the acquisition (rule Q94).
        """
        leader = acquisition.leader
        if leader is not None:
            self._change([leader], lambda core: core.ungrant(acquisition.token))

    def lock_timeout_ms(self, group: str) -> int:
        """Return the duration in ms of the locks that `acquire` takes now."""
        return int(self._settings.share_limits(group).lock_ms)

    def on_available(self, group: str, wake: Wake) -> ShareWaiter:
        """Register `wake`. Any thread calls it when a group's records become available again, or when the
        limit of offsets in flight allows one of the group's share partitions to grant new records again. An
        append does not call `wake`: the store's publications signal appends. `wake` must not wait or raise.
        """
        return self._waiters.add(group, wake)

    def may_wait(self, group: str, partitions: Iterable[At]) -> bool:
        """Return whether `acquire` or `acknowledge` of these partitions may wait for disks or replicas: to
        load a partition or its state, to write the state, or to search the log for aborted transactions.
        Return True also if the check itself fails.
        """
        try:
            return any(self._may_wait(self._leaders.get(group, *at)) for at in partitions)
        except SegstoreError:
            return True  # `acquire` or `acknowledge` will run into this error, and report it.

    def _may_wait(self, leader: ShareLeader | None) -> bool:
        if leader is None or self._states.write_may_wait(leader.key):
            return True
        if self._settings.share_isolation(leader.key.group) != COMMITTED:
            return False
        return leader.log.aborted_transactions.unread(leader.log.view) > MOST_SEARCHED

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledge(
        self, group: str, member: str, batches: Mapping[At, Sequence[AckBatch]]
    ) -> dict[At, SegstoreError | None]:
        """Apply a member's acknowledgements. Return a dict from each partition to its error, or to None once
        its acknowledgements are in the log. If one acknowledgement of a partition is invalid, only the
        renewals before it are applied, and the partition's other acknowledgements are refused (rule Q31). The
        states of all partitions are written together.

        Errors of a partition: InvalidRecordStateError and InvalidRequestError for an invalid
        acknowledgement; UnknownTopicOrPartitionError if the share partition is not in memory;
        NotLeaderOrFollowerError if the share partition was fenced; StorageError and the other errors of
        `StateLog.write`, after which the records are still locked by the member. Raises StoreClosedError,
        ForkedError.
        """
        self._context.check_writable()
        limits, now = self._settings.share(group).limits, self._clock()
        found: dict[At, SegstoreError | None] = {}
        turn = ShareTurn()
        try:
            for at, acks in batches.items():
                leader = self._leaders.get(group, *at)
                if leader is None:
                    found[at] = _unknown(group, at)
                    continue
                leader.used = now
                try:
                    leader.change(turn, lambda core: core.acknowledge(member, acks, now, limits))  # noqa: B023
                except SegstoreError as error:
                    found[at] = error
                else:
                    found[at] = None
                    self._metrics.acknowledged(acks)
            for key, failure in self._effects.settle(turn).items():
                found[key.topic_id, key.partition] = failure
        finally:
            turn.abandon()
        return found

    def release(self, group: str, member: str, partitions: Iterable[At]) -> None:
        """Release all records that a member has acquired in the partitions, because the member's session
        was closed (rule Q35). If a release can't be written, the error is logged, and the locks expire later.
        """
        self._context.check_writable()
        limits, now = self._settings.share_limits(group), self._clock()
        event = partial(_release, member=member, now=now, limits=limits)
        found = (self._leaders.get(group, *at) for at in partitions)
        self._change([leader for leader in found if leader is not None], event)

    # --- removal of share partitions ---------------------------------------------------------------

    def fence(self, keys: Iterable[ShareKey]) -> None:
        """Drop share partitions from memory, because another request has changed or deleted their states.
        Their acquisition locks are lost. Acknowledgements that are under way get NotLeaderOrFollowerError.
        """
        for group in self._leaders.fence(keys):
            self._waiters.wake(group)

    def drop_group(self, group: str) -> None:
        """Drop a group's share partitions from memory, because its last session was closed (rule Q60)."""
        self._leaders.fence_group(group)

    def drop_idle(self) -> None:
        """Drop idle share partitions, which have no locks, from memory. The scheduler calls this every
        IDLE_MS.
        """
        self._leaders.drop_idle()

    def _topic_deleted(self, _: Store, topic: str, topic_id: str) -> None:
        for group in self._leaders.fence_topic(topic_id):
            self._waiters.wake(group)

    # --- queries ---------------------------------------------------------------------------------

    def offsets(self, group: str, keys: Iterable[ShareKey] | None = None) -> dict[ShareKey, ShareOffsets]:
        """Return the durable start offset, the leader epoch and the lag of share partitions (Kafka:
        ReadShareGroupStateSummary). If `keys` is None, these are all initialised share partitions of the
        group. The start offset of a share partition that is not initialised is -1.
        """
        wanted = self._states.keys_of(group) if keys is None else keys
        return {key: self._offsets(key) for key in wanted}

    def _offsets(self, key: ShareKey) -> ShareOffsets:
        state = self._states.read(key)
        if state is None:
            return ShareOffsets(-1, 0, -1)
        lag = -1
        if state.start >= 0 and state.complete >= 0:
            try:
                source = self._store.partition(self._leaders.topic_of(key), key.partition)
                lag = source.high_watermark - state.start - state.complete
            except SegstoreError:
                lag = -1  # The topic was deleted, or can't be read.
        return ShareOffsets(state.start, state.leader_epoch, lag)

    def metrics(self) -> list[Family]:
        """Return Kafka's metrics of share groups, which are part of `Store.metrics`."""
        return self._metrics.families(self._leaders.all())

    # --- upkeep ------------------------------------------------------------------------------------

    def _run_out(self, leaders: Sequence[ShareLeader]) -> None:
        if not self._closed:
            self._effects.expire(leaders)

    def _change(self, leaders: Iterable[ShareLeader], event: Event) -> None:
        """Call `event` for each share partition, and carry out the outcomes; write errors are not raised."""
        turn = ShareTurn()
        try:
            for leader in leaders:
                # A fenced share partition has no locks any more, so it does not need the event.
                with suppress(NotLeaderOrFollowerError):
                    leader.change(turn, event)
            self._effects.settle(turn)
        finally:
            turn.abandon()

    def close(self) -> None:
        """Drop all share partitions and their locks from memory, and wake waiting fetches, because the store
        is being closed. Dead letters that can't be copied now are copied after the next open of the store.
        """
        self._closed = True
        self._timer.stop()
        self._letters.close()
        self._leaders.fence([leader.key for leader in self._leaders.all()])
        self._waiters.wake_all()


def _release(core: SharePartition, member: str, now: float, limits: Limits) -> Outcome:
    return core.release(member, now, limits)


def _unknown(group: str, at: At) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(
        f"share partition {ShareKey(group, *at)}: nothing of it was acquired since this process began"
    )


def _upkeep(ref: Callable[[], ShareCoordinator | None]) -> None:
    """Call `drop_idle` for the scheduler, if the coordinator still exists."""
    coordinator = ref()
    if coordinator is not None:
        coordinator.drop_idle()
