"""`ManualSubscription`: a consumer without a group, to which a subscription gives all partitions of its
topics; and `Coordination`, the protocol that it and `GroupSubscription` implement.

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

# `TopicWatch`: looks at the topics of a store, neither too often nor too late.

_SHARE = 100
"""Looking at the topics takes at most one part in so many of a consumer's time."""
_LEAST_AGE_MS = 10
"""A consumer that waits must sleep; a publication wakes it anyway."""


class TopicWatch:
    """New topics and partitions are found within moments, and at the latest `max_age_ms` after the last
    look: the process that creates or deletes one tells that as news, which also wake a consumer that waits;
    records are no news. In a directory where nothing is published (a broker's) the watch looks as often as it
    may.
    """

    def __init__(self, store: Store, max_age_ms: float) -> None:
        self._store, self._max_age = store, max(max_age_ms, _LEAST_AGE_MS) / 1000
        self._may_look = self._must_look = -math.inf
        self._seen = -1
        self._looked = -1, -math.inf, -math.inf

    def look(self) -> dict[str, TopicInfo] | None:
        """Return the topics; None where there are no news since the last look, or it is too early for
        another. A look counts once `done` is called: where an interrupt comes before that, the look is
        repeated.
        """
        now, seen = time.monotonic(), self._store.news
        if now < self._may_look or (self._told_nothing(seen) and now < self._must_look):
            return None
        found = self._store.topics()
        done = time.monotonic()
        self._looked = seen, done + self._max_age, done + min(_SHARE * (done - now), self._max_age)
        return found

    def done(self) -> None:
        """Note that the consumer has acted on the last look."""
        self._seen, self._must_look, self._may_look = self._looked

    def stale(self) -> None:
        """Make the next `look` return the topics, whenever the last one was."""
        self._may_look = self._must_look = -math.inf

    def wait_ms(self) -> float:
        """Return when to look again, if there are no news before."""
        # A look that was too early when the consumer was woken is made as soon as it may be.
        at = self._must_look if self._told_nothing(self._store.news) else self._may_look
        return max(at - time.monotonic(), 0) * 1000

    def _told_nothing(self, news: int) -> bool:
        return news == self._seen and news >= 0


# --- coordination ------------------------------------------------------------------------------

# `Coordination`: what a consumer asks of whatever assigns partitions and has committed offsets.
# `group_member.GroupSubscription` implements it for a member of a group, `Ungrouped` for a consumer without.

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, "BaseException | None"], Any]


class Coordination(Protocol):
    """The coordination of one consumer. It changes the consumer's `Subscription` (by `have`) and calls its
    listener, both only in `poll`, `unsubscribe` and `close`.
    """

    @property
    def takes_regex(self) -> bool:
        """Return whether a SubscriptionPattern may be subscribed to."""

    def poll(self) -> None:
        """Bring the assignment up to date; called before each look for records."""

    def polled(self) -> None:
        """Note that the application polls; called in place of `poll` as long as `wait_ms` is not over, and
        nothing happened that `poll` would see.
        """

    def wait_ms(self) -> float:
        """Return how long the consumer may sleep, if nothing is published, before it must call `poll`
        again.
        """

    def stale(self) -> None:
        """Have the next `poll` look at the topics, whenever it did so last: a partition was found deleted."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of those partitions that have one: reading begins there."""

    def undecided(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions for which an open transaction is about to commit an offset: where reading
        begins is not known yet, whatever the isolation level. A consumer that began at an older offset
        would repeat what the transaction has done (KIP-447; so does Java's consumer, which always asks for
        stable offsets).
        """

    def commit(self, offsets: Offsets) -> None:
        """Commit; return when that is done."""

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> Any:
        """Commit without waiting; return a future. `callback` gets (offsets, None or the error)."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the consumer's membership as it is now."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return what was measured of the membership: group of metrics to name to value."""

    def unsubscribe(self) -> None:
        """Give up all partitions and the membership; with auto commit, what was read is committed."""

    @property
    def left(self) -> bool:
        """Return whether no group waits for this consumer; False where an interrupt kept `close` from
        leaving.
        """

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        """Unsubscribe for good."""


# --- no group ------------------------------------------------------------


class ManualSubscription:
    """Implements `Coordination`. New topics and partitions are found within moments, at the latest
    metadata_max_age_ms after the last look; their creation wakes a consumer that waits.

    A topic that was deleted and made anew has new partitions: the old ones are revoked first.
    """

    takes_regex = False

    def __init__(self, store: Store, subscription: Subscription, config: ConsumerConfig) -> None:
        self._subscription = subscription
        self._exclude_internal = config.exclude_internal_topics
        self._watch = TopicWatch(store, config.metadata_max_age_ms)
        self._ids: dict[str, str] = {}
        self._telling = False

    def poll(self) -> None:
        if self._subscription.topics is not None and not self._telling:
            topics = self._watch.look()
            if topics is not None:
                self._take(topics)
                self._watch.done()

    def polled(self) -> None:
        """Do nothing: nobody wants to know."""

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
            if new and subscription.automatic:  # and not unsubscribed by the listener
                subscription.have(wanted)
                self._tell("on_partitions_assigned", new)

    def _revoke(self, gone: Collection[TopicPartition]) -> None:
        """Call the listener, then give up the partitions, whatever it raises."""
        try:
            if gone and self._subscription.automatic:
                self._tell("on_partitions_revoked", gone)
        finally:
            left = set(gone)
            self._subscription.have([tp for tp in self._subscription.states if tp not in left])

    @calls_out
    def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None or self._telling:  # nor is it told of what it does itself
            return
        self._telling = True
        try:
            getattr(listener, what)(partitions)
        finally:
            self._telling = False

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
