"""`ShareLeaders`: the share partitions that this process leads, in memory (Kafka: SharePartitionCache,
SharePartition.maybeInitialize).

On disk: reads the durable states, and writes the first start offset of each share partition, through
`state_log`. Threads: any. Each share partition has a lock for calls of its core (`SharePartition`); a thread
that has this lock waits for nothing. If an interrupt or an error leaves a share partition half changed, it is
fenced, and the next request loads it again; only its acquisition locks are lost, as after a crash.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from segstore.config.groups import EARLIEST, LATEST, AutoReset
from segstore.coordinator.group_settings import GroupSettings
from segstore.coordinator.metrics import MonotonicMs
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.stored import CorruptStateError
from segstore.coordinator.share.core.values import DeadLetter, Durable, Limits, Outcome
from segstore.coordinator.share.cut_logs import CutLogs
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.metrics import ShareMetrics
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.shared import existing
from segstore.errors import (
    IllegalStateError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    SegstoreError,
    UnknownTopicOrPartitionError,
    copy_of,
)
from segstore.integers import INT64_MAX
from segstore.logger import Logger
from segstore.mutex import BoundedLock, Mutex
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store
from segstore.weak_values import WeakValues

T = TypeVar("T")
IDLE_MS = 60_000
"""A share partition without locks is dropped from memory after this time without a request, in ms."""
log = Logger("segstore")


class ShareTurn:
    """The outcomes that one call has collected from share partitions: `due` must still be carried out,
    `under_way` are being carried out. If a turn is garbage-collected before its writes have completed,
    because an interrupt has ended the call, the share partitions of these writes are fenced: the next
    request loads them again.
    """

    __slots__ = ("__weakref__", "due", "under_way")

    def __init__(self) -> None:
        self.due: list[tuple[ShareLeader, Outcome]] = []
        self.under_way: list[tuple[ShareLeader, Outcome]] = []

    def abandon(self) -> None:
        """Fence the share partitions whose writes have not completed, or whose dead letters were not queued:
        the next request loads their states from the log.
        """
        for leader, outcome in (*self.due, *self.under_way):
            if outcome.write is not None or outcome.dead_letters:
                leader.is_fenced = True


class ShareLeader:
    """A share partition in memory, and its lock. If `is_fenced` is set, this object must not be used any
    more: the next request loads the share partition into a new object.

    `fetcher` is a weak reference to the fetch that has the fetch lock; if that fetch is garbage-collected,
    the fetch lock is free. `is_missed` is set if another fetch has skipped this share partition because the
    fetch lock was not free. `planned` is the time of the timer's next check of the acquisition locks; `used`
    is the time of the last request. `writes` maps the token of each pending write to a weak reference to its
    `ShareTurn`. `letters` has the dead letters that are not copied yet. `timeouts` is the number of offsets
    whose locks expired.
    """

    __slots__ = (
        *("_changing", "core", "fetcher", "in_large_batches", "is_fenced", "is_missed", "key"),
        *("leader_epoch", "letters", "lock", "log", "planned", "state_epoch", "timeouts", "topic", "used"),
        "writes",
    )

    def __init__(
        self, key: ShareKey, topic: str, source: PartitionLog, core: SharePartition, state: Durable
    ) -> None:
        self.key, self.topic, self.log, self.core = key, topic, source, core
        self.state_epoch, self.leader_epoch = state.state_epoch, state.leader_epoch
        self.lock = Mutex()
        self.fetcher: Callable[[], object | None] | None = None
        self.is_fenced = self.is_missed = self._changing = self.in_large_batches = False
        self.planned, self.used, self.timeouts = math.inf, 0.0, 0
        self.writes: dict[int, weakref.ref[ShareTurn]] = {}
        self.letters: deque[DeadLetter] = deque()

    def __repr__(self) -> str:
        return f"<ShareLeader {self.key}>"

    def ask(self, event: Callable[[SharePartition], T]) -> T:
        """Call `event` with `core` under the lock, and return the result of `event`, which may change `core`.
        Raises the errors of `event`, and NotLeaderOrFollowerError if the share partition is fenced.
        """
        with self.lock:
            self._begin()
            try:
                found = event(self.core)
            except SegstoreError:  # `core` is unchanged: an event raises errors only before its first change.
                self._changing = False
                raise
            self._changing = False
            return found

    def change(self, turn: ShareTurn, event: Callable[[SharePartition], Outcome]) -> None:
        """Call `event` with `core` under the lock, and add the event's outcome to `turn`. Raises the errors
        of `ask`.
        """
        with self.lock:
            self._begin()
            try:
                outcome = event(self.core)
            except SegstoreError:
                self._changing = False
                raise
            if outcome.write is not None:
                self.writes[outcome.write.token] = weakref.ref(turn)
            turn.due.append((self, outcome))
            self._changing = False

    def _begin(self) -> None:
        """Record that an event begins. If an interrupt has ended an earlier event, or a call whose write is
        pending, fence the share partition. Raises NotLeaderOrFollowerError if the share partition is fenced.
        """
        for turn in self.writes.values():
            if turn() is None:
                self.is_fenced = True
        if self.is_fenced or self._changing:
            self.is_fenced = True
            raise NotLeaderOrFollowerError(f"share partition {self.key} is led anew")
        self._changing = True  # This stays True if an interrupt ends the event.

    def expire(self, now: float, limits: Limits) -> Outcome:
        """Release the expired locks. Must be called by an event of `change`."""
        outcome = self.core.expire(now, limits)
        if outcome.write is not None:
            self.timeouts += sum(last - first + 1 for first, last, _, _ in outcome.write.batches)
        return outcome

    def free(self) -> bool:
        """Free the fetch lock. Return whether another fetch has skipped this share partition because the
        fetch lock was not free. The caller must have `lock`.
        """
        is_missed, self.is_missed, self.fetcher = self.is_missed, False, None
        return is_missed

    @property
    def is_fetched(self) -> bool:
        """Return whether a fetch has the fetch lock."""
        return self.fetcher is not None and self.fetcher() is not None

    @property
    def is_idle(self) -> bool:
        """Return whether the share partition can be dropped from memory: no lock, write or dead letter would
        be lost.
        """
        busy = self.writes or self.letters or self.is_fetched
        return not busy and self.core.deadline() is None


class ShareLeaders:
    """The share partitions of a store. The function `redo` is called with the dead letters that a load has
    found (rule Q62 of docs/queue-rules.md).
    """

    def __init__(
        self,
        store: Store,
        states: StateLog,
        settings: GroupSettings,
        clock: MonotonicMs,
        metrics: ShareMetrics,
        redo: Callable[[ShareLeader, Sequence[DeadLetter]], None],
    ) -> None:
        self._store, self._states, self._settings, self._clock = store, states, settings, clock
        self._metrics, self._redo = metrics, redo
        self._lock = Mutex()
        self._leaders: dict[tuple[str, str, int], ShareLeader] = {}
        self._loads: WeakValues[ShareKey, _Load] = WeakValues()
        self._by_id: tuple[object, dict[str, str]] = (None, {})

    def all(self) -> list[ShareLeader]:
        """Return the share partitions that are in memory."""
        with self._lock:
            return list(self._leaders.values())

    def get(self, group: str, topic_id: str, partition: int) -> ShareLeader | None:
        """Return a share partition if it is in memory. Takes no lock."""
        found = self._leaders.get((group, topic_id, partition))
        return None if found is None or found.is_fenced else found

    def lead(self, key: ShareKey) -> ShareLeader:
        """Return a share partition; load it if it is not in memory. Raises UnknownTopicOrPartitionError,
        StorageError, CorruptRecordError, and the errors of a write of the state. Raises IllegalStateError if
        the share partition is not initialised, or if its state contradicts itself (rule Q61), and
        OffsetNotAvailableError if another thread's load of it takes too long.
        """
        found = self.get(*key)
        if found is not None:
            return found
        with self._lock:
            load = self._loads.get(key)
            if load is None:
                load = self._loads[key] = _Load(key)
        with load.lock:
            return self.get(*key) or self._put(self._loaded(key))

    # --- load ------------------------------------------------------------------------------------

    def _put(self, leader: ShareLeader) -> ShareLeader:
        letters = leader.core.redo_dead_letters(self._settings.share_limits(leader.key.group))
        with self._lock:
            self._leaders[leader.key] = leader
        if letters:
            self._redo(leader, letters)
        return leader

    def _loaded(self, key: ShareKey) -> ShareLeader:
        began, topic = self._clock(), self.topic_of(key)
        cut_logs = existing(self._store, CutLogs)
        if cut_logs is not None:
            cut_logs.cut(key)
        state = self._states.read(key)
        if state is None:
            raise IllegalStateError(
                f"share partition {key} is not initialised: a heartbeat of its group's members does it"
            )
        source = self._store.partition(topic, key.partition)
        try:
            core = SharePartition.load(state, source.start_offset, INT64_MAX)
        except CorruptStateError as error:
            log.error("share partition %s is not served: %s", key, error)
            raise IllegalStateError(f"share partition {key} is not served: {error}") from error
        leader = ShareLeader(key, topic, source, core, state)
        leader.used = began
        if core.start < 0:
            self._begin(leader)
        self._metrics.loaded(self._clock() - began)
        return leader

    def topic_of(self, key: ShareKey) -> str:
        """Return the name of a share partition's topic. Raises UnknownTopicOrPartitionError."""
        topics = self._store.engine.topics
        known, by_id = self._by_id
        if known is not topics:
            by_id = {info.topic_id: name for name, info in topics.items()}
            self._by_id = topics, by_id
        name = by_id.get(key.topic_id)
        if name is None or key.partition not in topics[name].partition_ids:
            raise UnknownTopicOrPartitionError(f"share partition {key}: there is no such topic or partition")
        return name

    def _begin(self, leader: ShareLeader) -> None:
        """Find the first start offset by share.auto.offset.reset, and write it to the durable state before
        any grant (rule Q13).
        """
        limits = self._settings.share_limits(leader.key.group)
        offset = self._reset(leader.log, self._settings.share_reset(leader.key.group))
        write = leader.core.begin_at(offset).write
        assert write is not None
        update = Update(leader.state_epoch, leader.leader_epoch, write.start, write.complete, write.batches)
        error = self._states.write({leader.key: update})[leader.key]
        if error is not None:
            raise copy_of(error)
        leader.core.written(write.token, True, self._clock(), limits)

    def _reset(self, source: PartitionLog, reset: AutoReset) -> int:
        if reset.strategy == EARLIEST:
            return source.start_offset
        if reset.strategy == LATEST:
            return source.high_watermark
        since = self._store.context.clock() - reset.duration_ms
        found = source.offset_for_time(since)
        return source.high_watermark if found is None else found

    # --- removal ---------------------------------------------------------------------------------

    def fence(self, keys: Iterable[ShareKey]) -> set[str]:
        """Drop share partitions from memory because they must not be used any more (rule Q60). Return the
        groups of those that were in memory.
        """
        return {key.group for key in keys if self._drop(key)}

    def fence_group(self, group: str) -> None:
        """Drop all share partitions of a group from memory."""
        self.fence([leader.key for leader in self.all() if leader.key.group == group])

    def fence_topic(self, topic_id: str) -> set[str]:
        """Drop the share partitions of a deleted topic from memory (rule Q46). Return their groups."""
        return self.fence([leader.key for leader in self.all() if leader.key.topic_id == topic_id])

    def drop_idle(self) -> None:
        """Drop from memory the share partitions that have no locks and had no request for IDLE_MS (rule
        Q106).
        """
        before = self._clock() - IDLE_MS
        for leader in self.all():
            if leader.used <= before:
                self._drop(leader.key, lambda leader: leader.is_idle)

    def _drop(self, key: ShareKey, may: Callable[[ShareLeader], bool] = lambda _: True) -> bool:
        leader = self._leaders.get(key)
        if leader is None:
            return False
        with leader.lock:
            if not may(leader):
                return False
            leader.is_fenced = True
        with self._lock:
            if self._leaders.get(key) is leader:
                del self._leaders[key]
        return True


class _Load:
    """A load of one share partition. Threads that wait for its `lock` get OffsetNotAvailableError after a
    time limit.
    """

    def __init__(self, key: ShareKey) -> None:
        def late() -> OffsetNotAvailableError:
            return OffsetNotAvailableError(f"share partition {key} is being loaded, which takes long")

        self.lock = BoundedLock(late)
