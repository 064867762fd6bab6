"""`ShareConsumerMembership`: a share consumer's membership in its share group. The group assigns the
consumer's partitions (KIP-932; Kafka: ShareMembershipManager, ShareHeartbeatRequestManager).

A member sends a heartbeat only when it joins, and after a change of its subscription, of the group, or of the
store's topics. A change of the group or of the topics wakes the members in this process. The member's `Pulse`
has the times of the last poll and heartbeat; by these the coordinator sees that the member is alive.

On disk: nothing of its own. Threads: one, the consumer's; the coordinator reads the `Pulse`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from segstore import names
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.deliveries import At
from segstore.client.share.metrics import ShareConsumerMetrics
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.share.member import JOIN_EPOCH, LEAVE_EPOCH, ShareBeaten, ShareHeartbeat
from segstore.coordinator.offsets.consumer_schema import NOTHING, Assignment
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    FencedMemberEpochError,
    GroupNotFoundError,
    RetriableError,
    StorageError,
    StoreClosedError,
    UnknownMemberIdError,
)
from segstore.storage.store.store import Store

_FENCED = (UnknownMemberIdError, FencedMemberEpochError, GroupNotFoundError)
_GONE = (*_FENCED, RetriableError, StorageError, StoreClosedError)
_A_POLL = 3
"""How many times in max_poll_interval_ms a consumer that waits within a poll writes the present time into its
`Pulse`, so that the coordinator does not remove it as too slow.
"""
_INTERVAL_MS = 5_000
"""The interval of the `Pulse` until the answer to the first heartbeat sets another one."""


class ShareConsumerMembership:
    """A membership in a share group. The member keeps one id for its whole life. `topics`: the names of the
    subscribed topics, or None. `partitions`: the assigned partitions. An interrupt may come at any time,
    because a heartbeat may be sent again.
    """

    def __init__(
        self,
        store: Store,
        coordinator: GroupCoordinator,
        config: ShareConsumerConfig,
        metrics: ShareConsumerMetrics,
    ) -> None:
        self._store, self._coordinator, self._config, self._metrics = store, coordinator, config, metrics
        self._group = config.group_id
        self.member_id = str(uuid.uuid4())
        self.topics: frozenset[str] | None = None
        self.partitions: dict[At, TopicPartition] = {}
        self.pulse: Pulse | None = None
        self._epoch = JOIN_EPOCH
        # Whether a heartbeat was sent. If so, the group may know the member.
        self._is_known = False
        self._sent_topics: frozenset[str] | None = None
        self._seen, self._topics = -1, object()
        self._assignment: Assignment = NOTHING

    def want(self, topics: Collection[str]) -> None:
        """Set the subscription. The next `poll` sends it to the group."""
        self.topics = frozenset(topics)

    # --- a poll ----------------------------------------------------------------------------------

    def poll(self) -> None:
        """Record the time of a poll in the member's `Pulse`, and send a heartbeat if one is due. Raises the
        errors of GroupCoordinator.share_heartbeat.
        """
        if self.pulse is not None:
            self.pulse.polled = self._coordinator.now()
        if self.topics is None or not self._must_beat():
            return
        try:
            self._beat()
        except _FENCED:
            if self._epoch == JOIN_EPOCH:
                # The heartbeat that should join the group failed: the group refuses the member.
                raise
            self._epoch = JOIN_EPOCH
            self._beat()

    def wait_ms(self) -> float:
        """Return the ms that the consumer may sleep until it must call `poll` again."""
        return self._config.max_poll_interval_ms / _A_POLL

    def _must_beat(self) -> bool:
        return (
            self._epoch == JOIN_EPOCH
            or self._sent_topics != self.topics
            or self._topics is not self._store.engine.topics
            or self._seen != self._coordinator.changes(self._group)
        )

    def _beat(self) -> None:
        topics, wanted = self._store.engine.topics, self.topics
        # The counter is read before the heartbeat is sent: a change after this line causes another heartbeat.
        seen = self._coordinator.changes(self._group)
        is_sent = self._epoch != JOIN_EPOCH and self._sent_topics == wanted
        beaten = self._send(self._epoch, None if is_sent else wanted)
        self._epoch, self._sent_topics = beaten.epoch, wanted
        if beaten.assignment is not None:
            self._assignment = beaten.assignment
        self._take(self._assignment)
        self._seen, self._topics = seen, topics

    def _send(self, epoch: int, wanted: Collection[str] | None) -> ShareBeaten:
        now = self._coordinator.now()
        if self.pulse is None:
            self.pulse = Pulse(now, _INTERVAL_MS, self._config.max_poll_interval_ms)
        self.pulse.polled = now
        self._is_known = True
        heartbeat = ShareHeartbeat(
            member_id=self.member_id,
            epoch=epoch,
            rack_id=self._config.client_rack or None,
            topic_names=wanted,
            client_id=self._config.client_id,
            pulse=self.pulse,
        )
        beaten = self._coordinator.share_heartbeat(self._group, heartbeat)
        self.pulse.interval_ms = beaten.heartbeat_interval_ms
        return beaten

    def _take(self, assignment: Assignment) -> None:
        """Set `partitions` to the assigned partitions whose topics exist."""
        by_id = {names.topic_id_bytes(info.topic_id): info for info in self._store.engine.topics.values()}
        partitions = {
            (info.topic_id, number): TopicPartition(info.name, number)
            for topic_id, numbers in assignment.items()
            if (info := by_id.get(topic_id)) is not None
            for number in sorted(numbers)
        }
        if partitions != self.partitions:
            self._metrics.rebalanced()
        self.partitions = partitions

    # --- the end -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the group, and drop the subscription. If the coordinator can't write the departure to the
        group's log, it removes the member later, because the member drops its `Pulse` here.
        """
        if self._is_known:
            leaving = ShareHeartbeat(member_id=self.member_id, epoch=LEAVE_EPOCH)
            try:
                self._coordinator.share_heartbeat(self._group, leaving)
            except _GONE:
                """The store is closed, or the group has removed the member, or will remove it because the
                member drops its `Pulse` below.
                """
        self.pulse, self._is_known, self._epoch, self._sent_topics = None, False, JOIN_EPOCH, None
        self.topics, self.partitions, self._assignment = None, {}, NOTHING
