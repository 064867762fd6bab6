"""`AsyncProducer`: the producer for asyncio, with aiokafka's names.

Threads: one event loop, which is never kept waiting: `send` awaits memory, and blocking calls run in a
thread of the producer's own, one after the other.
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

# `Bridge`: takes outcomes of records from the sender's thread to the event loop.
#
# Threads: the loop's and the sender's. One wake-up of the loop delivers all outcomes that are ready by
# then: those of a batch or more, so it is never woken once a record.

Awaited = asyncio.Future[RecordMetadata]


class Bridge:
    """`freed` is called in the loop after outcomes were handed over: memory has become free."""

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._known: deque[tuple[Awaited, RecordMetadata | BaseException]] = deque()
        self._woken = False

    def future(self, loop: asyncio.AbstractEventLoop, sent: FutureRecordMetadata) -> Awaited:
        """Return a future of the record's outcome. Cancelling it does not change the record."""
        awaited: Awaited = loop.create_future()
        known = partial(self._tell, awaited)
        sent._when_done(known, known)
        return awaited

    def _tell(self, awaited: Awaited, outcome: RecordMetadata | BaseException) -> None:
        self._known.append((awaited, outcome))
        if self._woken:
            return
        self._woken = True
        try:
            awaited.get_loop().call_soon_threadsafe(self._complete_known)
        except RuntimeError:  # the loop was closed, and nobody is left who awaits
            self._known.clear()
            self._woken = False

    def _complete_known(self) -> None:
        # First: outcomes that come from now on wake the loop again.
        self._woken = False
        for _ in range(len(self._known)):
            awaited, outcome = self._known.popleft()
            if awaited.done():
                continue
            if isinstance(outcome, BaseException):
                awaited.set_exception(copy_of(outcome))  # each gets a traceback of its own
            else:
                awaited.set_result(outcome)
        self._freed()


# --- room --------------------------------------------------------------------------------------

# `Room`: tasks that wait for memory in a producer's buffer pool, in their order.
#
# Threads: only the event loop's, which never waits in the pool itself. No other thread takes memory, so
# memory that it finds free stays free until it takes it.


class _Waiter:
    __slots__ = ("need", "turn")

    def __init__(self, need: int, turn: asyncio.Future[None]) -> None:
        self.need, self.turn = need, turn


class Room:
    """The pool of `producer` as tasks see it; sizes in bytes."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self._pool = producer, producer._accumulator.pool
        self._waiters: deque[_Waiter] = deque()

    def has(self, need: int) -> bool:
        """Return whether a record of `need` bytes finds room at once, and no task waits already."""
        return not self._waiters and self._fits(need)

    def _fits(self, need: int) -> bool:
        # A block is at least as large as a batch; a record that is larger than the pool is refused by `send`.
        pool = self._pool
        return pool.available >= min(max(need, pool.block_size), pool.total)

    async def wait(self, need: int) -> None:
        """Return when there is room; the task must send at once then, and call `look` for others. Raises
        BufferExhaustedError.
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
        """Let the first task go on if there is room, and have lingering batches sent if there is none."""
        if not self._waiters or self._waiters[0].turn.done():
            return
        if self._fits(self._waiters[0].need):
            self._waiters[0].turn.set_result(None)
        else:
            with contextlib.suppress(KafkaTimeoutError):  # the flush is begun here, and not waited for
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
    """The transactions of `Producer` as coroutines. A commit or abort that is cancelled goes on, and the
    next call waits for it; a cancelled beginning is undone.
    """

    _producer: Producer

    @abstractmethod
    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Run a method in the producer's thread."""

    def transaction(self) -> Transaction:
        """Return a block: `async with producer.transaction():` begins a transaction, and commits it, or
        aborts it where an exception leaves the block.
        """
        return Transaction(self)

    @abstractmethod
    def _begin(self, method: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a method in the producer's thread; return a future."""

    async def begin_transaction(self) -> None:
        """See `Producer.begin_transaction`. A cancelled call leaves no transaction open."""
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
            with contextlib.suppress(
                ClientClosedError
            ):  # closing the producer has aborted the transaction already
                self._begin(take_back).add_done_callback(_told)
            raise

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        await self._call(self._producer.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """See `Producer.commit_transaction`."""
        await self._call(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """See `Producer.abort_transaction`."""
        await self._call(self._producer.abort_transaction)


def _told(taken_back: asyncio.Future[None]) -> None:
    """Log the error of the undoing, if it has one: no task waits for it any more."""
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
        elif not isinstance(error, ProducerFencedError):  # then it was aborted already, by the newer producer
            await self._producer.abort_transaction()


# --- producer ------------------------------------------------------------

T = TypeVar("T")

_OVERHEAD = HEADER_SIZE + MAX_RECORD_OVERHEAD


class AsyncProducer(Transactional):
    """`Producer` with coroutines in place of methods; `async with` starts and stops it.

    Serializers, partitioner and `on_send` of interceptors are called in the event loop,
    `on_acknowledgement` in the sender's thread. A cancelled call that runs in the thread goes on there, and
    the next one waits for it.
    """

    def __init__(self, store: Store, **settings: Unpack[ProducerSettings]) -> None:
        """Raises what `Producer` raises."""
        self._producer = Producer(store, **settings)
        self.config = config = self._producer.config
        # With serializers or interceptors the size of a record is not known before.
        self._opaque = bool(config.key_serializer or config.value_serializer or config.interceptors)
        self._room = Room(self._producer)
        self._bridge = Bridge(self._room.look)
        self._home = ClientHome(repr(self))
        self._line = Line(config.client_id)
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<AsyncProducer client_id={self.config.client_id}>"

    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Run a method in the thread, after earlier ones. A cancelled call goes on. Raises
        ClientClosedError.
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
        """Hand a record over; return a future of where it was written. Waits up to `max_block_ms` while
        `buffer_memory` is full, and now and then gives way to other tasks; if cancelled meanwhile, nothing
        was sent. Raises what `Producer.send` raises.
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
        """Return the most bytes of memory that the record takes."""
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
        """Send, and return where the record was written. If cancelled during that wait, the record may be
        written all the same.
        """
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
        """Belong to this event loop, as after a first `send`; with a transactional_id see
        `Producer.init_transactions`.
        """
        self._home.here()
        if self.config.transactional_id is not None:
            await self._call(self._producer.init_transactions)

    async def stop(self, timeout: float | None = None) -> None:
        """See `Producer.close`. If cancelled or called again it goes on, and another call waits for it.
        Raises InvalidTypeError, InvalidArgumentError; then nothing was begun.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if self._stopping is None:
            self._stopping = self._begin(self._close, timeout)
        await asyncio.shield(self._stopping)

    async def close(self, timeout: float | None = None) -> None:
        """See `stop`, which is aiokafka's name for it."""
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
