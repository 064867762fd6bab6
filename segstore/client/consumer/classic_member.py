"""`ClassicSubscription`: the coordination of a consumer that is a member of a group by the classic protocol.
The member joins the group, and the group's leader assigns the partitions (Kafka: ConsumerCoordinator,
AbstractCoordinator).

On disk: nothing of its own. Threads: one, the consumer's.
"""

from __future__ import annotations

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.group_member import GroupSubscription, Topics
from segstore.client.consumer.join import ClassicMembership, GroupLeader, MemberPhase
from segstore.client.consumer.metrics import ConsumerInterceptors
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.consumer_protocol import decode_assignment, encode_subscription
from segstore.coordinator.group.assignors import by_name
from segstore.coordinator.group.assignors.base import MemberSubscription as Told
from segstore.coordinator.group.classic.member import JoinGroupResult, Protocols
from segstore.coordinator.structs import TopicPartition
from segstore.storage.store.store import Store


class ClassicSubscription(GroupSubscription):
    """The coordination of a classic group's member. In each rebalance the member sends a join request, then a
    sync request.
    """

    _membership: ClassicMembership

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        config: ConsumerConfig,
        interceptors: ConsumerInterceptors,
    ) -> None:
        """Raises ReadOnlyError, InvalidGroupIdError."""
        super().__init__(store, subscription, config, interceptors, ClassicMembership)
        self._assignors = {each.name: each for each in map(by_name, config.partition_assignment_strategy)}
        self.is_incremental = all(each.cooperative for each in self._assignors.values())
        self._leading: GroupLeader | None = None
        self._joined_topics: set[str] = set()
        self._had: tuple[tuple[TopicPartition, ...], int] = (), -1

    def _compare(self, topics: Topics) -> None:
        if self._leading is not None and self._leading.outdated(topics):
            self._must_ask = True

    def _forget(self) -> None:
        super()._forget()
        self._leading, self._joined_topics = None, set()

    # --- a rebalance -----------------------------------------------------------------------------

    def _step(self) -> bool:
        phase = self._membership.phase
        if phase is MemberPhase.JOINING:
            return self._try_sync()
        if phase is MemberPhase.SYNCING:
            return self._try_finish()
        if phase is MemberPhase.IN and self._untaken is not None:
            self._take()
            return True
        if phase is MemberPhase.IN and not self._must_rejoin() and self._membership.phase is MemberPhase.IN:
            return False
        self._begin()
        return True

    def _must_rejoin(self) -> bool:
        changed = self._joined_topics != self._subscription.topics
        return self._membership.must_rejoin() or self._must_ask or changed

    def _begin(self) -> None:
        """Revoke the partitions that the member can't keep, and send a join request."""
        self._must_ask, self._leading, self._untaken = True, None, None
        lost = self._membership.generation < 0 and bool(self._subscription.states)
        if lost:
            self._give_up(list(self._subscription.states), "lost")
        else:
            self._let_go()
        if not self._subscription.automatic:
            # The listener has unsubscribed, or closed the consumer.
            return
        self._measured.joining()
        self._joined_topics = set(self._subscription.topics or ())
        self._membership.join(self._protocols())
        self._must_ask = False

    def _let_go(self) -> None:
        self._commits.positions()
        states, topics = self._subscription.states, self._subscription.topics or ()
        gone = [tp for tp in states if not self.is_incremental or tp.topic not in topics]
        if gone:
            self._give_up(gone, "revoked")

    def _protocols(self) -> Protocols:
        topics = tuple(sorted(self._joined_topics))
        owned, generation = tuple(self._subscription.states), self._membership.generation
        had, when = self._had
        return tuple(
            (name, encode_subscription(Told(topics, owned, each.user_data(topics, had, when), generation)))
            for name, each in self._assignors.items()
        )

    def _try_sync(self) -> bool:
        joined = self._membership.joined()
        if joined is None:
            return self._membership.phase is not MemberPhase.JOINING
        self._measured.joined()
        self._membership.sync(self._lead(joined))
        return True

    def _lead(self, joined: JoinGroupResult) -> dict[str, bytes]:
        """Return the assignments of all members if this member is the group's leader and must compute them,
        else {}.
        """
        if not joined.members:
            return {}
        topics = self._store.topics()
        self._leading = GroupLeader(joined, topics)
        if joined.skip_assignment:
            members = self._coordinator.members(self._config.group_id or "")
            self._must_ask = not self._leading.complete(members)
            return {}
        return self._leading.assignments(self._assignors[joined.protocol])

    def _try_finish(self) -> bool:
        assignment = self._membership.synced()
        if assignment is None:
            return self._membership.phase is not MemberPhase.SYNCING
        self._measured.synced()
        self._commits.restart()
        assigned = decode_assignment(assignment)
        self._had = tuple(assigned), self._membership.generation
        self._untaken, self._unreported = assigned, []
        self._membership.take()
        self._take()
        return True
