"""`ConsumerSubscription`: the coordination of a consumer that is a member of a consumer group (KIP-848). The
member sends heartbeats, and the coordinator assigns the partitions (Kafka: ConsumerMembershipManager,
ConsumerHeartbeatRequestManager).

A heartbeat is sent only after a change of the group, of the topics, or of the member's own subscription or
partitions. A change of the group wakes the group's members in this process. The member's `Pulse` has the
times of the last poll and heartbeat; by these the coordinator sees that the member is alive.

On disk: nothing of its own. Threads: one, the consumer's; the coordinator reads the `Pulse`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Set
from typing import NamedTuple

from segstore import names
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.group_member import GroupSubscription, Topics
from segstore.client.consumer.join import REBALANCING, STABLE
from segstore.client.consumer.membership import GroupMembership
from segstore.client.consumer.metrics import ConsumerInterceptors
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.group.consumers.member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from segstore.coordinator.group.consumers.membership import ConsumerHeartbeat
from segstore.coordinator.group.consumers.topics import AssignableTopics as TopicIds
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.structs import CLIENT_HOST, UNJOINED, TopicPartition
from segstore.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupNotFoundError,
    RetriableError,
    StaleMemberEpochError,
    StorageError,
    StoreClosedError,
    UnknownMemberIdError,
)
from segstore.storage.store.store import Store

_FENCED = (UnknownMemberIdError, FencedMemberEpochError, GroupNotFoundError)
_GONE = (*_FENCED, FencedInstanceIdError, RetriableError, StorageError, StoreClosedError)


class SubscribedTopics(NamedTuple):
    """The topics of a subscription: their names, and the regular expression, which is "" if the subscription
    has none.
    """

    topics: Set[str]
    regex: str


class ConsumerGroupMembership(GroupMembership):
    """A membership by KIP-848. The member keeps one id for its whole life. An interrupt may come at any time:
    if the answer to a heartbeat is lost, the heartbeat is repeated, because each one has all fields.
    """

    def __init__(self, coordinator: GroupCoordinator, config: ConsumerConfig) -> None:
        super().__init__(coordinator, config)
        self.member_id = str(uuid.uuid4())
        self.is_settled = False
        # Whether a heartbeat was sent. If so, the group may know the member.
        self._asked = False

    @property
    def _state(self) -> str:
        if self.generation < 0:
            return UNJOINED
        return STABLE if self.is_settled else REBALANCING

    @property
    def may_commit(self) -> bool:
        return self.generation >= 0

    @property
    def is_rebalancing(self) -> bool:
        """Return False: a commit never waits for a rebalance, because a member of a consumer group may commit
        from its first heartbeat on.
        """
        return False

    @property
    def left(self) -> bool:
        return not self._asked

    def heartbeat(self, wanted: SubscribedTopics, owned: Assignment) -> Assignment:
        """Send a heartbeat with all fields, and return the partitions that the member shall have. If the
        member is not in the group, the heartbeat joins the group. Raises the errors of
        GroupCoordinator.consumer_heartbeat.
        """
        config, is_in = self._config, self.generation >= 0
        self._asked = True
        beaten = self._coordinator.consumer_heartbeat(
            self._group,
            ConsumerHeartbeat(
                member_id=self.member_id,
                epoch=self.generation if is_in else JOIN_EPOCH,
                instance_id=self._instance,
                rack_id=config.client_rack or None,
                rebalance_timeout_ms=config.max_poll_interval_ms,
                topic_names=wanted.topics,
                topic_regex=wanted.regex,
                server_assignor=config.group_remote_assignor,
                owned=owned if is_in else {},
                client_id=config.client_id,
                client_host=CLIENT_HOST,
                pulse=self._begin_pulse(config.heartbeat_interval_ms),
            ),
        )
        self.generation = beaten.epoch
        # The answer to a heartbeat with all fields has an assignment.
        assert beaten.assignment is not None
        return beaten.assignment

    def out(self, error: Exception) -> None:
        """Leave the generation, unless a commit has failed with StaleMemberEpochError: the member is then
        still in the group, and the answer to its next heartbeat has the current epoch.
        """
        if not isinstance(error, StaleMemberEpochError):
            self.generation, self.is_settled = -1, False

    def leave(self) -> None:
        """Leave the group. If the coordinator can't write the departure to the group's log, it removes the
        member later, because the member drops its `Pulse` here.
        """
        if self._asked:
            epoch = LEAVE_EPOCH if self._instance is None else STATIC_LEAVE_EPOCH
            leaving = ConsumerHeartbeat(member_id=self.member_id, epoch=epoch, instance_id=self._instance)
            try:
                self._coordinator.consumer_heartbeat(self._group, leaving)
            except _GONE:
                """The store is closed, or the group has removed the member, or will remove it because the
                member drops its `Pulse` below.
                """
        self.pulse, self._asked, self.generation, self.is_settled = None, False, -1, False


class ConsumerSubscription(GroupSubscription):
    """The coordination of a consumer group's member. In a rebalance the member gives up some partitions,
    reports that in a heartbeat, and gets new partitions. Partitions that are in the old and in the new
    assignment stay with the member all the time.
    """

    _membership: ConsumerGroupMembership
    is_incremental = True
    takes_regex = True

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        config: ConsumerConfig,
        interceptors: ConsumerInterceptors,
    ) -> None:
        """Raises ReadOnlyError, InvalidGroupIdError."""
        super().__init__(store, subscription, config, interceptors, ConsumerGroupMembership)
        self._group = config.group_id or ""
        self._sent: SubscribedTopics | None = None
        self._seen = -1
        self._topics: Topics = {}

    def _compare(self, topics: Topics) -> None:
        # After a change of a topic `engine.topics` is another object.
        current = self._store.engine.topics
        if current is not self._topics:
            self._must_ask = True
            self._topics = current

    def _forget(self) -> None:
        super()._forget()
        self._sent = None

    # --- a rebalance -----------------------------------------------------------------------------

    def _step(self) -> bool:
        if self._membership.generation < 0:
            return self._join()
        if self._untaken is not None:
            self._take()
            return True
        if not self._must_beat():
            return False
        self._beat()
        return True

    def _must_beat(self) -> bool:
        if self._must_ask or self._seen != self._coordinator.changes(self._group):
            return True
        subscription, sent = self._subscription, self._sent
        return sent is None or sent.regex != (subscription.regex or "") or not self._knows_topics(sent)

    def _knows_topics(self, sent: SubscribedTopics) -> bool:
        """Return whether the topics that the last heartbeat has `sent` are those of the subscription. The
        result is True for a regular expression, because the coordinator finds the matching topics.
        """
        return bool(sent.regex) or sent.topics == self._subscription.topics

    def _wanted(self) -> SubscribedTopics:
        subscription = self._subscription
        if subscription.regex is not None:
            return SubscribedTopics(frozenset(), subscription.regex)
        return SubscribedTopics(frozenset(subscription.topics or ()), "")

    def _join(self) -> bool:
        """Call `on_partitions_lost` if the member has partitions of an earlier membership, and give these up.
        Then join the group.
        """
        self._untaken = None
        self._give_up(list(self._subscription.states), "lost")
        if self._subscription.automatic:
            # The consumer is still subscribed: the listener has not unsubscribed.
            self._measured.joining()
            self._beat()
        return True

    def _beat(self) -> None:
        """Send a heartbeat, and store the assignment that the answer has, so that the next step applies the
        assignment.
        """
        wanted, seen = self._wanted(), self._coordinator.changes(self._group)
        try:
            given = self._membership.heartbeat(wanted, self._owned())
        except _FENCED as error:
            if self._membership.generation < 0:
                # The heartbeat that should join the group failed: the group refuses the member.
                raise
            self._membership.out(error)
            return
        self._sent, self._seen, self._must_ask = wanted, seen, False
        self._compare_assignment(given)

    def _owned(self) -> Assignment:
        owned: dict[bytes, frozenset[int]] = {}
        for topic, number in self._subscription.states:
            topic_id = names.topic_id_bytes(self._ids[topic])
            owned[topic_id] = owned.get(topic_id, frozenset()) | {number}
        return owned

    def _compare_assignment(self, given: Assignment) -> None:
        """Store the assignment `given` for the next step, unless the member has exactly these partitions."""
        topics = self._store.topics()
        self._lose_old(topics)
        partitions = list(TopicIds(topics).partitions(given))
        if set(partitions) == self._subscription.states.keys():
            self._settle()
            return
        if self._membership.is_settled:
            self._measured.joining()
        self._membership.is_settled = False
        self._untaken = partitions

    def _have(self, assigned: Collection[TopicPartition], topics: Topics) -> None:
        if self._subscription.regex is not None:
            self._subscription.topics = {tp.topic for tp in assigned}
        self._commits.restart()
        try:
            super()._have(assigned, topics)
        finally:
            self._settle()

    def _settle(self) -> None:
        """Record that the member has exactly its assigned partitions."""
        if not self._membership.is_settled:
            self._measured.rebalanced()
        self._membership.is_settled = True
