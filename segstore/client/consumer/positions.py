"""`Positions`: finds the position at which reading begins: the committed offset, the offset of a seek, or the
offset that auto_offset_reset names. `Lookups`: first and last offsets, and offsets by time.

On disk: nothing of its own. Threads: one, the consumer's; any thread may use `Lookups`.
"""

from __future__ import annotations

from segstore.client.consumer.no_group import Coordination
from segstore.client.consumer.subscription import Subscription, TopicPartitionState
from segstore.coordinator.structs import OffsetAndTimestamp, TopicPartition
from segstore.errors import (
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.integers import INT64_MAX
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

# --- lookups -----------------------------------------------------------------------------------

# `Lookups`: finds offsets in the logs: the first offset, the last offset, or an offset by time.


class Lookups:
    """The offset look-ups of a consumer, for the consumer's isolation level."""

    def __init__(self, store: Store, isolation_level: str) -> None:
        self._store, self._level = store, isolation_level
        self._committed = isolation_level == "read_committed"

    def log(self, tp: TopicPartition) -> PartitionLog:
        """Return the partition's log. Raises UnknownTopicOrPartitionError."""
        return self._store.partition(tp.topic, tp.partition)

    def end(self, log: PartitionLog) -> int:
        """Return the offset after the last readable record: the high watermark, or the last stable offset."""
        return log.last_stable_offset if self._committed else log.high_watermark

    def reset(self, log: PartitionLog, where: str) -> int:
        """Return the log's offset for "earliest" or "latest"."""
        return log.start_offset if where == "earliest" else self.end(log)

    def for_time(self, log: PartitionLog, timestamp: int) -> OffsetAndTimestamp | None:
        """Return offset and timestamp of the first readable record whose timestamp is `timestamp` (ms) or
        later, or None if there is no such record.
        """
        offset = log.offset_for_time(timestamp)
        if offset is None or offset >= self.end(log):
            return None
        try:
            found = log.read(offset, 0, isolation_level=self._level)
        except OffsetOutOfRangeError:
            # After the look-up of the offset, retention has deleted the record there.
            return self.for_time(log, timestamp)
        if not len(found):
            return None
        return OffsetAndTimestamp(
            int(found.offsets[0]), int(found.timestamps[0]), int(found.leader_epochs[0])
        )


# --- positions ------------------------------------------------------------

NONE = "none"


class Positions:
    """Finds the positions of the assigned partitions that have no position yet, and opens the logs of these
    partitions.
    """

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        coordination: Coordination,
        lookups: Lookups,
        policy: str,
    ) -> None:
        self._store, self._subscription, self._coordination = store, subscription, coordination
        self._lookups, self._policy = lookups, policy

    def resolve(self) -> None:
        """Find a position for every assigned partition that has none. Skip the partitions for which an open
        transaction may commit an offset. If auto_offset_reset is "none", raises NoOffsetForPartitionError
        with the partitions that have no committed offset.
        """
        subscription = self._subscription
        if not subscription.unresolved:
            return
        undecided = self._from_committed()
        nowhere = []
        for tp, state in subscription.states.items():
            if state.position is None and tp not in undecided:
                where = state.reset or self._policy
                if where == NONE:
                    nowhere.append(tp)
                else:
                    self._reset(tp, state, where)
        if nowhere:
            raise NoOffsetForPartitionError(nowhere)
        subscription.unresolved = any(s.position is None for s in subscription.states.values())

    def _from_committed(self) -> set[TopicPartition]:
        """Seek to the committed offsets. Skip and return the partitions for which an open transaction may
        commit an offset.
        """
        states = self._subscription.states
        missing = [tp for tp, s in states.items() if s.position is None and s.reset is None]
        if not missing:
            return set()
        undecided = self._coordination.undecided(missing)
        missing = [tp for tp in missing if tp not in undecided]
        for tp, committed in self._coordination.committed(missing).items():
            states[tp].seek(committed.offset, committed.leader_epoch)
            self._compare_committed(tp, states[tp])
        return undecided

    def _compare_committed(self, tp: TopicPartition, state: TopicPartitionState) -> None:
        """Compare a position that came from a committed offset with the log, because the log may have been
        restored from an older copy.
        """
        log = self.log(tp, state) if state.leader_epoch >= 0 else None
        # If another process writes the store, the log has no leader epochs, and nothing can be compared.
        if log is None or log.leader_epoch < 0:
            return
        try:
            self.validate(log, state)
        except StoreClosedError:
            self.gone(state)

    def _reset(self, tp: TopicPartition, state: TopicPartitionState, where: str) -> None:
        log = self.log(tp, state)
        if log is not None:
            try:
                state.seek(self._lookups.reset(log, where))
            except StoreClosedError:
                self.gone(state)

    def log(self, tp: TopicPartition, state: TopicPartitionState) -> PartitionLog | None:
        """Return the partition's log. If the topic was deleted, return None for a partition of a
        subscription, and raise UnknownTopicOrPartitionError for a partition that was assigned by `assign`.
        """
        if state.log is None:
            try:
                state.log = self._lookups.log(tp)
                state.lost = False
            except UnknownTopicOrPartitionError:
                self.gone(state)
        return state.log

    def gone(self, state: TopicPartitionState) -> None:
        """Handle the current exception: the partition's log can't be read any more. Raise the exception
        again, unless the next poll will update the assignment.
        """
        state.log, state.lost = None, True
        # The counter is negative if the store is closed, and in a forked child.
        closed = self._store.publications < 0
        if closed or not self._subscription.automatic:
            raise
        self._coordination.stale()

    def validate(self, log: PartitionLog, state: TopicPartitionState) -> int:
        """Compare a position with the leader's log, and return the leader epoch. If the new leader lacks
        records that the consumer has read, set the position to the offset at which the leader's log diverges,
        or raise LogTruncationError if auto_offset_reset is "none" (Kafka:
        SubscriptionState.maybeCompleteValidation, KIP-320).
        """
        while True:
            leader, position, epoch = log.leader_epoch, state.position, state.leader_epoch
            end = log.epoch_end(epoch).end_offset if epoch >= 0 else INT64_MAX
            if log.leader_epoch == leader:
                # The leader epoch is the same as before `epoch_end`, so no other replica became the leader in
                # between: `end` is that of one leader's log.
                break
        if position is not None and end < position:
            if self._policy == NONE:
                where = f"{log.topic}-{log.partition}"
                raise LogTruncationError(position, epoch, end, log.start_offset, log.end_offset, where)
            if end < 0:
                self._subscription.look([state], self._policy)
            else:
                state.seek(end, log.epoch_of(end - 1))
        return leader

    def out_of_range(self, state: TopicPartitionState) -> None:
        """Reset a position that is out of the log's range because of retention or a truncation. If
        auto_offset_reset is "none", raise the current exception again.
        """
        if self._policy == NONE:
            raise
        self._subscription.look([state], self._policy)
