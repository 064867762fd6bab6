"""`Assigning`, `Seeking`, `Committing`: the methods of `Consumer` for topics and assignment, for positions
and look-ups, and for commits.

On disk: nothing of its own. Threads: one at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from segstore.client.consumer.base import Parts, alone
from segstore.client.consumer.no_group import Offsets, OnCommit
from segstore.client.consumer.subscription import SubscriptionPattern, topic_partition, topic_partitions
from segstore.config import arguments
from segstore.coordinator.retriable import when_loaded
from segstore.coordinator.structs import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from segstore.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    KafkaTimeoutError,
)
from segstore.storage.meta.topics import find_topic


class Assigning(Parts):
    """Methods for a consumer's topics and partitions."""

    @alone
    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | SubscriptionPattern | None = None,
        listener: Any = None,
    ) -> None:
        """Subscribe to the named topics, or to all present and future topics whose name begins with a match
        of the regular expression `pattern`. With group_protocol="consumer", `pattern` may also be a
        SubscriptionPattern, which the group's coordinator matches against topic names. The subscription
        replaces an earlier one.

        `listener` (ConsumerRebalanceListener) is called in `poll`, `unsubscribe` and `close`. If the consumer
        has no group, `poll` calls the listener only for the first assignment, and after partitions were
        created or deleted. Raises InvalidArgumentError, InvalidRegularExpressionError, InvalidTypeError.
        Raises UnknownTopicOrPartitionError for a named topic that does not exist, and IllegalStateError after
        `assign`.
        """
        if isinstance(pattern, SubscriptionPattern) and not self._coordination.takes_regex:
            raise InvalidArgumentError(
                f"pattern={pattern!r}: a group's coordinator matches it, with "
                'group_protocol="consumer"; the consumer itself matches a str'
            )
        if isinstance(topics, Collection) and not isinstance(topics, str):
            there = self._store.topics()
            for name in topics:
                find_topic(there, name)
        self._subscription.subscribe(topics, pattern, listener)
        self._coordination.stale()
        self._iteration.clear()

    @alone
    def subscription(self) -> set[str] | None:
        """Return the subscribed topics. If the subscription is a pattern, return the topics that have matched
        so far. Return None if there is no subscription.
        """
        topics = self._subscription.topics
        return None if topics is None else set(topics)

    @alone
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of the current assignment. A partition that was assigned before keeps
        its position.

        Raises UnknownTopicOrPartitionError, and IllegalStateError after `subscribe`. After an error nothing
        is changed.
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
        """Drop the subscription or assignment, and give up all partitions."""
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._coordination.unsubscribe()
        self._subscription.unsubscribe()
        self._iteration.clear()
        self._metrics.forget(set())

    @alone
    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._subscription.states)

    @alone
    def topics(self) -> set[str]:
        """Return the names of the store's topics, except for internal ones."""
        hide = self.config.exclude_internal_topics
        return {name for name, info in self._store.topics().items() if not (hide and info.internal)}

    @alone
    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions; an empty set if there is no such topic. Raises
        InvalidTypeError.
        """
        if not isinstance(topic, str):
            raise InvalidTypeError(f"topic must be a str, not {type(topic).__name__}")
        info = self._store.topics().get(topic)
        return set() if info is None else set(info.partition_ids)


# --- seeking -----------------------------------------------------------------------------------

# `Seeking`: a consumer's positions, and look-ups of offsets.


class Seeking(Parts):
    """Methods for a consumer's positions."""

    @alone
    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """Return the offset of the record that a poll returns next. Raises NoOffsetForPartitionError, and
        IllegalStateError if the partition is not assigned, or has no position yet.
        """
        state = self._subscription.state(partition)
        self._positions.resolve()
        if state.position is None:
            self._lookups.log(topic_partition(partition))
            raise IllegalStateError(f"{partition} has no position yet: poll() first")
        return state.position

    @alone
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position to `offset`; if the log does not have that offset, the next poll applies
        auto_offset_reset. Raises InvalidArgumentError, and IllegalStateError if the partition is not
        assigned.
        """
        epoch = offset.leader_epoch if isinstance(offset, OffsetAndMetadata) else -1
        at = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        state = self._subscription.state(partition)
        state.seek(arguments.whole("offset", at, 0), epoch)
        self._fetcher.moved([state])
        self._iteration.clear()

    @alone
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the positions of these partitions, by default of all assigned ones, to the log start offset;
        the next poll or `position` looks this offset up. Raises IllegalStateError.
        """
        self._seek_to("earliest", partitions)

    @alone
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the positions of these partitions, by default of all assigned ones, to the end of the readable
        records; the next poll or `position` looks this offset up. Raises IllegalStateError.
        """
        self._seek_to("latest", partitions)

    def _seek_to(self, where: str, partitions: Sequence[TopicPartition]) -> None:
        states = self._subscription.chosen(partitions)
        self._subscription.look(states, where)
        self._fetcher.moved(states)
        self._iteration.clear()

    @alone
    def pause(self, *partitions: TopicPartition) -> None:
        """Make polls skip these partitions until `resume`. Raises IllegalStateError for a partition that is
        not assigned.
        """
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = True

    @alone
    def resume(self, *partitions: TopicPartition) -> None:
        """Make polls return records of these paused partitions again. Raises IllegalStateError for a
        partition that is not assigned.
        """
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = False

    @alone
    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {tp for tp, state in self._subscription.states.items() if state.paused}

    @alone
    def highwater(self, partition: TopicPartition) -> int:
        """Return the high watermark of an assigned partition: the offset after the last record that consumers
        with read_uncommitted may read.
        """
        self._subscription.state(partition)
        return self._lookups.log(topic_partition(partition)).high_watermark

    @alone
    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offsets. Raises UnknownTopicOrPartitionError."""
        return {tp: self._lookups.log(tp).start_offset for tp in topic_partitions(partitions)}

    @alone
    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition. With read_uncommitted the
        offset is the high watermark; with read_committed it is the last stable offset. Raises
        UnknownTopicOrPartitionError.
        """
        lookups = self._lookups
        return {tp: lookups.end(lookups.log(tp)) for tp in topic_partitions(partitions)}

    @alone
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, offset and timestamp of the first record whose timestamp is not before
        the partition's time in `timestamps` (ms since the epoch). The value is None if there is no such
        record. Raises UnknownTopicOrPartitionError, and InvalidArgumentError for a negative time.
        """
        if not isinstance(timestamps, Mapping):
            raise InvalidTypeError(f"timestamps must be a dict, not {type(timestamps).__name__}")
        wanted = {topic_partition(tp): arguments.whole("timestamp", at, 0) for tp, at in timestamps.items()}
        return {tp: self._lookups.for_time(self._lookups.log(tp), at) for tp, at in wanted.items()}


# --- committing --------------------------------------------------------------------------------

# `Committing`: the committed offsets of a consumer's group.


class Committing(Parts):
    """Methods for the committed offsets of a consumer's group."""

    @alone
    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit `offsets`, by default the positions of all partitions. All of these offsets are committed,
        or none.

        Raises CommitFailedError if the group has removed the member, or has rebalanced: this or another
        member may then read the records since the last commit again. Raises RebalanceInProgressError; the
        application must then poll before it commits again. Raises FencedInstanceIdError,
        UnknownTopicOrPartitionError, OffsetMetadataTooLargeError, StorageError, InvalidTypeError. Raises
        IllegalStateError if the consumer has no group, and KafkaTimeoutError if the group's offsets can't be
        read within `timeout_ms`, by default 60 s. After an error nothing was committed.
        """
        wanted = self._subscription.consumed() if offsets is None else offsets
        check = self._guard.check_wait
        when_loaded(self._store, lambda: self._coordination.commit(wanted), check, timeout_ms)

    @alone
    def commit_async(self, offsets: Offsets | None = None, callback: OnCommit | None = None) -> Any:
        """Commit `offsets`, by default the positions of all partitions. An error is stored in the returned
        future; `callback` (by default default_offset_commit_callback) is called with (offsets, None or the
        error) in the next poll, commit or close. Raises InvalidTypeError, and IllegalStateError if the
        consumer has no group.
        """
        committed = self._subscription.consumed() if offsets is None else offsets
        if callback is None:
            default: Any = self.config.default_offset_commit_callback
            callback = default
        elif not callable(callback):
            raise InvalidTypeError(f"callback must be a callable, or None, not {type(callback).__name__}")
        return self._coordination.commit_async(committed, callback)

    @alone
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """Return the committed offset, or None if there is none. Waits until the group's offsets are loaded,
        by default up to 60 s. With read_committed, waits further until no open transaction may commit another
        offset, by default without a limit. Raises KafkaTimeoutError after `timeout_ms`, and IllegalStateError
        if the consumer has no group.
        """
        tp = topic_partition(partition)
        if self.config.group_id is None:
            raise IllegalStateError("committed offsets belong to a group, and group_id is None")
        limit = math.inf if timeout_ms is None else timeout_ms

        def look() -> OffsetAndMetadata | None:
            self._decided(tp, limit)
            return self._coordination.committed([tp]).get(tp)

        found = when_loaded(self._store, look, self._guard.check_wait, timeout_ms)
        return found if found is None or metadata else found.offset

    def _decided(self, tp: TopicPartition, timeout_ms: float) -> None:
        end = time.monotonic() + timeout_ms / 1000
        while True:
            seen = self._store.publications
            self._guard.check_wait()
            if self.config.isolation_level != "read_committed" or not self._coordination.undecided([tp]):
                return
            left = end - time.monotonic()
            if left <= 0:
                raise KafkaTimeoutError(f"a transaction over the offset of {tp} was open for {timeout_ms} ms")
            self._store.wait(seen, left * 1000)

    @alone
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the metadata of the consumer's membership, to be passed to
        `Producer.send_offsets_to_transaction`.
        """
        return self._coordination.group_metadata()
