"""`GroupSubscription`: the coordination of a consumer that is a member of a group, by either of Kafka's two
group protocols. The members share the partitions of their topics (Kafka: ConsumerCoordinator,
ConsumerMembershipManager).

On disk: nothing of its own. Threads: one, the consumer's. No method waits for other members, so that one
thread may poll several consumers of a group one after another. If a rebalance must wait for another member, a
later poll continues it. A change of the group ends the wait of a poll.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from segstore.client.consumer.commits import Commits
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.membership import GroupMembership
from segstore.client.consumer.metrics import ConsumerInterceptors, GroupMetrics
from segstore.client.consumer.no_group import Offsets, OnCommit, TopicWatch
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import FencedInstanceIdError, ReadOnlyError
from segstore.mutex import calls_out
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.store import Store

Topics = Mapping[str, TopicInfo]
_A_POLL = 3
"""How many times in max_poll_interval_ms a consumer that waits within a poll writes the present time into its
`Pulse`, so that the coordinator does not remove it as too slow.
"""


class GroupSubscription(ABC):
    """The coordination of a consumer with a group; implements `no_group.Coordination`. There is a subclass
    for each of the two protocols. It has the steps of the protocol's rebalances.

    If a listener raises an exception, the member first completes the step of the rebalance. Then `poll`
    raises the exception.
    """

    takes_regex = False
    is_incremental: bool
    """Whether, during a rebalance, a member keeps the partitions that its old and its new assignment have in
    common.
    """

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        config: ConsumerConfig,
        interceptors: ConsumerInterceptors,
        member: Callable[[GroupCoordinator, ConsumerConfig], GroupMembership],
    ) -> None:
        """Raises InvalidGroupIdError. Raises ReadOnlyError for a store that was opened "r", because a group
        belongs to the process that writes the store. Raises IllegalStateError in a guest of a shared store.
        """
        if store.mode == "r":
            raise ReadOnlyError(
                f"group_id={config.group_id!r}: groups and commits belong to the process that writes "
                f'{store.path}, which was opened with mode="r" here: leave group_id out, open it with "rw" '
                "where no other process does, or join the group with a Kafka client by segstore serve"
            )
        store.check_keeps(f"Consumer(group_id={config.group_id!r})")
        self._subscription, self._config = subscription, config
        check_group(config.group_id)
        self._coordinator = shared(store, GroupCoordinator)
        self._offsets = shared(store, GroupOffsets)
        self._store, self._membership = store, member(self._coordinator, config)
        self._measured = GroupMetrics(config)
        self._commits = Commits(
            store,
            self._coordinator,
            self._offsets,
            self._membership,
            subscription,
            config,
            interceptors,
            self._measured,
        )
        self._watch = TopicWatch(store, config.metadata_max_age_ms)
        # `_must_ask`: whether the next step of a rebalance must ask the coordinator, even if the group has
        # not changed.
        self._must_ask = False
        self._in_listener = False
        self._ids: dict[str, str] = {}
        # Work that the next poll does if an interrupt has prevented it: to apply the new assignment
        # (`_untaken`), and to report the partitions of `_unreported` to the listener.
        self._untaken: list[TopicPartition] | None = None
        self._unreported: list[TopicPartition] = []

    # --- a poll ------------------------------------------------------------------------------

    def poll(self) -> None:
        self._commits.callbacks()
        self._membership.polled()
        if self._subscription.automatic and not self._in_listener:
            self._look()
            self._keep_up()
        self._commits.auto()

    def polled(self) -> None:
        self._membership.polled()

    def _keep_up(self) -> None:
        try:
            while self._subscription.automatic and self._step():
                pass
        except FencedInstanceIdError as error:
            self._membership.out(error)
            self._give_up(list(self._subscription.states), "lost")
            raise

    @abstractmethod
    def _step(self) -> bool:
        """Do the next step of a rebalance, unless another member has to act before. Return whether there may
        be a further step. Raises FencedInstanceIdError.
        """

    def wait_ms(self) -> float:
        alive = self._config.max_poll_interval_ms / _A_POLL if self._subscription.automatic else math.inf
        look = self._watch.wait_ms() if self._subscription.automatic else math.inf
        return min(self._commits.wait_ms(), look, alive)

    def stale(self) -> None:
        self._watch.stale()

    # --- topics ----------------------------------------------------------------------------------

    def _look(self) -> None:
        topics = self._watch.look()
        if topics is not None:
            self._subscription.matching(topics, self._config.exclude_internal_topics)
            self._compare(topics)
            self._lose_old(topics)
            self._watch.done()

    @abstractmethod
    def _compare(self, topics: Topics) -> None:
        """Set `_must_ask` if the change from the earlier topics to `topics` may change the assignment."""

    def _lose_old(self, topics: Topics) -> None:
        """Give up the partitions of each topic that was deleted and created again."""
        anew = {t for t, topic_id in self._ids.items() if t in topics and topics[t].topic_id != topic_id}
        if anew:
            self._must_ask = True
            try:
                self._give_up([tp for tp in self._subscription.states if tp.topic in anew], "lost")
            finally:
                self._ids = {t: topic_id for t, topic_id in self._ids.items() if t not in anew}

    # --- an assignment ---------------------------------------------------------------------------

    def _take(self) -> None:
        """Apply the new assignment: give up the partitions that are not in the new assignment. The next step
        reports to the group which partitions were given up, so that the group can assign them to other
        members. After an interrupt the next poll repeats `_take`. If the listener or a commit raises an
        exception, `_take` is not repeated, and raises the exception.
        """
        topics = self._store.topics()
        try:
            self._have(self._untaken or [], topics)
        except Exception:
            self._untaken, self._unreported = None, []
            raise
        self._untaken, self._unreported = None, []

    def _have(self, assigned: Collection[TopicPartition], topics: Topics) -> None:
        subscription = self._subscription
        wanted = [tp for tp in assigned if subscription.wants(tp.topic) and tp.topic in topics]
        kept = set(wanted)
        gone = [tp for tp in subscription.states if tp not in kept]
        added = [tp for tp in wanted if tp not in subscription.states or tp in self._unreported]
        self._unreported = added
        self._ids = {tp.topic: topics[tp.topic].topic_id for tp in wanted}
        try:
            if gone:
                self._must_ask = True
                self._commits.positions(gone)
                self._give_up(gone, "revoked")
        finally:
            if subscription.automatic:
                # The consumer is still subscribed: the listener has not unsubscribed.
                subscription.have(wanted)
                if added or not self.is_incremental:
                    self._call_listener("assigned", added if self.is_incremental else wanted)

    def _give_up(self, gone: Collection[TopicPartition], how: str) -> None:
        """Call the listener's on_partitions_revoked or on_partitions_lost, as `how` says. Then give up the
        partitions `gone`, even if the listener raises an exception.
        """
        try:
            if gone:
                self._call_listener(how, gone)
        finally:
            left = set(gone)
            self._subscription.have([tp for tp in self._subscription.states if tp not in left])

    @calls_out
    def _call_listener(self, how: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None or self._in_listener:
            # The listener is not called for a change that the listener itself makes.
            return
        # A listener for an older version of kafka-python, or an object that is no ConsumerRebalanceListener,
        # may have no on_partitions_lost: on_partitions_revoked is called instead.
        method: Callable[[Any], Any] | None = getattr(listener, f"on_partitions_{how}", None)
        self._in_listener = True
        try:
            with self._measured.listener(how):
                (method or listener.on_partitions_revoked)(partitions)
        finally:
            self._in_listener = False

    # --- offsets -----------------------------------------------------------------------------------

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return dict(self._offsets.fetch(self._config.group_id or "", partitions))

    def undecided(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return self._offsets.pending(self._config.group_id or "").intersection(partitions)

    def commit(self, offsets: Offsets) -> None:
        self._commits.callbacks()
        self._commits.commit(offsets)

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> Any:
        return self._commits.commit_async(offsets, callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        return self._membership.metadata

    def metrics(self) -> dict[str, dict[str, float]]:
        assigned, now = len(self._subscription.states), self._coordinator.now()
        return self._measured.snapshot(assigned, self._membership.pulse, now)

    # --- leaving the group -----------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        self._leave(autocommit=True)

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        try:
            self._leave(autocommit)
        finally:
            self._commits.callbacks()

    def _leave(self, autocommit: bool) -> None:
        """Leave the group. A static member only stops its heartbeats, so that it keeps its partitions until
        its session timeout.
        """
        lost = self._subscription.automatic and self._membership.generation < 0
        try:
            if autocommit and not lost:
                self._commits.positions(closing=True)
            if self._subscription.automatic:
                self._give_up(list(self._subscription.states), "lost" if lost else "revoked")
        finally:
            # Leaving comes before any other cleanup, because other members wait for the partitions.
            self._membership.leave()
            self._forget()
            self.stale()

    def _forget(self) -> None:
        """Reset the attributes that describe this membership, as if the member had never joined."""
        self._must_ask, self._ids, self._untaken = False, {}, None

    @property
    def left(self) -> bool:
        return self._membership.left
