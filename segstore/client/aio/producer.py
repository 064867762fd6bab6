"""`AsyncProducer`: the producer for asyncio, with aiokafka's names. Nothing on disk.

Threads: one event loop, which is never kept waiting: `send` awaits memory, and what blocks runs in a thread
of the producer's own, one call after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from segstore.client.aio.bridge import Awaited, Bridge
from segstore.client.aio.home import Home
from segstore.client.aio.line import Line
from segstore.client.aio.room import Room
from segstore.client.aio.transactional import Transactional
from segstore.client.producer import Producer, RecordMetadata
from segstore.client.producer.record import MAX_RECORD_OVERHEAD
from segstore.config import arguments
from segstore.records import HEADER_SIZE
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_OVERHEAD = HEADER_SIZE + MAX_RECORD_OVERHEAD


class AsyncProducer(Transactional):
    """`Producer` with coroutines in place of methods; `async with` starts and stops.

    Serializers, partitioner and `on_send` of interceptors are called in the event loop,
    `on_acknowledgement` in the sender's thread. A cancelled call that runs in the thread goes on there, and
    the next one waits for it.
    """

    def __init__(self, store: Store, **settings: Any) -> None:
        """Errors as `Producer`."""
        self._producer = Producer(store, **settings)
        self.config = config = self._producer.config
        # Then nobody knows before how large a record is.
        self._opaque = bool(config.key_serializer or config.value_serializer or config.interceptors)
        self._room = Room(self._producer)
        self._bridge = Bridge(self._room.look)
        self._home = Home(repr(self))
        self._line = Line(config.client_id)
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<AsyncProducer client_id={self.config.client_id}>"

    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """In the thread, behind earlier ones. Cancelled, it goes on. ClientClosedError."""
        return await asyncio.shield(self._begin(method, *arguments))

    def _begin(self, method: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        self._home.here()
        return self._line.run(partial(method, *arguments))

    # --- sending ------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> Awaited:
        """Hand a record over: a future of where it went. Waits up to `max_block_ms` while `buffer_memory` is
        full, and now and then gives way to other tasks; cancelled meanwhile, nothing was sent. Errors as
        `Producer.send`.
        """
        loop, need = self._home.here(), self._most(value, key, headers)
        if self._home.due():
            await asyncio.sleep(0)
        if not self._room.has(need):
            await self._room.wait(need)
        try:
            sent = self._producer.send(topic, value, key, headers, partition, timestamp_ms)
        finally:
            self._room.look()
        return self._bridge.future(loop, sent)

    def _most(self, value: Any, key: Any, headers: Any) -> int:
        """Bytes of memory that the record takes, at most."""
        if not (self._opaque or headers) and type(value) is bytes and (key is None or type(key) is bytes):
            return len(value) + len(key or b"") + _OVERHEAD
        return self.config.max_request_size + _OVERHEAD

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> RecordMetadata:
        """As `send`: where the record went. Cancelled while it waits for that, the record may be written."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def flush(self, timeout: float | None = None) -> None:
        """See `Producer.flush`; the futures of all records are done when it returns."""
        await self._call(self._producer.flush, timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """See `Producer.partitions_for`."""
        return self._producer.partitions_for(topic)

    async def metrics(self) -> dict[str, dict[str, float]] | None:
        """See `Producer.metrics`."""
        return self._producer.metrics()

    # --- the beginning and the end ---------------------------------------------------------

    async def start(self) -> None:
        """Belong to this event loop, as the first `send` does too; with a transactional_id see
        `Producer.init_transactions`.
        """
        self._home.here()
        if self.config.transactional_id is not None:
            await self._call(self._producer.init_transactions)

    async def stop(self, timeout: float | None = None) -> None:
        """See `Producer.close`. Cancelled, or called again, it goes on, and another call waits for it.
        InvalidTypeError, InvalidArgumentError: nothing was begun.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if self._stopping is None:
            self._stopping = self._begin(self._close, timeout)
        await asyncio.shield(self._stopping)

    def _close(self, timeout: float | None) -> None:
        try:
            self._producer.close(timeout)
        finally:
            self._line.end()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
