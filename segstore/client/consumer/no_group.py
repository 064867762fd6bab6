"""A consumer without a group: a subscription gives it all partitions of its topics. Nothing on disk.

Threads: one, the consumer's.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NoReturn

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.coordination import Offsets, OnCommit
from segstore.client.consumer.subscription import Subscription
from segstore.client.consumer.watch import TopicWatch
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalStateError
from segstore.mutex import calls_out
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.store import Store


class Ungrouped:
    """Implements `coordination.Coordination`. New topics and partitions are found within moments, at the
    latest metadata_max_age_ms after the last look; their creation wakes a consumer that waits.

    A topic that was deleted and made anew has new partitions: the old ones are revoked first.
    """

    def __init__(self, store: Store, subscription: Subscription, config: ConsumerConfig) -> None:
        self._subscription = subscription
        self._exclude_internal = config.exclude_internal_topics
        self._watch = TopicWatch(store, config.metadata_max_age_ms)
        self._ids: dict[str, str] = {}
        self._telling = False

    def poll(self) -> None:
        if self._subscription.automatic and not self._telling:
            topics = self._watch.look()
            if topics is not None:
                self._take(topics)
                self._watch.done()

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
        """Tell the listener, then have them no more, whatever it raises."""
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
