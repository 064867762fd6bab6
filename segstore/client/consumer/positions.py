"""Where reading begins: what was committed, what was asked for, or what auto_offset_reset says.

Nothing on disk. Threads: one, the consumer's.
"""

from __future__ import annotations

from segstore.client.consumer.coordination import Coordination
from segstore.client.consumer.lookups import Lookups
from segstore.client.consumer.subscription import PartitionState, Subscription
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    NoOffsetForPartitionError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

NONE = "none"


class Positions:
    """Finds the positions that assigned partitions have not yet, and opens their logs."""

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
        """Give every assigned partition a position. NoOffsetForPartitionError: those that have none."""
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
        """Begin at committed offsets; those that are not decided are given back."""
        states = self._subscription.states
        missing = [tp for tp, s in states.items() if s.position is None and s.reset is None]
        if not missing:
            return set()
        undecided = self._coordination.undecided(missing)
        missing = [tp for tp in missing if tp not in undecided]
        for tp, committed in self._coordination.committed(missing).items():
            states[tp].seek(committed.offset, committed.leader_epoch)
        return undecided

    def _reset(self, tp: TopicPartition, state: PartitionState, where: str) -> None:
        log = self.log(tp, state)
        if log is not None:
            try:
                state.seek(self._lookups.reset(log, where))
            except StoreClosedError:
                self.gone(state)

    def log(self, tp: TopicPartition, state: PartitionState) -> PartitionLog | None:
        """The partition's log; None where a subscription's topic was just deleted.
        UnknownTopicOrPartitionError where the partition was assigned by hand.
        """
        if state.log is None:
            try:
                state.log = self._lookups.log(tp)
                state.lost = False
            except UnknownTopicOrPartitionError:
                self.gone(state)
        return state.log

    def gone(self, state: PartitionState) -> None:
        """The partition's log can't be read any more, says the exception being handled: it is raised, unless
        the subscription is to find out what is there now.
        """
        state.log, state.lost = None, True
        closed = self._store.publications < 0  # StoreClosedError, ForkedError: not only this partition
        if closed or not self._subscription.automatic:
            raise
        self._coordination.stale()

    def out_of_range(self, state: PartitionState) -> None:
        """Retention, or a truncation, took the position away: begin anew, or raise what is being handled."""
        if self._policy == NONE:
            raise
        self._subscription.look([state], self._policy)
