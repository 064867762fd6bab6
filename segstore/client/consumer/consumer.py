"""`Consumer`: reads the records of a store's topics, as kafka-python's KafkaConsumer does. A façade.

Nothing on disk of its own. Threads: one at a time; another is told so (ConcurrentModificationError).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.coordination import Coordination, Offsets, OnCommit
from segstore.client.consumer.fetcher import Fetcher, Given
from segstore.client.consumer.guard import Guard, alone
from segstore.client.consumer.interceptors import Interceptors, Polled
from segstore.client.consumer.iteration import Iteration
from segstore.client.consumer.lookups import Lookups
from segstore.client.consumer.metrics import ConsumerMetrics, NoMetrics
from segstore.client.consumer.positions import Positions
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import Subscription, topic_partition
from segstore.client.consumer.ungrouped import Ungrouped
from segstore.client.structs import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from segstore.errors import IllegalStateError, InvalidArgumentError, InvalidTypeError
from segstore.storage import arguments
from segstore.storage.store import Store
from segstore.storage.topics import find_topic

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Self

T = TypeVar("T")


class Consumer:
    """Pulls records of the partitions that it was assigned, or that follow from the topics it subscribed to.

    `settings` are kafka-python's, with its defaults; those of the network are refused by name. Without a
    group a subscription gives all partitions of its topics, new ones too, from the first `poll` on. Iterating
    gives records one by one; a context manager.
    """

    def __init__(self, store: Store, *topics: str, **settings: Any) -> None:
        """ConfigError, InvalidTypeError, UnknownTopicOrPartitionError."""
        if not isinstance(store, Store):
            raise InvalidTypeError(
                f"store must be a Store, as segstore.open() gives, not {type(store).__name__}"
            )
        self.config = ConsumerConfig.parse(settings)
        self._store, self._guard, self._iteration = store, Guard(), Iteration()
        self._subscription = Subscription()
        self._lookups = Lookups(store, self.config.isolation_level)
        self._metrics = (ConsumerMetrics if self.config.metrics_enabled else NoMetrics)(self.config)
        self._interceptors = Interceptors(self.config.interceptors)
        self._coordination: Coordination = Ungrouped(store, self._subscription, self.config)
        self._positions = Positions(
            store, self._subscription, self._coordination, self._lookups, self.config.auto_offset_reset
        )
        self._fetcher = Fetcher(self._subscription, self._positions, self.config, self._metrics)
        if topics:
            self.subscribe(topics)

    def __repr__(self) -> str:
        return f"<Consumer {self.config.client_id} of {self._store!r}>"

    # --- topics and partitions --------------------------------------------------------------

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
        wanted = [topic_partition(tp) for tp in partitions]
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
        """The numbers of a topic's partitions; empty where there is no such topic."""
        info = self._store.topics().get(topic)
        return set() if info is None else set(info.partition_ids)

    # --- records ----------------------------------------------------------------------------

    @alone
    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Polled:
        """Records that are there now, or came within `timeout_ms`: at most `max_records` (by default
        max_poll_records), by partition; partitions take turns.

        What was given counts as read. NoOffsetForPartitionError, OffsetOutOfRangeError (both only with
        auto_offset_reset "none"), CorruptRecordError, RecordDeserializationError, StorageError,
        StoreClosedError, UnknownTopicOrPartitionError of a partition that was assigned: positions stay where
        they are.
        """
        most = self.config.max_poll_records
        if max_records is not None:
            most = arguments.whole("max_records", max_records, 1)
        self._iteration.clear()
        given = self._wait(lambda: self._fetcher.records(most), self._deadline(timeout_ms))
        for part in given:
            part.state.seek(part.at, part.records[-1].leader_epoch)
        return self._intercepted(given)

    def _intercepted(self, given: list[Given]) -> Polled:
        polled = {part.tp: part.records for part in given}
        return self._interceptors.on_consume(polled) if polled and self._interceptors else polled

    @alone
    def poll_arrow(self, timeout_ms: float = 0) -> pyarrow.Table:
        """A whole fetch as a pyarrow.Table: what is there now, or came within `timeout_ms`, up to
        max_partition_fetch_bytes of each partition and fetch_max_bytes in all; no rows where nothing came.

        Columns: topic (dictionary of int32 to string), partition (int32), offset and timestamp (int64, ms),
        key and value (binary, as stored: deserializers and interceptors see records of `poll` only), headers
        (list of structs of key and value). Errors as `poll`.
        """
        from segstore.client.consumer.tables import table

        self._iteration.clear()
        return table(self._wait(self._fetcher.columns, self._deadline(timeout_ms)))

    def _deadline(self, timeout_ms: Any) -> float:
        try:
            timeout = float(timeout_ms)
        except (TypeError, ValueError):
            raise InvalidTypeError(f"timeout_ms must be a number, not {type(timeout_ms).__name__}") from None
        if not timeout >= 0:
            raise InvalidArgumentError(f"timeout_ms={timeout_ms}: must be at least 0")
        return time.monotonic() + timeout / 1000

    def _wait(self, look: Callable[[], list[T]], deadline: float) -> list[T]:
        """What `look` finds, until `deadline`. Sleeps between two looks until something is published."""
        self._metrics.polled()
        subscription, coordination = self._subscription, self._coordination
        while True:
            seen = self._store.publications
            coordination.poll()
            self._positions.resolve()
            found = look()
            if found:
                return found
            left = deadline - time.monotonic()
            if subscription.unresolved and self._may_resolve():
                continue
            if left <= 0:
                return found
            wait_ms = min(left * 1000, coordination.wait_ms(), self._fetcher.wait_ms())
            self._store.wait(seen, wait_ms)

    def _may_resolve(self) -> bool:
        """Whether positions that are missing can be found at once: a log was cut under the reader."""
        states = self._subscription.states.values()
        return any(state.position is None and state.log is not None for state in states)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record. Ends when none comes within consumer_timeout_ms, or the consumer is closed."""
        guard = self._guard
        guard.enter()
        try:
            deadline = None
            while (record := self._iteration.take()) is None and not guard.closed:
                deadline = deadline or time.monotonic() + self.config.consumer_timeout_ms / 1000
                if not self._fill(deadline):
                    break
        finally:
            guard.leave()
        if record is None:
            raise StopIteration
        return record

    def _fill(self, deadline: float) -> bool:
        """Find records to iterate over, until `deadline`; whether there are some."""
        given = self._wait(lambda: self._fetcher.records(self.config.max_poll_records), deadline)
        polled = self._intercepted(given)
        for part in given:
            self._iteration.put(part.state, polled.get(part.tp, ()), part.at)
        return bool(given)

    # --- for AsyncConsumer ---------------------------------------------------------------------

    @alone
    def _fill_alone(self, deadline: float) -> bool:
        return self._fill(deadline)

    def _take(self) -> ConsumerRecord | None:
        self._guard.enter()
        try:
            return None if self._guard.closed else self._iteration.take()
        finally:
            self._guard.leave()

    @alone
    def _give_back(self) -> None:
        self._fetcher.give_back()

    # --- positions --------------------------------------------------------------------------

    @alone
    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that will be given. IllegalStateError where it is not assigned,
        NoOffsetForPartitionError.
        """
        state = self._subscription.state(partition)
        self._positions.resolve()
        if state.position is None:
            self._lookups.log(topic_partition(partition))
            raise IllegalStateError(f"{partition} has no position yet: poll() first")
        return state.position

    @alone
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on at `offset`; one that is not there is dealt with by auto_offset_reset in the next poll.
        IllegalStateError where the partition is not assigned, InvalidArgumentError.
        """
        epoch = offset.leader_epoch if isinstance(offset, OffsetAndMetadata) else -1
        at = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        self._subscription.state(partition).seek(arguments.whole("offset", at, 0), epoch)
        self._iteration.clear()

    @alone
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the log start offset of these partitions, by default of all that are assigned: found in
        the next poll or `position`. IllegalStateError.
        """
        self._seek_to("earliest", partitions)

    @alone
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on behind the last record; as `seek_to_beginning`."""
        self._seek_to("latest", partitions)

    def _seek_to(self, where: str, partitions: Sequence[TopicPartition]) -> None:
        self._subscription.look(self._subscription.chosen(partitions), where)
        self._iteration.clear()

    @alone
    def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these partitions until they are resumed. IllegalStateError."""
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = True

    @alone
    def resume(self, *partitions: TopicPartition) -> None:
        """Give records of paused partitions again. IllegalStateError."""
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = False

    @alone
    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._subscription.states.items() if state.paused}

    @alone
    def highwater(self, partition: TopicPartition) -> int:
        """The high watermark of an assigned partition: the offset behind its last record."""
        self._subscription.state(partition)
        return self._lookups.log(topic_partition(partition)).high_watermark

    @alone
    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The log start offsets. UnknownTopicOrPartitionError."""
        return {tp: self._lookups.log(tp).start_offset for tp in map(topic_partition, partitions)}

    @alone
    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets behind the last record that may be read: the high watermark, with read_committed the
        last stable offset. UnknownTopicOrPartitionError.
        """
        lookups = self._lookups
        return {tp: lookups.end(lookups.log(tp)) for tp in map(topic_partition, partitions)}

    @alone
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition its first record stamped at or after a time (ms since the epoch), None where
        there is none. UnknownTopicOrPartitionError, InvalidArgumentError for a negative time.
        """
        wanted = {topic_partition(tp): arguments.whole("timestamp", at, 0) for tp, at in timestamps.items()}
        return {tp: self._lookups.for_time(self._lookups.log(tp), at) for tp, at in wanted.items()}

    # --- committed offsets -------------------------------------------------------------------

    @alone
    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit `offsets`, by default the positions of all partitions. IllegalStateError without a group."""
        committed = self._subscription.consumed() if offsets is None else offsets
        self._coordination.commit(committed)
        self._interceptors.on_commit(committed)

    @alone
    def commit_async(self, offsets: Offsets | None = None, callback: OnCommit | None = None) -> Any:
        """Commit without waiting: a future. IllegalStateError without a group."""
        committed = self._subscription.consumed() if offsets is None else offsets
        default: Any = self.config.default_offset_commit_callback
        return self._coordination.commit_async(committed, callback or default)

    @alone
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """The committed offset, None where there is none. IllegalStateError without a group."""
        tp = topic_partition(partition)
        if self.config.group_id is None:
            raise IllegalStateError("committed offsets belong to a group, and group_id is None")
        found = self._coordination.committed([tp]).get(tp)
        return found if found is None or metadata else found.offset

    @alone
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership of a group, for a transaction's offsets."""
        return self._coordination.group_metadata()

    # --- the consumer itself -----------------------------------------------------------------

    @alone
    def metrics(self) -> dict[str, dict[str, float]]:
        """What was measured: group of metrics to name to value, by Kafka's names."""
        return self._metrics.snapshot()

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Give all up. A second call does nothing. The store stays open."""
        self._guard.enter()
        try:
            if not self._guard.closed:
                try:
                    self._coordination.close(autocommit, timeout_ms)
                finally:
                    self._guard.closed = True
                    self._close_parts()
        finally:
            self._guard.leave()

    def _close_parts(self) -> None:
        self._subscription.unsubscribe()
        self._iteration.clear()
        self._interceptors.close()
        for part in (self.config.key_deserializer, self.config.value_deserializer):
            close = getattr(part, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(autocommit=kind is None)
