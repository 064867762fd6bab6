"""`AsyncProducer`: the producer for asyncio, with aiokafka's names.

Threads: one event loop, which is never blocked. `send` is suspended while there is no memory. A thread of the
producer makes the blocking calls, one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from segstore.client.aio.home import ClientHome
from segstore.client.aio.line import Line
from segstore.client.producer import FutureRecordMetadata, Producer, RecordMetadata
from segstore.client.producer.record import MAX_RECORD_OVERHEAD
from segstore.config import arguments
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    BufferExhaustedError,
    ClientClosedError,
    KafkaTimeoutError,
    ProducerFencedError,
    copy_of,
)
from segstore.logger import Logger
from segstore.records import HEADER_SIZE
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from segstore.client.producer.settings import ProducerSettings


# --- bridge ------------------------------------------------------------------------------------

# `Bridge`: passes outcomes of records from the sender's thread to the event loop. Threads: the loop's and the
# sender's. One wake-up of the loop delivers the outcomes of one batch or more, so that not every record wakes
# the loop.

Awaited = asyncio.Future[RecordMetadata]


class Bridge:
    """The bridge of one producer. After the event loop has delivered outcomes, it calls `freed`, because the
    memory of the delivered records is free then.
    """

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._known: deque[tuple[Awaited, RecordMetadata | BaseException]] = deque()
        self._woken = False

    def future(self, loop: asyncio.AbstractEventLoop, sent: FutureRecordMetadata) -> Awaited:
        """Return an asyncio future of the record's metadata. If the future is cancelled, the record is still
        sent.
        """
        awaited: Awaited = loop.create_future()
        known = partial(self._resolve, awaited)
        sent._when_done(known, known)
        return awaited

    def _resolve(self, awaited: Awaited, outcome: RecordMetadata | BaseException) -> None:
        self._known.append((awaited, outcome))
        if self._woken:
            return
        self._woken = True
        try:
            awaited.get_loop().call_soon_threadsafe(self._complete_known)
        except RuntimeError:
            # A RuntimeError means that the loop was closed: no task awaits the futures.
            self._known.clear()
            self._woken = False

    def _complete_known(self) -> None:
        # The flag is cleared before the `for` statement, so that an outcome that comes during that statement
        # wakes the event loop again.
        self._woken = False
        for _ in range(len(self._known)):
            awaited, outcome = self._known.popleft()
            if awaited.done():
                continue
            if isinstance(outcome, BaseException):
                # Each future gets a copy of the error, because each copy has its own traceback.
                awaited.set_exception(copy_of(outcome))
            else:
                awaited.set_result(outcome)
        self._freed()


# --- room --------------------------------------------------------------------------------------

# `Room`: tasks that wait for memory in a producer's buffer pool, in order. Threads: only the thread of the
# event loop, which never waits in `BufferPool.wait_until`. No other thread allocates memory, so free memory
# stays free until this thread allocates it.


class _Waiter:
    __slots__ = ("need", "turn")

    def __init__(self, need: int, turn: asyncio.Future[None]) -> None:
        self.need, self.turn = need, turn


class Room:
    """The tasks that wait for memory of `producer`. Sizes are in bytes."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self._pool = producer, producer._accumulator.pool
        self._waiters: deque[_Waiter] = deque()

    def has(self, need: int) -> bool:
        """Return whether there is memory for a record of `need` bytes, and no task waits for memory."""
        return not self._waiters and self._fits(need)

    def _fits(self, need: int) -> bool:
        # A small record may need a whole block. A record that is larger than the pool waits until the pool is
        # empty, and is then refused by `send`.
        pool = self._pool
        return pool.available >= min(max(need, pool.block_size), pool.total)

    async def wait(self, need: int) -> None:
        """Wait for memory. After that, the task must send its record at once, and call `look`, which resumes
        the next task. Raises BufferExhaustedError.
        """
        loop = asyncio.get_running_loop()
        me = _Waiter(need, loop.create_future())
        self._waiters.append(me)
        timer = loop.call_later(self._producer.config.max_block_ms / 1000, self._give_up, me)
        try:
            self.look()
            await me.turn
        except BaseException:
            self._waiters.remove(me)
            self.look()
            raise
        finally:
            timer.cancel()
        self._waiters.popleft()

    def look(self) -> None:
        """Resume the first waiting task if there is memory for its record; if there is not, make the sender
        send all batches, because that frees memory.
        """
        if not self._waiters or self._waiters[0].turn.done():
            return
        if self._fits(self._waiters[0].need):
            self._waiters[0].turn.set_result(None)
        else:
            with contextlib.suppress(KafkaTimeoutError):
                # With `timeout=0`, this begins a flush, and does not wait for the end of the flush.
                self._producer.flush(timeout=0)

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.turn.done():
            return
        with self._producer._accumulator.lock:
            self._pool.exhausted += 1
        waiter.turn.set_exception(
            BufferExhaustedError(
                f"no {waiter.need:,} bytes of buffer_memory={self._pool.total:,} became free within "
                f"max_block_ms={self._producer.config.max_block_ms:.0f}"
            )
        )


# --- transactional -----------------------------------------------------------------------------

# The transactions of an `AsyncProducer`.

log = Logger("segstore")


class Transactional(ABC):
    """The transactions of `Producer` as coroutines. A cancelled commit or abort continues, and the next call
    waits until that commit or abort has ended. If `begin_transaction` is cancelled, the transaction is
    aborted.
    """

    _producer: Producer

    @abstractmethod
    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Run a method in the producer's thread."""

    def transaction(self) -> Transaction:
        """Return an async context manager that begins a transaction, and commits it on exit. If the block
        raises an exception, the transaction is aborted.
        """
        return Transaction(self)

    @abstractmethod
    def _begin(self, method: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a method in the producer's thread; return a future of the method's result."""

    async def begin_transaction(self) -> None:
        """Begin a transaction, as `Producer.begin_transaction` does. If the call is cancelled, the
        transaction is aborted.
        """
        begun: list[bool] = []

        def begin() -> None:
            self._producer.begin_transaction()
            begun.append(True)

        def take_back() -> None:
            if begun:
                self._producer.abort_transaction()

        try:
            await self._call(begin)
        except asyncio.CancelledError:
            # After ClientClosedError there is nothing to abort: closing the producer has aborted the
            # transaction.
            with contextlib.suppress(ClientClosedError):
                self._begin(take_back).add_done_callback(_log_failure)
            raise

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the transaction, as `Producer.send_offsets_to_transaction` does."""
        await self._call(self._producer.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """Send all waiting records and commit, as `Producer.commit_transaction` does."""
        await self._call(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """Abort the transaction, as `Producer.abort_transaction` does."""
        await self._call(self._producer.abort_transaction)


def _log_failure(taken_back: asyncio.Future[None]) -> None:
    """Log the error of an abort that no task awaits."""
    error = None if taken_back.cancelled() else taken_back.exception()
    if error is not None:
        log.warning("a transaction whose beginning was cancelled could not be aborted: %s", error)


class Transaction:
    """One transaction, as an asynchronous context manager."""

    def __init__(self, producer: Transactional) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._producer.commit_transaction()
        elif not isinstance(error, ProducerFencedError):
            # After ProducerFencedError there is nothing to abort: the newer producer has aborted the
            # transaction.
            await self._producer.abort_transaction()


# --- producer ------------------------------------------------------------

T = TypeVar("T")

_OVERHEAD = HEADER_SIZE + MAX_RECORD_OVERHEAD


class AsyncProducer(Transactional):
    """`Producer` with coroutines in place of methods; `async with` starts and stops the producer.

    Serializers, partitioner and `on_send` of interceptors are called in the event loop. `on_acknowledgement`
    is called in the sender's thread. If a call that runs in the producer's thread is cancelled, the call
    continues, and the next call waits until the cancelled call has ended.
    """

    def __init__(self, store: Store, **settings: Unpack[ProducerSettings]) -> None:
        """Raises the errors of `Producer`."""
        self._producer = Producer(store, **settings)
        self.config = config = self._producer.config
        # With serializers or interceptors the size of a record is not known in advance.
        self._opaque = bool(config.key_serializer or config.value_serializer or config.interceptors)
        self._room = Room(self._producer)
        self._bridge = Bridge(self._room.look)
        self._home = ClientHome(repr(self))
        self._line = Line(config.client_id)
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<AsyncProducer client_id={self.config.client_id}>"

    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Run a method in the producer's thread, after earlier calls. If the task is cancelled, the call
        continues in the thread. Raises ClientClosedError.
        """
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
        """Send a record, and return a future of the record's metadata. Waits up to `max_block_ms` while
        `buffer_memory` is full, and sometimes yields to other tasks. If the call is cancelled, nothing was
        sent. Raises the errors of `Producer.send`.
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
        """Return an upper bound of the record's memory in bytes."""
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
        """Send a record, wait until the record is written, and return its metadata. If the call is cancelled,
        the record may still be written.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def flush(self, timeout: float | None = None) -> None:
        """Send all waiting records, as `Producer.flush` does. On return the futures of all these records are
        done.
        """
        await self._call(self._producer.flush, timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions. Raises UnknownTopicOrPartitionError."""
        return self._producer.partitions_for(topic)

    async def metrics(self) -> dict[str, dict[str, float]] | None:
        """Return {group: {name: value}} by Kafka's names; None with metrics_enabled=False."""
        return self._producer.metrics()

    # --- the beginning and the end ---------------------------------------------------------

    async def start(self) -> None:
        """Bind the producer to this event loop, as the first `send` would do. With a transactional_id, also
        call `Producer.init_transactions`.
        """
        self._home.here()
        if self.config.transactional_id is not None:
            await self._call(self._producer.init_transactions)

    async def stop(self, timeout: float | None = None) -> None:
        """Close the producer, as `Producer.close` does. A cancelled call continues, and another call of
        `stop` waits until the cancelled call has ended. Raises InvalidTypeError, InvalidArgumentError; after
        these errors the producer is still open.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if self._stopping is None:
            self._stopping = self._begin(self._close, timeout)
        await asyncio.shield(self._stopping)

    async def close(self, timeout: float | None = None) -> None:
        """Close the producer; aiokafka's name is `stop`."""
        await self.stop(timeout)

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
