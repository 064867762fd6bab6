"""`ManualSubscription`: the coordination of a consumer that has no group, and gets all partitions of its
topics. `Coordination`: the protocol that `ManualSubscription` and `GroupSubscription` implement.

Threads: one, the consumer's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, Protocol

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalStateError
from segstore.mutex import calls_out
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.store import Store

# --- watch -------------------------------------------------------------------------------------

# `TopicWatch`: limits how often a consumer reads the list of its store's topics.

_SHARE = 100
"""A consumer spends at most 1/_SHARE of its time on reading the list of topics."""
_LEAST_AGE_MS = 10
"""The least time, in ms, between two reads of the list of topics, if the list has not changed."""


class TopicWatch:
    """Reads the list of a store's topics if the list may have changed: after a change of the store's `news`
    counter, but at the latest `max_age_ms` after the last read. A process that creates or deletes a topic or
    partition changes the counter, and so wakes waiting consumers; appends do not change the counter. A
    broker's directory has no counter: the list is then read again and again, for at most 1/`_SHARE` of the
    consumer's time.
    """

    def __init__(self, store: Store, max_age_ms: float) -> None:
        self._store, self._max_age = store, max(max_age_ms, _LEAST_AGE_MS) / 1000
        self._may_look = self._must_look = -math.inf
        self._seen = -1
        self._looked = -1, -math.inf, -math.inf

    def look(self) -> dict[str, TopicInfo] | None:
        """Return the topics. Return None if the topics have not changed after the last read, or if it is too
        early to read them again. A caller that has used the topics calls `done`; without that call the next
        `look` returns the topics again.
        """
        now, seen = time.monotonic(), self._store.news
        if now < self._may_look or (self._has_no_news(seen) and now < self._must_look):
            return None
        topics = self._store.topics()
        done = time.monotonic()
        self._looked = seen, done + self._max_age, done + min(_SHARE * (done - now), self._max_age)
        return topics

    def done(self) -> None:
        """Record that the consumer has used the topics that `look` returned last."""
        self._seen, self._must_look, self._may_look = self._looked

    def stale(self) -> None:
        """Make the next `look` read and return the topics in any case."""
        self._may_look = self._must_look = -math.inf

    def wait_ms(self) -> float:
        """Return the ms until the topics are due to be read again, if they don't change earlier."""
        # If the topics have changed, they are read again as soon as `_may_look` allows.
        at = self._must_look if self._has_no_news(self._store.news) else self._may_look
        return max(at - time.monotonic(), 0) * 1000

    def _has_no_news(self, news: int) -> bool:
        return news == self._seen and news >= 0


# --- coordination ------------------------------------------------------------------------------

# `Coordination`: assigns a consumer's partitions, and commits and reads the consumer's offsets.
# `group_member.GroupSubscription` implements the protocol for a member of a group, `ManualSubscription` for a
# consumer without a group.

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, "BaseException | None"], Any]


class Coordination(Protocol):
    """The coordination of one consumer. Only `poll`, `unsubscribe` and `close` change the assignment of
    the consumer's `Subscription` (by `have`), and call the listener.
    """

    @property
    def takes_regex(self) -> bool:
        """Return whether `subscribe` accepts a SubscriptionPattern."""

    def poll(self) -> None:
        """Update the assignment. Called each time before the partitions are checked for records."""

    def polled(self) -> None:
        """Record that the application polls. Called in place of `poll` if the partitions need no check for
        records, and the ms that `wait_ms` returned have not passed yet.
        """

    def wait_ms(self) -> float:
        """Return the ms until the consumer must call `poll` again, unless something is published before."""

    def stale(self) -> None:
        """Make the next `poll` read the list of topics. Called if a partition has proved to be deleted, or if
        the subscription changes.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offset of each of the `partitions` that has one."""

    def undecided(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions for which an open transaction may commit an offset. Whatever its isolation
        level, a consumer must wait until the transaction is complete before it reads these partitions. If it
        began at the older committed offset, it would repeat the work of the transaction (KIP-447). Kafka's
        Java consumer always requires stable offsets, too.
        """

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets, and wait until the offsets are written."""

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> Any:
        """Commit offsets without waiting, and return a future. `callback` is called with (offsets, None or
        the error).
        """

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the metadata of the consumer's current membership."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the membership: {group of metrics: {name: value}}."""

    def unsubscribe(self) -> None:
        """Commit the positions if auto commit is enabled; give up all partitions, and leave the group."""

    @property
    def left(self) -> bool:
        """Return whether the consumer is in no group. The result is False if an interrupt kept `close` from
        leaving the group.
        """

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        """Give up all partitions, and leave the group for good."""


# --- no group ------------------------------------------------------------


class ManualSubscription:
    """The coordination of a consumer without a group; implements `Coordination`. The creation of a topic or
    partition wakes a waiting consumer. New partitions are found at the latest metadata_max_age_ms after the
    last read of the list of topics.

    If a topic was deleted and created again, the old partitions are revoked, then the new ones are assigned.
    """

    takes_regex = False

    def __init__(self, store: Store, subscription: Subscription, config: ConsumerConfig) -> None:
        self._subscription = subscription
        self._exclude_internal = config.exclude_internal_topics
        self._watch = TopicWatch(store, config.metadata_max_age_ms)
        self._ids: dict[str, str] = {}
        self._in_listener = False

    def poll(self) -> None:
        if self._subscription.topics is not None and not self._in_listener:
            topics = self._watch.look()
            if topics is not None:
                self._take(topics)
                self._watch.done()

    def polled(self) -> None:
        """Do nothing: there is no group."""

    def wait_ms(self) -> float:
        return self._watch.wait_ms() if self._subscription.automatic else math.inf

    def stale(self) -> None:
        self._watch.stale()

    def _take(self, topics: dict[str, TopicInfo]) -> None:
        subscription = self._subscription
        found = subscription.matching(topics, self._exclude_internal)
        wanted = [TopicPartition(info.name, number) for info in found for number in info.partition_ids]
        ids = {info.name: info.topic_id for info in found}
        stay = [tp for tp in wanted if self._ids.get(tp.topic, ids[tp.topic]) == ids[tp.topic]]
        self._ids = ids
        kept = set(stay)
        try:
            self._revoke([tp for tp in subscription.states if tp not in kept])
        finally:
            new = [tp for tp in wanted if tp not in subscription.states]
            if new and subscription.automatic:
                # The consumer is still subscribed: the listener has not unsubscribed.
                subscription.have(wanted)
                self._call_listener("on_partitions_assigned", new)

    def _revoke(self, gone: Collection[TopicPartition]) -> None:
        """Call the listener, then give up the partitions `gone`, even if the listener raises an exception."""
        try:
            if gone and self._subscription.automatic:
                self._call_listener("on_partitions_revoked", gone)
        finally:
            left = set(gone)
            self._subscription.have([tp for tp in self._subscription.states if tp not in left])

    @calls_out
    def _call_listener(self, what: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None or self._in_listener:
            # The listener is not called for a change that the listener itself makes.
            return
        self._in_listener = True
        try:
            getattr(listener, what)(partitions)
        finally:
            self._in_listener = False

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {}

    def undecided(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return set()

    def commit(self, offsets: Offsets) -> None:
        _no_group()

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> Any:
        _no_group()

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata()

    def metrics(self) -> dict[str, dict[str, float]]:
        return {}

    def unsubscribe(self) -> None:
        self._revoke(list(self._subscription.states))
        self._ids = {}
        self.stale()

    @property
    def left(self) -> bool:
        return True

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        self.unsubscribe()


def _no_group() -> NoReturn:
    raise IllegalStateError("committed offsets belong to a group, and this consumer's group_id is None")
