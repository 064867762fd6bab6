"""`StateLog`: the durable states of all share partitions, in memory and in the log (Kafka: ShareCoordinator).
A store has one StateLog.

On disk: owns the topic `__share_group_state` (its modules are `state_topic` and `state_schema`). A state is a
snapshot and the updates after it; records before the snapshots of all share partitions are pruned.
Threads: any, with the locks of `state_partition`. The store's scheduler prunes, and writes snapshots of
unused share partitions.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap

from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_partition import StatePartition
from segstore.coordinator.share.state_requests import (
    ColdRequest,
    InitialiseRequest,
    RaiseRequest,
    StateRequest,
    TombstoneRequest,
    Update,
    UpdateRequest,
)
from segstore.coordinator.share.state_table import StateTable
from segstore.coordinator.share.state_topic import TOPIC, StateTopic
from segstore.coordinator.shared import existing, shared
from segstore.errors import SegstoreError, copy_of
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.store.store import Store

__all__ = ["TOPIC", "StateLog", "Update", "forget_topic"]

log = Logger("segstore")


class StateLog:
    """The durable states of a store's share partitions; `shared(store, StateLog)` returns the
    store's object.
    """

    def __init__(self, store: Store) -> None:
        store.context.check_writable()
        self._topic = StateTopic(store)
        self._config, self._clock = store.writer().config, store.context.clock
        self._lock = Mutex()
        self._partitions: dict[int, StatePartition] = {}
        self._closed = False
        # This is a weak reference, because the scheduler must not keep an unused store alive.
        me = weakref.ref(self)
        every = store.context.scheduler.every
        config = self._config
        every(config.share_coordinator_state_topic_prune_interval_ms / 1000, partial(_run, me, "prune"))
        cold_ms = config.share_coordinator_cold_partition_snapshot_interval_ms
        every(cold_ms / 1000, partial(_run, me, "snapshot_cold"))

    def close(self) -> None:
        """Stop the background work, because the store is being closed."""
        self._closed = True

    # --- states --------------------------------------------------------------------------------

    def partition_for(self, key: ShareKey) -> int:
        """Return the number of the partition of `__share_group_state` for a share partition's records."""
        return self._topic.seen().partition_for(key)

    def read(self, key: ShareKey) -> Durable | None:
        """Return the state of a share partition; None if it was never initialised, or was deleted. Raises
        CorruptRecordError, StorageError, OffsetNotAvailableError, and UnsupportedVersionError if a record has
        a newer version.
        """

        def find(table: StateTable) -> Durable | None:
            state = table.find(key)
            return None if state is None else state.fold.state

        return self._partition(self.partition_for(key)).look(find)

    def keys_of(self, group: str) -> list[ShareKey]:
        """Return all share partitions of a group that have a state, in order. Raises the errors of `read`."""
        return self._keys(lambda key: key.group == group)

    def all_keys(self) -> list[ShareKey]:
        """Return all share partitions that have a state, in order. Raises the errors of `read`."""
        return self._keys(lambda _: True)

    def initialise(self, states: Mapping[ShareKey, tuple[int, int]]) -> None:
        """Set share partitions to new states without batches (Kafka: InitializeShareGroupState). A value of
        `states` is (state epoch, start offset); the start offset is -1 if it is not known. If
        `__share_group_state` is missing, it is created.

        Raises UnknownTopicOrPartitionError, InvalidRequestError, StorageError, OffsetNotAvailableError, the
        errors of replicas, and FencedStateEpochError if a share partition already has a larger state epoch.
        An error of one share partition does not prevent the initialisation of another.
        """
        if states:
            self._topic.make()
        self._raising([InitialiseRequest(key, *state) for key, state in states.items()])

    def write(self, writes: Mapping[ShareKey, Update]) -> dict[ShareKey, SegstoreError | None]:
        """Change states (Kafka: WriteShareGroupState). Return a dict from each share partition to its error,
        or to None once its change is in the log. All changes in one partition of `__share_group_state`,
        including those that other threads make at the same time, are one append.

        These errors mean that the change was not written: UnknownTopicOrPartitionError;
        NotEnoughReplicasError; InvalidRequestError if the share partition is not initialised, or a number is
        invalid; FencedStateEpochError or FencedLeaderEpochError if the state has a larger epoch; and
        OffsetNotAvailableError, unless its text names an interrupt. After any other error the change may be
        in the log or not; the next call reads the log to find out.
        """
        requests = list(starmap(UpdateRequest, writes.items()))
        self._write(requests)
        return {request.key: request.error for request in requests}

    def write_may_wait(self, key: ShareKey) -> bool:
        """Return whether `write` of this share partition's state may wait for a disk, for replicas or for
        another thread.
        """
        state_partition = self._partitions.get(self.partition_for(key))
        return state_partition is None or state_partition.may_wait

    def raise_epoch(self, key: ShareKey, state_epoch: int, durable: Durable) -> None:
        """Replace a share partition's state by `durable`, with the state epoch `state_epoch`. The start may
        be lower than before. Raises the errors of `initialise`.
        """
        self._raising([RaiseRequest(key, state_epoch, durable)])

    def delete(self, keys: Iterable[ShareKey]) -> None:
        """Delete the states of share partitions; a key without a state is ignored (Kafka:
        DeleteShareGroupState). Raises the errors of `initialise`, except FencedStateEpochError and
        UnknownTopicOrPartitionError.
        """
        self._raising([TombstoneRequest(key) for key in keys])

    def topic_deleted(self, topic_id: str) -> None:
        """Delete the states of all share partitions of a deleted topic. Raises the errors of `delete`."""
        self.delete(self._keys(lambda key: key.topic_id == topic_id))

    def forget(self) -> None:
        """Drop all states from memory, because `__share_group_state` itself was deleted."""
        with self._lock:
            self._partitions.clear()

    # --- background ----------------------------------------------------------------------------

    def prune(self) -> None:
        """In each partition of `__share_group_state` that is in memory, delete the records before the oldest
        of the share partitions' latest snapshots. Raises StorageError, OffsetNotAvailableError.
        """
        for state_partition in self._read():
            self._prune(state_partition)

    def _prune(self, state_partition: StatePartition) -> None:
        point = state_partition.glance(lambda table: table.prune.offset)
        source = self._topic.log(state_partition.number)
        if point is None or source is None or point <= source.start_offset:
            return
        partition = source.partition_led()
        # The snapshots must be durable before the records that they replace are removed.
        source.flush()
        with os_errors():
            partition.log_start.delete_records(point)

    def snapshot_cold(self) -> None:
        """Write a snapshot of each share partition whose last snapshot is older than
        share.coordinator.cold.partition.snapshot.interval.ms, so that old snapshots don't block `prune`. Skip
        a partition of `__share_group_state` if all last snapshots in it were written by this method. Raises
        the errors of `delete`.
        """
        before = self._clock() - self._config.share_coordinator_cold_partition_snapshot_interval_ms
        for state_partition in self._read():
            cold = state_partition.glance(partial(_cold, before=before))
            if cold:
                requests = [ColdRequest(key, before) for key in cold]
                state_partition.write(requests)
                _raise_first(requests)

    # --- partitions ----------------------------------------------------------------------------

    def _partition(self, number: int) -> StatePartition:
        state_partition = self._partitions.get(number)
        if state_partition is None:
            with self._lock:
                new = StatePartition(number, self._topic, self._config, self._clock)
                state_partition = self._partitions.setdefault(number, new)
        return state_partition

    def _read(self) -> list[StatePartition]:
        with self._lock:
            return list(self._partitions.values())

    def _keys(self, wanted: Callable[[ShareKey], bool]) -> list[ShareKey]:
        found: list[ShareKey] = []
        for number in self._topic.ids:
            found += self._partition(number).look(lambda table: [key for key in table if wanted(key)])
        return sorted(found)

    def _write(self, requests: Sequence[StateRequest]) -> None:
        """Write the records of requests, and set the requests' outcomes."""
        partition_for, partitions = self._topic.seen().partition_for, self._partitions
        by_partition: dict[int, list[StateRequest]] = defaultdict(list)
        for request in requests:
            by_partition[partition_for(request.key)].append(request)
        for number, some in by_partition.items():
            try:
                (partitions.get(number) or self._partition(number)).write(some)
            except SegstoreError as error:
                for request in some:
                    if not request.is_done:
                        request.end(error)

    def _raising(self, requests: Sequence[StateRequest]) -> None:
        self._write(requests)
        _raise_first(requests)


def _raise_first(requests: Sequence[StateRequest]) -> None:
    for request in requests:
        if request.error is not None:
            raise copy_of(request.error)


def _cold(table: StateTable, before: int) -> list[ShareKey]:
    """Return the share partitions whose last snapshot was written at the time `before` or earlier. If
    `snapshot_cold` has written the last snapshots of all share partitions, return an empty list.
    """
    heads = list(table.heads())
    # Only a snapshot that `snapshot_cold` has written has different times of creation and of writing.
    if all(state.created_ms != state.written_ms for _, state in heads):
        return []
    return [key for key, state in heads if state.written_ms <= before]


def _run(ref: Callable[[], StateLog | None], task: str) -> None:
    """Run the task "prune" or "snapshot_cold" for the scheduler, and log its error."""
    state_log = ref()
    if state_log is None or state_log._closed:
        return
    try:
        state_log.prune() if task == "prune" else state_log.snapshot_cold()
    except SegstoreError as error:
        log.warning("%s: %s is tried again later: %s", TOPIC, task, error)


def forget_topic(store: Store, topic: str, topic_id: str) -> None:
    """Delete the states of a deleted topic's share partitions. If the topic is `__share_group_state` itself,
    drop all states from memory. Errors are logged.
    """
    part = existing(store, StateLog) if topic == TOPIC else shared(store, StateLog)
    try:
        if part is not None:
            part.forget() if topic == TOPIC else part.topic_deleted(topic_id)
    except SegstoreError as error:
        log.warning("%s: deleted, but the states of its share partitions are still there: %s", topic, error)
