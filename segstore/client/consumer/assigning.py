"""A consumer's topics and partitions. Nothing on disk. Threads: one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from segstore.client.consumer.base import alone
from segstore.client.consumer.parts import Parts
from segstore.client.consumer.subscription import topic_partitions
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidTypeError
from segstore.storage.meta.topics import find_topic


class Assigning(Parts):
    """What a consumer reads."""

    @alone
    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Read the topics named, or all whose name matches the regular expression `pattern` at its start,
        those made later too. Replaces an earlier subscription.

        `listener` (ConsumerRebalanceListener) is told of partitions in `poll`, `unsubscribe` and `close`;
        without a group of those that come and go only. UnknownTopicOrPartitionError for a topic that is not
        there (a pattern waits for it), IllegalStateError after `assign`, InvalidArgumentError,
        InvalidTypeError.
        """
        if isinstance(topics, Collection) and not isinstance(topics, str):
            there = self._store.topics()
            for name in topics:
                find_topic(there, name)
        self._subscription.subscribe(topics, pattern, listener)
        self._coordination.stale()
        self._iteration.clear()

    @alone
    def subscription(self) -> set[str] | None:
        """The topics subscribed to; of a pattern those found so far. None without a subscription."""
        topics = self._subscription.topics
        return None if topics is None else set(topics)

    @alone
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, in place of those assigned before; partitions that stay keep their position.

        UnknownTopicOrPartitionError: nothing is changed; IllegalStateError after `subscribe`.
        """
        wanted = topic_partitions(partitions)
        if not wanted:
            self._unsubscribe()
            return
        for tp in wanted:
            self._lookups.log(tp)
        self._subscription.assign(wanted)
        self._metrics.forget(set(wanted))

    @alone
    def unsubscribe(self) -> None:
        """Give up topics and partitions."""
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._coordination.unsubscribe()
        self._subscription.unsubscribe()
        self._iteration.clear()
        self._metrics.forget(set())

    @alone
    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned now."""
        return set(self._subscription.states)

    @alone
    def topics(self) -> set[str]:
        """The names of all topics of the store, but internal ones."""
        hide = self.config.exclude_internal_topics
        return {name for name, info in self._store.topics().items() if not (hide and info.internal)}

    @alone
    def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions; empty where there is no such topic. InvalidTypeError."""
        if not isinstance(topic, str):
            raise InvalidTypeError(f"topic must be a str, not {type(topic).__name__}")
        info = self._store.topics().get(topic)
        return set() if info is None else set(info.partition_ids)
