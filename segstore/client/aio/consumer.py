"""`AsyncConsumer`: the consumer for asyncio, in aiokafka's shapes. Its coroutines run in a thread that
belongs to the consumer, its plain methods in the thread that calls them.

Threads: one event loop; the coroutines of several tasks take turns. A plain method ends a wait of the
consumer's thread first, see `entry`.
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
    """`Consumer` in aiokafka's shapes: methods that may wait are coroutines, the others plain; `async for`
    yields single records, `async with` starts and stops it.

    A cancelled call ends when its thread is done with it, within SLICE_MS and a read, and loses nothing:
    records that a `poll` would have returned are read again. Deserializers, interceptors and listeners are
    called in the consumer's thread; `unsubscribe` calls the listener in its own. A listener's methods are
    plain, and may call plain methods of the consumer. Calls in another event loop than that of the first
    call raise IllegalStateError.
    """

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Raises what `Consumer` raises."""
        self._consumer = Consumer(store, *topics, **settings)
        group = self._consumer.config.group_id
        super().__init__(self._consumer, "segstore-consumer", f"AsyncConsumer group_id={group}")
        self._polled_ms: int | None = None

    def _look(self, method: Callable[Concatenate[Consumer, P], T], *arguments: P.args, **by: P.kwargs) -> T:
        """Call a method that reads objects which are replaced as a whole, beside the consumer's thread."""
        self._home.visit()
        self._consumer._guard.check()
        return unguarded(method)(self._consumer, *arguments, **by)

    # --- records ----------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> Polled:
        """See `Consumer.poll`. Raises IllegalStateError without a subscription or assignment, too."""
        polled: Polled = await self._sliced(
            lambda ms: self._consumer.poll(ms, max_records, update_offsets), len, timeout_ms
        )
        return polled

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> Polled:
        """See `poll`; of these partitions only where some are named (aiokafka: getmany). Raises
        IllegalStateError for one that is not assigned.
        """
        if not partitions:
            return await self.poll(timeout_ms, max_records)
        only = functools.partial(_poll_only, self._consumer, frozenset(partitions), max_records)
        polled: Polled = await self._sliced(only, len, timeout_ms)
        return polled

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """Return the next record, of these partitions only where some are named; wait for one without a limit
        (aiokafka: getone). Raises ClientClosedError where the consumer is closed meanwhile.
        """
        while True:
            polled = await self.getmany(*partitions, timeout_ms=_LONG_MS, max_records=1)
            for (record,) in polled.values():
                return record

    async def poll_arrow(self, timeout_ms: float = 0) -> pyarrow.Table:
        """See `Consumer.poll_arrow`."""
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
        """Raise IllegalStateError if there is nothing to read, as Java's consumer does: a wait would never
        end.
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
        """Return the next record. The iteration ends when none comes within consumer_timeout_ms, or the
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
        """Return the next record if it is there. Without one, wait for records until `end`, but for SLICE_MS
        at most, and return None and whether the caller is to look again.
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

    # --- plain, as aiokafka's -------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | SubscriptionPattern | None = None,
        listener: Any = None,
    ) -> None:
        """See `Consumer.subscribe`. Raises InvalidTypeError for a listener with coroutines, too."""
        for method in ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"):
            if inspect.iscoroutinefunction(getattr(listener, method, None)):
                raise InvalidTypeError(
                    f"listener {type(listener).__name__} has a coroutine {method}: its methods must be "
                    "plain, since the consumer's thread calls them; the consumer's plain methods work there"
                )
        self._now(self._consumer.subscribe, topics, pattern, listener)

    def subscription(self) -> set[str] | None:
        """See `Consumer.subscription`."""
        return self._look(Consumer.subscription)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.assign`."""
        self._now(self._consumer.assign, partitions)

    def unsubscribe(self) -> None:
        """See `Consumer.unsubscribe`."""
        self._now(self._consumer.unsubscribe)

    def assignment(self) -> set[TopicPartition]:
        """See `Consumer.assignment`."""
        return self._look(Consumer.assignment)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """See `Consumer.partitions_for_topic`."""
        return self._look(Consumer.partitions_for_topic, topic)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """See `Consumer.seek`."""
        self._now(self._consumer.seek, partition, offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """See `Consumer.pause`."""
        self._now(self._consumer.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """See `Consumer.resume`."""
        self._now(self._consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """See `Consumer.paused`."""
        # Not by `_look`: a `getmany` of some partitions pauses the others during its call.
        return self._now(self._consumer.paused)

    def highwater(self, partition: TopicPartition) -> int:
        """See `Consumer.highwater`."""
        return self._look(Consumer.highwater, partition)

    def last_stable_offset(self, partition: TopicPartition) -> int:
        """Return the offset up to which no transaction is open in an assigned partition, whatever the
        isolation level. Raises IllegalStateError.
        """
        self._check_assigned(partition)
        return self._consumer._lookups.log(partition).last_stable_offset

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return when the consumer looked for records last, in ms since the epoch; None before the first
        time. Raises IllegalStateError if the partition is not assigned.
        """
        self._check_assigned(partition)
        return self._polled_ms

    def _check_assigned(self, *partitions: TopicPartition) -> None:
        """Raise IllegalStateError, InvalidTypeError."""
        self._home.visit()
        self._consumer._guard.check()
        self._consumer._subscription.chosen(partitions)

    # --- the other coroutines ----------------------------------------------------------------

    async def topics(self) -> set[str]:
        """See `Consumer.topics`."""
        return await self._call(self._consumer.topics)

    async def position(self, partition: TopicPartition) -> int:
        """See `Consumer.position`."""
        return await self._call(self._consumer.position, partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """See `Consumer.seek_to_beginning`."""
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """See `Consumer.seek_to_end`."""
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go on at the committed offsets of these partitions, by default of all that are assigned, and
        return them; a partition without one, None, stays where it is. Raises IllegalStateError without a
        group, or for a partition that is not assigned.
        """
        self._check_assigned(*partitions)
        found: dict[TopicPartition, int | None] = {}
        for partition in partitions or sorted(self.assignment()):
            committed = await self.committed(partition, metadata=True)
            found[partition] = committed.offset if isinstance(committed, OffsetAndMetadata) else None
            if isinstance(committed, OffsetAndMetadata):
                self.seek(partition, committed)
        return found

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Consumer.beginning_offsets`."""
        return await self._call(self._consumer.beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Consumer.end_offsets`."""
        return await self._call(self._consumer.end_offsets, partitions)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `Consumer.offsets_for_times`."""
        return await self._call(self._consumer.offsets_for_times, timestamps)

    async def commit(self, offsets: ToCommit | None = None) -> None:
        """See `Consumer.commit`; an offset may also be a number, or a number and a note."""
        await self._call(self._consumer.commit, None if offsets is None else _with_metadata(offsets))

    async def committed(
        self, partition: TopicPartition, metadata: bool = False
    ) -> int | OffsetAndMetadata | None:
        """See `Consumer.committed`."""
        return await self._call(self._consumer.committed, partition, metadata)

    async def group_metadata(self) -> ConsumerGroupMetadata:
        """See `Consumer.group_metadata`."""
        return await self._call(self._consumer.group_metadata)

    async def metrics(self) -> dict[str, dict[str, float]]:
        """See `Consumer.metrics`."""
        return await self._call(self._consumer.metrics)

    # --- the beginning and the end ---------------------------------------------------------

    async def start(self) -> None:
        """Belong to this event loop, and bring the assignment up to date: without a group the consumer has
        all partitions of its topics then; a group's member has begun to join. Raises ClientClosedError.
        """
        await self._call(self._consumer._update)

    async def stop(self) -> None:
        """See `close`, which commits what was read where `enable_auto_commit` asks for it."""
        await self.close()

    async def close(self, autocommit: bool = True) -> None:
        """See `Consumer.close`. A call that is cancelled before its turn does nothing."""
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
    """Poll these partitions: the others are paused meanwhile."""
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
    for partition in polled.keys() - partitions:  # a rebalance has brought it within that call
        consumer.seek(partition, polled.pop(partition)[0].offset)
    return polled


def _with_metadata(offsets: Any) -> Any:
    """Return offsets as `Consumer.commit` takes them; it refuses other values, which stay as they are."""
    if not isinstance(offsets, Mapping):
        return offsets
    numbers = {tp: OffsetAndMetadata(at) for tp, at in offsets.items() if type(at) is int}
    pairs = {tp: OffsetAndMetadata(*at) for tp, at in offsets.items() if type(at) is tuple and len(at) == 2}
    return {**offsets, **numbers, **pairs}
