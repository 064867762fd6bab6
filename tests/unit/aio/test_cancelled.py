"""Cancellation at each step of each coroutine of the asyncio clients, one after the other, until it ends by
itself: nothing acknowledged is lost, nothing is there twice, and all can be closed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill, tp
from stores import values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.aio import AsyncConsumer, AsyncProducer
from segstore.client.consumer import Consumer
from segstore.coordinator.structs import OffsetAndMetadata

pytestmark = pytest.mark.kind("interrupts")

SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
MOST_STEPS = 60
WAYS = ["at once", "when it is done", "turns of the loop"]
"""A task is cancelled as it begins to wait for the nth time; when what it waits for then is done, but before
it hears of it; or after so many turns of the loop, wherever it is.
"""


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=SMALL) as store:
        store.create_topic("t")
        yield store


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


class Steps:
    """Awaits `of`, and has its own task cancelled at the nth wait."""

    def __init__(self, of: Awaitable[Any], nth: int, late: bool) -> None:
        self.of, self.nth, self.late = of, nth, late

    def __await__(self) -> Generator[Any, Any, Any]:
        task, waits = asyncio.current_task(), self.of.__await__()
        assert task is not None
        send, given = waits.send, None
        for count in itertools.count():
            try:
                future = send(given)
            except StopIteration as ended:
                return ended.value
            if count == self.nth:
                if self.late and future is not None:
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            try:
                given = yield future
                send = waits.send
            except BaseException as error:
                given, send = error, waits.throw
        raise AssertionError


async def cancelled(make: Callable[[], Awaitable[Any]], nth: int, way: str) -> tuple[bool, Any]:
    """Whether it was cancelled, and what it has given, if it has."""

    async def whole() -> Any:
        return await (make() if way == "turns of the loop" else Steps(make(), nth, way == "when it is done"))

    task = asyncio.ensure_future(whole())
    if way == "turns of the loop":
        for _ in range(1 + nth * (nth + 1) // 2):
            await asyncio.sleep(0)
        task.cancel()
    try:
        return False, await task
    except asyncio.CancelledError:
        return True, None


async def each_step(one: Callable[[int, Callable[..., Any]], Awaitable[bool]], way: str) -> int:
    """`one(nth, cancel)` for each n, until it says that nothing was cancelled: how many were."""
    for nth in range(MOST_STEPS):
        if not await one(nth, lambda make, nth=nth: cancelled(make, nth, way)):
            return nth
    return MOST_STEPS  # a turn of the loop takes no time, and a thread that it waits for does


# --- producers -----------------------------------------------------------------------------------------


def judge(store: segstore.Store, acknowledged: list[bytes], aborted: list[bytes] | None = None) -> None:
    """Each record that was acknowledged is there, and none twice."""
    found = Counter(values(store.partition("t"), isolation_level="read_committed"))
    assert max(found.values(), default=1) == 1
    assert not set(acknowledged) - found.keys()
    assert not set(aborted or ()) & found.keys()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["send", "send_and_wait", "send without room", "flush", "partitions_for"])
def test_a_producer(store: segstore.Store, call: str, way: str) -> None:
    acknowledged: list[bytes] = []
    not_sent: list[bytes] = []

    async def main() -> int:
        memory = {"buffer_memory": 20_000} if "room" in call else {}
        async with AsyncProducer(store, linger_ms=1, **memory) as producer:

            async def one(nth: int, cancel: Callable[..., Any]) -> bool:
                value, futures = b"%d of %b" % (nth, call.encode()), []
                if call == "flush" or memory:
                    futures = [(b"%b, %d" % (value, i), None) for i in range(3)]
                    futures = [
                        (v, await producer.send("t", v + b" " * 4000 * bool(memory))) for v, _ in futures
                    ]
                method = getattr(producer, call.split()[0])
                given = ("t", value) if "send" in call else ("t",) if call == "partitions_for" else ()
                was_cancelled, result = await cancel(lambda: method(*given))
                if was_cancelled and call.startswith("send "):
                    not_sent.append(value)
                if not was_cancelled and call == "send_and_wait":
                    acknowledged.append(value)
                elif not was_cancelled and "send" in call:
                    futures.append((value, result))
                for sent, future in futures:
                    await future
                    acknowledged.append(sent + b" " * 4000 * bool(memory and sent != value))
                after = b"after " + value
                await producer.send_and_wait("t", after)
                acknowledged.append(after)
                return bool(was_cancelled)

            return await each_step(one, way)

    run(main)
    judge(store, acknowledged, not_sent)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["stop", "async with", "store first"])
def test_the_end_of_a_producer(store_dir: Path, how: str, way: str) -> None:
    acknowledged: list[bytes] = []

    async def one(nth: int, cancel: Callable[..., Any]) -> bool:
        with segstore.open(store_dir, config=SMALL) as store:
            if "t" not in store.topics():
                store.create_topic("t")
            producer = AsyncProducer(store, linger_ms=60_000)
            value = b"%d" % nth
            sent = await producer.send("t", value)
            if how == "store first":
                store.close()

            async def leave() -> None:
                async with producer:
                    pass

            was_cancelled, _ = await cancel(leave if how == "async with" else producer.stop)
            await producer.stop()
            await sent
            acknowledged.append(value)
            assert not producer._producer._sender.is_alive()
            with pytest.raises((errors.ClientClosedError, errors.StoreClosedError)):
                await producer.send("t", b"late")
            with pytest.raises(errors.ClientClosedError):
                await producer.flush()
            return bool(was_cancelled)

    run(lambda: each_step(one, way))
    with segstore.open(store_dir, config=SMALL) as store:
        judge(store, acknowledged)


# --- transactions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["commit", "abort", "both in turn"])
def test_a_transaction_is_whole_and_the_next_one_begins(store: segstore.Store, how: str, way: str) -> None:
    """Cancelled in its beginning, a send, its commit or its abort: all of it is there, or nothing."""
    whole: list[list[bytes]] = []
    acknowledged: list[bytes] = []
    aborted: list[bytes] = []

    async def main() -> None:
        async with AsyncProducer(store, transactional_id="x", linger_ms=1) as producer:

            async def transaction(records: list[bytes], commit: bool) -> None:
                try:
                    async with producer.transaction():
                        for value in records:
                            await producer.send_and_wait("t", value)
                        if not commit:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    return

            async def one(nth: int, cancel: Callable[..., Any]) -> bool:
                commit = how == "commit" or (how == "both in turn" and nth % 2 == 0)
                records = [b"%d, %d" % (nth, i) for i in range(2)]
                was_cancelled, _ = await cancel(lambda: transaction(records, commit))
                whole.append(records)
                if not commit:
                    aborted.extend(records)
                elif not was_cancelled:
                    acknowledged.extend(records)
                after = [b"after %d" % nth]
                await transaction(after, True)
                acknowledged.extend(after)
                return bool(was_cancelled)

            await each_step(one, way)

    run(main)
    judge(store, acknowledged, aborted)
    found = set(values(store.partition("t"), isolation_level="read_committed"))
    assert all(len(found & set(records)) in (0, len(records)) for records in whole)


CALLS: dict[str, Callable[[AsyncProducer], Awaitable[Any]]] = {
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction(
        {tp(): OffsetAndMetadata(1, "")}, "g"
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_transaction(store: segstore.Store, call: str, way: str) -> None:
    acknowledged: list[bytes] = []
    begin = call == "begin_transaction"

    async def main() -> None:
        async with AsyncProducer(store, transactional_id="x", linger_ms=1) as producer:

            async def one(nth: int, cancel: Callable[..., Any]) -> bool:
                value = b"%d" % nth
                if not begin:
                    await producer.begin_transaction()
                    await producer.send("t", value)
                was_cancelled, _ = await cancel(lambda: CALLS[call](producer))
                if begin:
                    if was_cancelled:  # then there is none
                        with pytest.raises(errors.IllegalStateError):
                            await producer.abort_transaction()
                        await producer.begin_transaction()
                    await producer.send("t", value)
                if begin or "offsets" in call:
                    await producer.commit_transaction()
                # A commit that was cancelled goes on, and so does an abort: the next transaction begins.
                if "abort" not in call:
                    acknowledged.append(value)
                return bool(was_cancelled)

            await each_step(one, way)

    run(main)
    judge(store, acknowledged)


@pytest.mark.parametrize("way", WAYS)
def test_a_start(store: segstore.Store, way: str) -> None:
    acknowledged: list[bytes] = []

    async def one(nth: int, cancel: Callable[..., Any]) -> bool:
        producer = AsyncProducer(store, transactional_id="x", linger_ms=1)
        try:
            was_cancelled, _ = await cancel(producer.start)
            await producer.start()
            async with producer.transaction():
                await producer.send("t", b"%d" % nth)
            acknowledged.append(b"%d" % nth)
        finally:
            await producer.stop()
        return bool(was_cancelled)

    run(lambda: each_step(one, way))
    judge(store, acknowledged)


# --- consumers ------------------------------------------------------------------------------------------


async def poll(consumer: AsyncConsumer) -> list[int]:
    return [record.offset for part in (await consumer.poll(20)).values() for record in part]


async def poll_arrow(consumer: AsyncConsumer) -> list[int]:
    found: list[int] = (await consumer.poll_arrow(20))["offset"].to_pylist()
    return found


async def iterate(consumer: AsyncConsumer) -> list[int]:
    try:
        return [(await consumer.__anext__()).offset]
    except StopAsyncIteration:
        return []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("look", [poll, poll_arrow, iterate])
def test_what_a_consumer_gives(
    store: segstore.Store, look: Callable[[AsyncConsumer], Awaitable[list[int]]], group: str | None, way: str
) -> None:
    """Each record once, in order, whatever was cancelled; a call that waits for records too."""
    got: list[int] = []

    async def main() -> int:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 20}
        async with AsyncConsumer(store, "t", group_id=group, max_poll_records=2, **settings) as consumer:

            async def one(nth: int, cancel: Callable[..., Any]) -> bool:
                append(store, 3 * (nth % 4 != 3))  # now and then there is nothing to be given
                was_cancelled, found = await cancel(lambda: look(consumer))
                got.extend(found or [])
                while found := await look(consumer):
                    got.extend(found)
                return bool(was_cancelled)

            await each_step(one, way)
            while found := await look(consumer):
                got.extend(found)
        return store.partition("t").end_offset

    end = run(main)
    assert got == [*range(end)]


CONSUMER_CALLS: dict[str, Callable[[AsyncConsumer], Awaitable[Any]]] = {
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([tp()]),
    "commit": lambda consumer: consumer.commit(),
    "committed": lambda consumer: consumer.committed(tp()),
    "end_offsets": lambda consumer: consumer.end_offsets([tp()]),
    "group_metadata": lambda consumer: consumer.group_metadata(),
    "metrics": lambda consumer: consumer.metrics(),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({tp(): 0}),
    "position": lambda consumer: consumer.position(tp()),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(tp()),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(tp()),
    "seek_to_end": lambda consumer: consumer.seek_to_end(tp()),
    "topics": lambda consumer: consumer.topics(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CONSUMER_CALLS)
def test_a_call_of_a_consumer(store: segstore.Store, call: str, way: str) -> None:
    """Afterwards the consumer reads, commits, and is closed."""
    append(store, 10)

    async def one(nth: int, cancel: Callable[..., Any]) -> bool:
        consumer = AsyncConsumer(store, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
        try:
            consumer.assign([tp()])
            consumer.seek(tp(), 3)
            was_cancelled, _ = await cancel(lambda: CONSUMER_CALLS[call](consumer))
            consumer.unsubscribe()
            consumer.assign([tp()])
            consumer.resume(tp())
            consumer.seek(tp(), 3)
            polled = await consumer.poll(PATIENCE * 1000)
            assert [record.offset for record in polled[tp()]] == [*range(3, 10)]
            await consumer.commit()
            assert await consumer.committed(tp()) == 10
        finally:
            await consumer.close()
        return bool(was_cancelled)

    run(lambda: each_step(one, way))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["close", "close while another task polls", "async with", "store first"])
def test_the_end_of_a_consumer(store_dir: Path, how: str, way: str) -> None:
    """It may be closed again, its thread ends, and its group has no member."""

    async def one(nth: int, cancel: Callable[..., Any]) -> bool:
        with segstore.open(store_dir, config=SMALL) as store:
            if "t" not in store.topics():
                fill(store)
            consumer = AsyncConsumer(store, "t", group_id="g", auto_offset_reset="earliest")
            await consumer.poll(20)
            other = None
            if "another" in how:
                other = asyncio.ensure_future(consumer.poll(20))
                await asyncio.sleep(0)
            if how == "store first":
                store.close()

            async def leave() -> None:
                async with consumer:
                    pass

            was_cancelled, _ = await cancel(leave if how == "async with" else consumer.close)
            await consumer.close()
            await consumer.close()
            if other is not None:
                await asyncio.wait([other])
                assert isinstance(other.exception(), errors.ClientClosedError | None)
            with pytest.raises((errors.ClientClosedError, errors.StoreClosedError)):
                await consumer.poll()
            assert consumer._line.ended
            if how != "store first":
                with Consumer(store, "t", group_id="g") as next_one:
                    for _ in range(3):
                        next_one.poll(20)
                    assert next_one.assignment() == {tp()}
            return bool(was_cancelled)

    run(lambda: each_step(one, way))
