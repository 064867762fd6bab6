"""`AsyncShareConsumer`: the share consumer for asyncio. The work of its coroutines is done in the consumer's
own thread; a method that is no coroutine runs in the thread that calls the method.

Threads: one event loop; the coroutines of several tasks run one after another. A method that is no coroutine
first ends a wait of the consumer's thread (see `ConsumerEntry`).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from segstore.client.aio.in_thread import InThread, nothing, part_of
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.share.acknowledgements import OnAcknowledged
from segstore.client.share.base import span
from segstore.client.share.consumer import ShareConsumer
from segstore.coordinator.share.core.values import AcknowledgeType
from segstore.coordinator.structs import TopicPartition
from segstore.errors import SegstoreError, StoreClosedError, copy_of
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from segstore.client.share.settings import ShareConsumerSettings


class Noted:
    """The result of a method that is no coroutine. The method has done its work when it returns. Callers may
    await the result, but need not.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        """Return without waiting."""
        yield from ()


_NOTED = Noted()


class AsyncShareConsumer(InThread):
    """`ShareConsumer` for asyncio: methods that may wait are coroutines, all other methods are ordinary
    methods. The results of `acknowledge`, `acknowledge_offset`, `subscribe`, `unsubscribe` and
    `set_acknowledgement_commit_callback` may be awaited, too. `async with` starts and stops the consumer.
    `async for` yields single records. In implicit mode a record is accepted when the iteration asks for the
    next record.

    A cancelled call returns only after the consumer's thread has finished the call. That takes at most
    SLICE_MS and the time of a read. No records are lost: the next `poll` returns the records that a cancelled
    `poll` has acquired. Deserializers and the acknowledgement commit callback are called in the consumer's
    thread. A call in another event loop than the first call raises IllegalStateError.
    """

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ShareConsumerSettings]) -> None:
        """Raises the errors of `ShareConsumer`."""
        self._consumer = ShareConsumer(store, *topics, **settings)
        self.config = self._consumer.config
        name = f"AsyncShareConsumer group_id={self.config.group_id}"
        super().__init__(self._consumer, "segstore-share-consumer", name)

    def __repr__(self) -> str:
        return f"<AsyncShareConsumer {self.config.client_id} of group {self.config.group_id!r}>"

    # --- records ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Polled:
        """Return acquired records by partition, as `ShareConsumer.poll` does."""
        polled: Polled = await self._sliced(self._consumer.poll, timeout_ms, max_records)
        return polled

    async def poll_flat(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return acquired records as one list, as `ShareConsumer.poll_flat` does."""
        records: list[ConsumerRecord] = await self._sliced(self._consumer.poll_flat, timeout_ms, max_records)
        return records

    async def _sliced(self, poll: Callable[..., Any], timeout_ms: float, max_records: int | None) -> Any:
        deadline = time.monotonic() + span(timeout_ms) / 1000
        while True:
            call = functools.partial(poll, part_of((deadline - time.monotonic()) * 1000), max_records)
            found = await self._turn(lambda call=call: self._done(call, self._consumer._give_back))  # type: ignore[misc]
            if found or time.monotonic() >= deadline:
                return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record; the iteration ends when the consumer is closed."""
        if self._home.due():
            await asyncio.sleep(0)
        while not self._consumer._guard.closed:
            record = await self._turn(self._next)
            if record is not None:
                return record
        self._check_store()
        raise StopAsyncIteration

    def _check_store(self) -> None:
        """Raise StoreClosedError if the consumer was closed because its store was closed."""
        refusal = self._consumer._guard.refusal()
        if isinstance(refusal, StoreClosedError):
            raise copy_of(refusal)

    async def _next(self) -> ConsumerRecord | None:
        """Return the next record if a record has been acquired. If not, wait for records for SLICE_MS at
        most, and return None.
        """
        if self._astray:
            await self._run(nothing)
            self._astray = False
        if self._consumer._guard.closed:
            return None
        record = self._consumer._next()
        if record is None:
            await self._done(functools.partial(self._consumer._fill, part_of(1000)))
        return record

    # --- plain methods -----------------------------------------------------------------------------

    def acknowledge(
        self, record: ConsumerRecord, type: AcknowledgeType = AcknowledgeType.ACCEPT, *others: object
    ) -> Noted:
        """Store a record's acknowledgement, as `ShareConsumer.acknowledge` does. The next poll or commit
        sends it.
        """
        self._now(self._consumer.acknowledge, record, type, *others)
        return _NOTED

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> Noted:
        """Store the acknowledgement of the record at `offset`, as `ShareConsumer.acknowledge_offset` does.
        The next poll or commit sends it.
        """
        self._now(self._consumer.acknowledge_offset, topic, partition, offset, type)
        return _NOTED

    def subscribe(self, topics: Collection[str]) -> Noted:
        """Subscribe to topics instead of the earlier topics, as `ShareConsumer.subscribe` does."""
        self._now(self._consumer.subscribe, topics)
        return _NOTED

    def unsubscribe(self) -> Noted:
        """Leave the group, and drop the subscription."""
        self._now(self._consumer.unsubscribe)
        return _NOTED

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return self._now(self._consumer.subscription)

    def set_acknowledgement_commit_callback(self, callback: OnAcknowledged | None) -> Noted:
        """Set the callback for sent acknowledgements, as `ShareConsumer.set_acknowledgement_commit_callback`
        does.
        """
        self._now(self._consumer.set_acknowledgement_commit_callback, callback)
        return _NOTED

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """Return the ms for which the last delivered records stay acquired by this member; None before the
        first delivery.
        """
        return self._consumer.acquisition_lock_timeout_ms

    def wakeup(self) -> None:
        """Make the running poll raise WakeupError, or the next poll if none is running. A running poll that
        has found records returns them, and the next poll raises the error.
        """
        self._consumer.wakeup()

    # --- commits and metrics -----------------------------------------------------------------------

    async def commit_sync(
        self, timeout_ms: float | None = None
    ) -> dict[TopicPartition, SegstoreError | None]:
        """Send the stored acknowledgements, as `ShareConsumer.commit_sync` does. If the call is cancelled,
        the acknowledgements may have been sent.
        """
        return await self._call(self._consumer.commit_sync, timeout_ms)

    async def commit_async(self) -> None:
        """Send the stored acknowledgements. Errors are passed to the acknowledgement commit callback."""
        await self._call(self._consumer.commit_async)

    async def metrics(self) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}, by Kafka's names."""
        return await self._call(self._consumer.metrics)

    # --- the beginning and the end -----------------------------------------------------------------

    async def start(self) -> None:
        """Bind the consumer to this event loop, and join the group if the consumer is subscribed. Raises
        ClientClosedError.
        """
        await self._call(self._consumer._join)

    async def stop(self) -> None:
        """Close the consumer."""
        await self.close()

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Send the stored acknowledgements and leave the group, as `ShareConsumer.close` does. A call that is
        cancelled while it waits for earlier calls does nothing.
        """
        span(timeout_ms)
        await self._close(True)

    async def _close(self, accepts: bool) -> None:
        if self._line.ended:
            return
        try:
            await self._turn(functools.partial(self._close_now, accepts))
        finally:
            if self._consumer._guard.closed:
                self._line.end()

    async def _close_now(self, accepts: bool) -> None:
        if not self._consumer._guard.closed:
            await self._run(functools.partial(self._consumer._close, accepts))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._close(False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the consumer. If the block has raised an exception, release the records of the last poll that
        have no acknowledgement.
        """
        await self._close(kind is None)
