"""`Grouped`: a consumer that is a member of a group, and shares the partitions of its topics with the other
members (Kafka: ConsumerCoordinator, AbstractCoordinator).

On disk: nothing of its own. Threads: one, the consumer's. No method waits: a member that waits for others
is woken in `store.wait`, so that one thread may poll several consumers of a group in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from segstore.client.consumer.commits import Commits
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.join import Leading, Phase, Seat, Topics
from segstore.client.consumer.metrics import GroupMetrics, Interceptors
from segstore.client.consumer.no_group import Offsets, OnCommit, TopicWatch
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.consumer_protocol import decode_assignment, encode_subscription
from segstore.coordinator.group.assignors import by_name
from segstore.coordinator.group.assignors.base import Subscription as Told
from segstore.coordinator.group.classic.member import Joined, Protocols
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import FencedInstanceIdError, ReadOnlyError
from segstore.mutex import calls_out
from segstore.storage.store.store import Store

_A_POLL = 3
"""How often in each max_poll_interval_ms a consumer that waits shows that it is at work."""


class Grouped:
    """Implements `no_group.Coordination`.

    A listener's exception goes to the application once the step of the rebalance is done, as it would be
    without the exception.
    """

    def __init__(
        self, store: Store, subscription: Subscription, config: ConsumerConfig, interceptors: Interceptors
    ) -> None:
        """Raises ReadOnlyError, because a group belongs to the process that writes the store;
        InvalidGroupIdError.
        """
        if store.mode == "r":
            raise ReadOnlyError(
                f"group_id={config.group_id!r}: groups and commits belong to the process that writes "
                f'{store.path}, which was opened with mode="r" here: leave group_id out, open it with "rw" '
                "where no other process does, or join the group with a Kafka client by segstore serve"
            )
        self._subscription, self._config = subscription, config
        check_group(config.group_id)
        self._coordinator = shared(store, GroupCoordinator)
        self._offsets = shared(store, GroupOffsets)
        self._store, self._seat = store, Seat(self._coordinator, config)
        self._measured = GroupMetrics(config)
        self._commits = Commits(
            self._coordinator,
            self._offsets,
            self._seat,
            subscription,
            config,
            interceptors,
            self._measured,
        )
        self._assignors = {each.name: each for each in map(by_name, config.partition_assignment_strategy)}
        self._cooperative = all(each.cooperative for each in self._assignors.values())
        self._watch = TopicWatch(store, config.metadata_max_age_ms)
        self._leading: Leading | None = None
        self._rejoin = self._telling = False
        self._joined_topics: set[str] = set()
        self._ids: dict[str, str] = {}
        self._had: tuple[tuple[TopicPartition, ...], int] = (), -1
        # Work that an interrupt may prevent, and that the next poll does: to take this assignment, and to
        # tell the listener of these of its partitions.
        self._untaken: list[TopicPartition] | None = None
        self._untold: list[TopicPartition] = []

    # --- a poll ------------------------------------------------------------------------------

    def poll(self) -> None:
        self._commits.callbacks()
        self._seat.polled()
        if self._subscription.automatic and not self._telling:
            self._look()
            self._keep_up()
        self._commits.auto()

    def polled(self) -> None:
        self._seat.polled()

    def _keep_up(self) -> None:
        try:
            while self._subscription.automatic and self._step():
                pass
        except FencedInstanceIdError:
            self._seat.lose(self._seat.member_id)
            self._give_up(list(self._subscription.states), "lost")
            raise

    def wait_ms(self) -> float:
        alive = self._config.max_poll_interval_ms / _A_POLL if self._subscription.automatic else math.inf
        look = self._watch.wait_ms() if self._subscription.automatic else math.inf
        return min(self._commits.wait_ms(), look, alive)

    def stale(self) -> None:
        self._watch.stale()

    def _look(self) -> None:
        topics = self._watch.look()
        if topics is not None:
            self._compare(topics)
            self._watch.done()

    def _compare(self, topics: Topics) -> None:
        self._subscription.matching(topics, self._config.exclude_internal_topics)
        if self._leading is not None and self._leading.outdated(topics):
            self._rejoin = True
        anew = {t for t, topic_id in self._ids.items() if t in topics and topics[t].topic_id != topic_id}
        if anew:
            self._rejoin = True
            self._ids = {t: topic_id for t, topic_id in self._ids.items() if t not in anew}
            self._give_up([tp for tp in self._subscription.states if tp.topic in anew], "lost")

    # --- a rebalance -----------------------------------------------------------------------------

    def _step(self) -> bool:
        """Take the next step of the rebalance, if that needs no waiting; return whether there may be
        another one.
        """
        phase = self._seat.phase
        if phase is Phase.JOINING:
            return self._try_sync()
        if phase is Phase.SYNCING:
            return self._try_finish()
        if phase is Phase.IN and self._untaken is not None:
            self._take()
            return True
        if phase is Phase.IN and not self._must_rejoin() and self._seat.phase is Phase.IN:
            return False
        self._begin()
        return True

    def _must_rejoin(self) -> bool:
        changed = self._joined_topics != self._subscription.topics
        return self._seat.must_rejoin() or self._rejoin or changed

    def _begin(self) -> None:
        """Give up the partitions that must be given up, and ask to join."""
        self._rejoin, self._leading, self._untaken = True, None, None
        lost = self._seat.generation < 0 and bool(self._subscription.states)
        if lost:
            self._give_up(list(self._subscription.states), "lost")
        else:
            self._let_go()
        if not self._subscription.automatic:
            return  # the listener has unsubscribed, or closed the consumer
        self._measured.joining()
        self._joined_topics = set(self._subscription.topics or ())
        self._seat.join(self._protocols())
        self._rejoin = False

    def _let_go(self) -> None:
        self._commits.positions()
        states, topics = self._subscription.states, self._subscription.topics or ()
        gone = [tp for tp in states if not self._cooperative or tp.topic not in topics]
        if gone:
            self._give_up(gone, "revoked")

    def _protocols(self) -> Protocols:
        topics = tuple(sorted(self._joined_topics))
        owned, generation = tuple(self._subscription.states), self._seat.generation
        had, when = self._had
        return tuple(
            (name, encode_subscription(Told(topics, owned, each.user_data(topics, had, when), generation)))
            for name, each in self._assignors.items()
        )

    def _try_sync(self) -> bool:
        joined = self._seat.joined()
        if joined is None:
            return self._seat.phase is not Phase.JOINING
        self._measured.joined()
        self._seat.sync(self._lead(joined))
        return True

    def _lead(self, joined: Joined) -> dict[str, bytes]:
        """Return the assignments, where this member is the leader."""
        if not joined.members:
            return {}
        topics = self._store.topics()
        self._leading = Leading(joined, topics)
        if joined.skip_assignment:
            members = self._coordinator.members(self._config.group_id or "")
            self._rejoin = not self._leading.complete(members)
            return {}
        return self._leading.assignments(self._assignors[joined.protocol])

    def _try_finish(self) -> bool:
        assignment = self._seat.synced()
        if assignment is None:
            return self._seat.phase is not Phase.SYNCING
        self._measured.synced()
        self._commits.restart()
        assigned = decode_assignment(assignment)
        self._had = tuple(assigned), self._seat.generation
        self._untaken, self._untold = assigned, []
        self._seat.take()
        self._take()
        return True

    def _take(self) -> None:
        """Take the new assignment: partitions that are not in it are given up first, and the group is asked
        to assign them. After an interrupt the step is repeated; what the listener, or a commit, raises goes
        to the application.
        """
        topics = self._store.topics()
        try:
            self._have(self._untaken or [], topics)
        except Exception:
            self._untaken = None
            raise
        self._untaken = None

    def _have(self, assigned: Collection[TopicPartition], topics: Topics) -> None:
        subscription = self._subscription
        wanted = [tp for tp in assigned if tp.topic in (subscription.topics or ()) and tp.topic in topics]
        kept = set(wanted)
        gone = [tp for tp in subscription.states if tp not in kept]
        added = [tp for tp in wanted if tp not in subscription.states or tp in self._untold]
        self._untold = added
        self._ids = {tp.topic: topics[tp.topic].topic_id for tp in wanted}
        try:
            if gone:
                self._rejoin = True
                self._commits.positions(gone)
                self._give_up(gone, "revoked")
        finally:
            if subscription.automatic:  # and not unsubscribed by the listener
                subscription.have(wanted)
                if added or not self._cooperative:
                    self._tell("assigned", added if self._cooperative else wanted)

    def _give_up(self, gone: Collection[TopicPartition], how: str) -> None:
        """Call the listener, then give up the partitions, whatever it raises."""
        try:
            if gone:
                self._tell(how, gone)
        finally:
            left = set(gone)
            self._subscription.have([tp for tp in self._subscription.states if tp not in left])

    @calls_out
    def _tell(self, how: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None or self._telling:  # nor is it told of what it does itself
            return
        # Listeners of older versions of kafka-python have no on_partitions_lost, nor have objects that only
        # look like a listener.
        method: Callable[[Any], Any] | None = getattr(listener, f"on_partitions_{how}", None)
        self._telling = True
        try:
            with self._measured.listener(how):
                (method or listener.on_partitions_revoked)(partitions)
        finally:
            self._telling = False

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
        return self._seat.metadata

    def metrics(self) -> dict[str, dict[str, float]]:
        assigned, now = len(self._subscription.states), self._coordinator.now()
        return self._measured.snapshot(assigned, self._seat.pulse, now)

    # --- going -----------------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        self._leave(autocommit=True)

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        try:
            self._leave(autocommit)
        finally:
            self._commits.callbacks()

    def _leave(self, autocommit: bool) -> None:
        """Leave the group; a static member only stops, and keeps its place for its session timeout."""
        lost = self._subscription.automatic and self._seat.generation < 0
        try:
            if autocommit and not lost:
                self._commits.positions(closing=True)
            if self._subscription.automatic:
                self._give_up(list(self._subscription.states), "lost" if lost else "revoked")
        finally:
            self._seat.leave()  # first: others wait for this member's partitions
            self._leading, self._rejoin, self._joined_topics, self._ids = None, False, set(), {}
            self._untaken = None
            self.stale()

    @property
    def left(self) -> bool:
        return self._seat.left
