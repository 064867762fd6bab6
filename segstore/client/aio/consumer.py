"""`AsyncConsumer`: the consumer for asyncio, with aiokafka's methods. The work of its coroutines is done in
the consumer's own thread; a method that is no coroutine runs in the thread that calls the method.

Threads: one event loop; the coroutines of several tasks run one after another. A method that is no coroutine
may first end a wait of the consumer's thread (see `ConsumerEntry`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from segstore.client.aio.in_thread import InThread, nothing, part_of
from segstore.client.consumer import Consumer
from segstore.client.consumer.base import unguarded
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import SubscriptionPattern, SubscriptionType
from segstore.coordinator.structs import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from segstore.errors import IllegalStateError, InvalidTypeError
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Self, Unpack

    from segstore.client.consumer.settings import ConsumerSettings

ToCommit = Mapping[TopicPartition, "int | tuple[int, str] | OffsetAndMetadata"]
T = TypeVar("T")
P = ParamSpec("P")

_LONG_MS = 3_600_000


class AsyncConsumer(InThread):
    """`Consumer` with aiokafka's methods: methods that may wait are coroutines, all other methods are
    ordinary methods. `async for` yields single records, and `async with` starts and stops the consumer.

    A cancelled call returns only after the consumer's thread has finished the call. That takes at most
    SLICE_MS and the time of a read. No records are lost: the next call returns the records that a cancelled
    `poll` has read. Deserializers, interceptors and listeners are called in the consumer's thread;
    `unsubscribe` calls the listener in the thread that calls `unsubscribe`. A listener's methods must not be
    coroutines. They may call those methods of the consumer that are no coroutines. A call in another event
    loop than the first call raises IllegalStateError.
    """

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Raises the errors of `Consumer`."""
        self._consumer = Consumer(store, *topics, **settings)
        group = self._consumer.config.group_id
        super().__init__(self._consumer, "segstore-consumer", f"AsyncConsumer group_id={group}")
        self._polled_ms: int | None = None

    def _look(self, method: Callable[Concatenate[Consumer, P], T], *arguments: P.args, **by: P.kwargs) -> T:
        """Call a method without waiting for the consumer's thread, which may be changing the consumer during
        the call. So `method` may only read attributes whose objects are never changed, but replaced by other
        objects.
        """
        self._home.visit()
        self._consumer._guard.check()
        return unguarded(method)(self._consumer, *arguments, **by)

    # --- records ----------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> Polled:
        """Return records by partition, as `Consumer.poll` does. Raises the errors of `Consumer.poll`, and
        IllegalStateError if the consumer has no subscription or assignment.
        """
        polled: Polled = await self._sliced(
            lambda ms: self._consumer.poll(ms, max_records, update_offsets), len, timeout_ms
        )
        return polled

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> Polled:
        """Return records by partition, only of `partitions` if any are given (aiokafka: getmany). Raises the
        errors of `poll`, and IllegalStateError for a partition that is not assigned.
        """
        if not partitions:
            return await self.poll(timeout_ms, max_records)
        only = functools.partial(_poll_only, self._consumer, frozenset(partitions), max_records)
        polled: Polled = await self._sliced(only, len, timeout_ms)
        return polled

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """Wait without a limit for the next record of `partitions`, or of all partitions if none are given
        (aiokafka: getone); return the record. Raises ClientClosedError if the consumer is closed during the
        wait.
        """
        while True:
            polled = await self.getmany(*partitions, timeout_ms=_LONG_MS, max_records=1)
            for (record,) in polled.values():
                return record

    async def poll_arrow(self, timeout_ms: float = 0) -> pyarrow.Table:
        """Return all records of a fetch as a pyarrow.Table, as `Consumer.poll_arrow` does."""
        return await self._sliced(self._consumer.poll_arrow, lambda table: table.num_rows, timeout_ms)

    async def _sliced(
        self, poll: Callable[[float], Any], count: Callable[[Any], int], timeout_ms: float
    ) -> Any:
        deadline = self._consumer._deadline(timeout_ms)
        while True:
            self._check_subscribed()
            call = functools.partial(poll, part_of((deadline - time.monotonic()) * 1000))
            found = await self._turn(lambda call=call: self._done(call, self._consumer._give_back))  # type: ignore[misc]
            self._polled_ms = self._consumer._store.context.clock()
            if count(found) or time.monotonic() >= deadline:
                return found

    def _check_subscribed(self) -> None:
        """Raise IllegalStateError if the consumer has no subscription or assignment, because a wait for
        records would never end. Kafka's Java consumer raises the error, too.
        """
        self._consumer._guard.check()
        if self._consumer._subscription.kind is SubscriptionType.NONE:
            raise IllegalStateError(
                "the consumer is not subscribed to topics, and no partitions are assigned to it: call "
                "subscribe() or assign() first"
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record. The iteration ends if no record comes within consumer_timeout_ms, or if the
        consumer is closed.
        """
        end = time.monotonic() + self._consumer.config.consumer_timeout_ms / 1000
        if self._home.due():
            await asyncio.sleep(0)
        while True:
            record, goes_on = await self._turn(lambda: self._next(end))
            if record is not None:
                return record
            if not goes_on:
                raise StopAsyncIteration

    async def _next(self, end: float) -> tuple[ConsumerRecord | None, bool]:
        """Return (next record, False) if a record has been read. If not, wait for records until `end`, but
        for SLICE_MS at most, and return (None, True) if the caller must call again, or (None, False) if the
        iteration is over.
        """
        if self._astray:
            await self._run(nothing)
            self._astray = False
        guard, record = self._consumer._guard, self._consumer._take()
        if record is not None or guard.closed:
            return record, False
        self._check_subscribed()
        deadline = time.monotonic() + part_of((end - time.monotonic()) * 1000) / 1000
        found = await self._done(functools.partial(self._consumer._fill_alone, deadline))
        self._polled_ms = self._consumer._store.context.clock()
        return None, found or not (time.monotonic() >= end or guard.closed or guard.ending)

    # --- plain methods, as in aiokafka ----------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | SubscriptionPattern | None = None,
        listener: Any = None,
    ) -> None:
        """Subscribe to topics, as `Consumer.subscribe` does. Raises the errors of `Consumer.subscribe`, and
        InvalidTypeError if a method of the listener is a coroutine function.
        """
        for method in ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"):
            if inspect.iscoroutinefunction(getattr(listener, method, None)):
                raise InvalidTypeError(
                    f"listener {type(listener).__name__} has a coroutine {method}: its methods must be "
                    "plain, since the consumer's thread calls them; the consumer's plain methods work there"
                )
        self._now(self._consumer.subscribe, topics, pattern, listener)

    def subscription(self) -> set[str] | None:
        """Return the subscribed topics; None if there is no subscription."""
        return self._look(Consumer.subscription)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of the current assignment, as `Consumer.assign` does."""
        self._now(self._consumer.assign, partitions)

    def unsubscribe(self) -> None:
        """Drop the subscription or assignment, and give up all partitions."""
        self._now(self._consumer.unsubscribe)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return self._look(Consumer.assignment)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions; an empty set if there is no such topic. Raises
        InvalidTypeError.
        """
        return self._look(Consumer.partitions_for_topic, topic)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of a partition, as `Consumer.seek` does."""
        self._now(self._consumer.seek, partition, offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """Make polls skip these partitions until `resume`. Raises IllegalStateError for a partition that is
        not assigned.
        """
        self._now(self._consumer.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Make polls return records of these paused partitions again. Raises IllegalStateError for a
        partition that is not assigned.
        """
        self._now(self._consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        # `_look` is not used, because it would also return the partitions that a running `getmany` pauses.
        return self._now(self._consumer.paused)

    def highwater(self, partition: TopicPartition) -> int:
        """Return the high watermark of a partition. Raises IllegalStateError if it is not assigned."""
        return self._look(Consumer.highwater, partition)

    def last_stable_offset(self, partition: TopicPartition) -> int:
        """Return the last stable offset of a partition: all transactions below that offset are complete.
        Raises IllegalStateError if the partition is not assigned.
        """
        self._check_assigned(partition)
        return self._consumer._lookups.log(partition).last_stable_offset

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return the time when the consumer last checked for records, in ms since the epoch; None before the
        first check. Raises IllegalStateError if the partition is not assigned.
        """
        self._check_assigned(partition)
        return self._polled_ms

    def _check_assigned(self, *partitions: TopicPartition) -> None:
        """Raise InvalidTypeError for an object that is no TopicPartition, and IllegalStateError for a
        partition that is not assigned.
        """
        self._home.visit()
        self._consumer._guard.check()
        self._consumer._subscription.chosen(partitions)

    # --- offsets, groups, metrics ------------------------------------------------------------

    async def topics(self) -> set[str]:
        """Return the names of the store's topics, except for internal ones."""
        return await self._call(self._consumer.topics)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the record that a poll returns next, as `Consumer.position` does."""
        return await self._call(self._consumer.position, partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the positions of these partitions, by default of all assigned ones, to the log start offset."""
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the positions of these partitions, by default of all assigned ones, to the end of the readable
        records.
        """
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Set the positions of these partitions, by default of all assigned ones, to their committed offsets.
        Return the committed offset of each partition. The value of a partition without a committed offset is
        None, and the partition keeps its position. Raises IllegalStateError if the consumer has no group, or
        if a partition is not assigned.
        """
        self._check_assigned(*partitions)
        offsets: dict[TopicPartition, int | None] = {}
        for partition in partitions or sorted(self.assignment()):
            committed = await self.committed(partition, metadata=True)
            offsets[partition] = committed.offset if isinstance(committed, OffsetAndMetadata) else None
            if isinstance(committed, OffsetAndMetadata):
                self.seek(partition, committed)
        return offsets

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets. Raises UnknownTopicOrPartitionError."""
        return await self._call(self._consumer.beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition (see `Consumer.end_offsets`)."""
        return await self._call(self._consumer.end_offsets, partitions)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, offset and timestamp of the first record whose timestamp is not before
        the partition's time in `timestamps`, as `Consumer.offsets_for_times` does.
        """
        return await self._call(self._consumer.offsets_for_times, timestamps)

    async def commit(self, offsets: ToCommit | None = None) -> None:
        """Commit offsets, as `Consumer.commit` does. Each value of `offsets` may also be an int, or a tuple
        of an int and a metadata str.
        """
        await self._call(self._consumer.commit, None if offsets is None else _with_metadata(offsets))

    async def committed(
        self, partition: TopicPartition, metadata: bool = False
    ) -> int | OffsetAndMetadata | None:
        """Return the committed offset, or None, as `Consumer.committed` does."""
        return await self._call(self._consumer.committed, partition, metadata)

    async def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the metadata of the consumer's membership, to be passed to `send_offsets_to_transaction`."""
        return await self._call(self._consumer.group_metadata)

    async def metrics(self) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}, by Kafka's names."""
        return await self._call(self._consumer.metrics)

    # --- the beginning and the end ---------------------------------------------------------

    async def start(self) -> None:
        """Bind the consumer to this event loop, and update the assignment. If the consumer has no group, all
        partitions of its topics are assigned. If the consumer has a group, it begins to join the group.
        Raises ClientClosedError.
        """
        await self._call(self._consumer._update)

    async def stop(self) -> None:
        """Commit the positions if `enable_auto_commit` is set, then close the consumer."""
        await self.close()

    async def close(self, autocommit: bool = True) -> None:
        """Leave the group and give up all partitions, as `Consumer.close` does. A call that is cancelled
        while it waits for earlier calls does nothing.
        """
        guard = self._consumer._guard
        if self._line.ended:
            return
        try:
            await self._turn(functools.partial(self._close, autocommit))
        finally:
            if guard.closed:
                self._line.end()

    async def _close(self, autocommit: bool) -> None:
        if not self._consumer._guard.closed:
            await self._run(functools.partial(self._consumer.close, autocommit))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close(autocommit=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(autocommit=kind is None)


def _poll_only(
    consumer: Consumer, partitions: frozenset[TopicPartition], max_records: int | None, timeout_ms: float
) -> Polled:
    """Poll only these partitions: pause all other partitions during the poll."""
    if not partitions <= consumer.assignment():
        consumer._update()
    assigned = consumer.assignment()
    if not partitions <= assigned:
        missing = ", ".join(map(str, sorted(partitions - assigned)))
        raise IllegalStateError(f"not assigned to this consumer: {missing}")
    others = assigned - partitions - consumer.paused()
    consumer.pause(*others)
    try:
        polled = consumer.poll(timeout_ms, max_records)
    finally:
        consumer.resume(*(others & consumer.assignment()))
    for partition in polled.keys() - partitions:
        # This partition was assigned during the poll, so it was not paused. The poll's records of this
        # partition are dropped, and its position is set back.
        consumer.seek(partition, polled.pop(partition)[0].offset)
    return polled


def _with_metadata(offsets: Any) -> Any:
    """Convert the values of `offsets` to values that `Consumer.commit` accepts. Invalid values are returned
    unchanged; `commit` refuses them.
    """
    if not isinstance(offsets, Mapping):
        return offsets
    numbers = {tp: OffsetAndMetadata(at) for tp, at in offsets.items() if type(at) is int}
    pairs = {tp: OffsetAndMetadata(*at) for tp, at in offsets.items() if type(at) is tuple and len(at) == 2}
    return {**offsets, **numbers, **pairs}
