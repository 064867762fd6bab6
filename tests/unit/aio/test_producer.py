"""`AsyncProducer`: the producer for asyncio; the event loop is never blocked, and a cancellation harms
nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from stores import values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.aio import AsyncProducer


class GatedFiles(HookedFiles):
    """Writes wait before `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "pwrite":
            assert self.gate.wait(PATIENCE)


@pytest.fixture
def files() -> Iterator[GatedFiles]:
    files = GatedFiles()
    yield files
    files.gate.set()


@pytest.fixture
def store(store_dir: Path, files: GatedFiles) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        yield store


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def turns(count: int = 20) -> None:
    """Let the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


# What AIOKafkaProducer has, but for `client` (there is none) and batches made by hand.
NAMES = {
    "send": ["topic", "value", "key", "partition", "timestamp_ms", "headers"],
    "send_and_wait": ["topic", "value", "key", "partition", "timestamp_ms", "headers"],
    "start": [], "stop": [], "flush": [], "partitions_for": ["topic"],
    "begin_transaction": [], "commit_transaction": [], "abort_transaction": [],
    "send_offsets_to_transaction": ["offsets", "group_metadata"],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_has_aiokafkas_methods_and_arguments(name: str) -> None:
    method = getattr(AsyncProducer, name)
    assert inspect.iscoroutinefunction(method)
    given = [p for p in inspect.signature(method).parameters if p not in ("self", "timeout")]
    assert given == NAMES[name]
    assert segstore.AsyncProducer is AsyncProducer


def test_records_arrive_and_their_futures_say_where(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store) as producer:
            first = await producer.send_and_wait("t", b"0", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
            assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 5)
            futures = [await producer.send("t", b"%d" % i) for i in range(1, 500)]
            assert all(isinstance(future, asyncio.Future) for future in futures)
            assert [(await future).offset for future in futures] == list(range(1, 500))
            assert await producer.partitions_for("t") == {0}
            measured = await producer.metrics()
            assert measured is not None
            assert measured["producer-metrics"]["record-send-total"] == 500

    run(main)
    assert values(store.partition("t")) == [b"%d" % i for i in range(500)]


def test_the_loop_is_woken_once_for_a_batch(store: segstore.Store) -> None:
    async def main() -> None:
        woken = 0
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal woken
            woken += 1
            return original(*args, **kwargs)

        async with AsyncProducer(store, linger_ms=60_000, delivery_timeout_ms=60_000) as producer:
            futures = [await producer.send("t", b"x") for _ in range(1_000)]
            loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
            producer._producer.flush()  # the loop stands still until all is written
            assert woken == 1
            assert not any(future.done() for future in futures)
            assert [(await future).offset for future in futures] == list(range(1_000))
            loop.call_soon_threadsafe = original  # type: ignore[method-assign]

    run(main)


def test_flush_returns_when_all_futures_are_done(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store, linger_ms=60_000, delivery_timeout_ms=60_000) as producer:
            futures = [await producer.send("t", b"x") for _ in range(10)]
            assert not futures[0].done()
            await producer.flush()
            assert all(future.done() for future in futures)

    run(main)


def test_leaving_sends_all(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store, linger_ms=60_000, delivery_timeout_ms=60_000) as producer:
            future = await producer.send("t", b"x")
        assert future.result().offset == 0
        with pytest.raises(errors.ClientClosedError):
            await producer.send("t", b"y")
        await producer.stop()

    run(main)


# --- a full buffer ------------------------------------------------------------------------------

FULL = {"batch_size": 500, "buffer_memory": 2_000}


async def fill(producer: AsyncProducer) -> tuple[list[asyncio.Future[Any]], asyncio.Task[Any]]:
    """Send until a send waits: the futures, and the task that waits, or did for as long as it may."""
    futures = []
    while True:
        task = asyncio.ensure_future(producer.send("t", b"%d" % len(futures) + b" " * 90))
        await turns(3)
        if not task.done() or task.exception() is not None:
            return futures, task
        futures.append(task.result())


def test_send_awaits_memory_and_the_loop_goes_on(store: segstore.Store, files: GatedFiles) -> None:
    async def main() -> None:
        async with AsyncProducer(store, **FULL) as producer:
            files.gate.clear()
            futures, waiting = await fill(producer)
            later = [asyncio.ensure_future(producer.send("t", b"later %d" % i)) for i in range(5)]
            await turns()  # which is what goes on
            assert not any(task.done() for task in [waiting, *later])
            assert producer._producer._accumulator.pool.waiting == 0
            files.gate.set()
            futures += [await waiting, *[await task for task in later]]
            assert [(await future).offset for future in futures] == list(range(len(futures)))
            return [value.strip() for value in values(store.partition("t")) if value]

    n = len(found := run(main)) - 6
    assert 3 <= n <= 20
    assert found == [*(b"%d" % i for i in range(n + 1)), *(b"later %d" % i for i in range(5))]


def test_send_gives_up_after_max_block_ms(store: segstore.Store, files: GatedFiles) -> None:
    async def main() -> None:
        async with AsyncProducer(store, max_block_ms=30, **FULL) as producer:
            files.gate.clear()
            _, waiting = await fill(producer)
            with pytest.raises(errors.BufferExhaustedError, match=r"buffer_memory=2,000.*max_block_ms=30"):
                await waiting
            measured = await producer.metrics()
            assert measured is not None
            assert measured["producer-metrics"]["buffer-exhausted-total"] == 1
            files.gate.set()
            await producer.flush()  # another send would wait no longer than the first
            assert (await producer.send_and_wait("t", b"x")).offset > 0

    run(main)


def test_a_send_that_is_cancelled_while_it_waits_sends_nothing(
    store: segstore.Store, files: GatedFiles
) -> None:
    async def main() -> int:
        async with AsyncProducer(store, **FULL) as producer:
            files.gate.clear()
            futures, first = await fill(producer)
            second = asyncio.ensure_future(producer.send("t", b"second"))
            third = asyncio.ensure_future(producer.send("t", b"third"))
            await turns()
            first.cancel()
            third.cancel()
            await turns()
            assert first.cancelled()
            assert third.cancelled()
            files.gate.set()
            assert (await (await second)).offset == len(futures)
            return len(futures)

    n = run(main)
    assert values(store.partition("t"))[n:] == [b"second"]


def test_one_who_is_cancelled_when_it_is_his_turn_lets_the_next_go(
    store: segstore.Store, files: GatedFiles
) -> None:
    async def main() -> None:
        async with AsyncProducer(store, **FULL) as producer:
            files.gate.clear()
            _, first = await fill(producer)
            second = asyncio.ensure_future(producer.send("t", b"second"))
            await turns()
            files.gate.set()
            producer._producer.flush()
            producer._room.look()  # as the loop is about to do
            first.cancel()
            assert (await (await second)).offset > 0
            assert first.cancelled()
            assert producer._room.has(1)

    run(main)


def test_what_lingers_is_sent_when_memory_is_wanted(store: segstore.Store) -> None:
    async def main() -> None:
        settings = {"linger_ms": 60_000, "delivery_timeout_ms": 60_000, **FULL}
        async with AsyncProducer(store, **settings) as producer:
            sending = [asyncio.ensure_future(producer.send("t", b"x" * 400)) for _ in range(20)]
            for task in sending:
                await task

    run(main)
    assert store.partition("t").end_offset == 20


@pytest.mark.parametrize("how", ["large", "serialized", "headers"])
def test_records_whose_size_is_not_known_before(store: segstore.Store, files: GatedFiles, how: str) -> None:
    settings: dict[str, Any] = {"batch_size": 500, "buffer_memory": 5_000, "max_request_size": 4_000}
    if how == "serialized":
        settings["value_serializer"] = lambda value: value and value.encode()
    value = "x" * 1_500 if how == "serialized" else b"x" * 1_500

    async def main() -> None:
        async with AsyncProducer(store, **settings) as producer:
            files.gate.clear()
            headers = [("h", b"x")] if how == "headers" else None
            sending = [asyncio.ensure_future(producer.send("t", value, headers=headers)) for _ in range(9)]
            await turns()
            assert 0 < sum(task.done() for task in sending) < 9
            files.gate.set()
            assert [(await (await task)).offset for task in sending] == list(range(9))

    run(main)


# --- cancellation and errors --------------------------------------------------------------------


def test_a_cancelled_future_changes_nothing_for_the_record(store: segstore.Store, files: GatedFiles) -> None:
    async def main() -> None:
        async with AsyncProducer(store) as producer:
            files.gate.clear()
            future = await producer.send("t", b"x")
            waiting = asyncio.ensure_future(producer.send_and_wait("t", b"y"))
            await turns()
            future.cancel()
            waiting.cancel()
            await turns()
            files.gate.set()
            assert (await producer.send_and_wait("t", b"z")).offset == 2

    run(main)
    assert values(store.partition("t")) == [b"x", b"y", b"z"]


def test_a_stop_that_is_cancelled_goes_on(store: segstore.Store, files: GatedFiles) -> None:
    async def main() -> None:
        producer = AsyncProducer(store)
        files.gate.clear()
        future = await producer.send("t", b"x")
        stopping = asyncio.ensure_future(producer.stop())
        await turns()
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        files.gate.set()
        await producer.stop()
        assert future.result().offset == 0
        assert not producer._producer._sender.is_alive()

    run(main)


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a str": ({"value": "x"}, errors.SerializationError),
    "headers that are no list": ({"headers": {"a": b"b"}}, errors.InvalidTypeError),
    "too large": ({"value": b"x" * 2_000_000}, errors.RecordTooLargeError),
    "an unknown topic": ({"topic": "u"}, errors.UnknownTopicOrPartitionError),
    "an unknown partition": ({"partition": 7}, errors.UnknownTopicOrPartitionError),
}


@pytest.mark.parametrize(("given", "error"), BAD.values(), ids=BAD)
def test_bad_input_is_named_and_the_producer_goes_on(
    store: segstore.Store, given: dict, error: type[Exception]
) -> None:
    async def main() -> None:
        async with AsyncProducer(store) as producer:
            with pytest.raises(error):
                await producer.send(**{"topic": "t", **given})
            assert (await producer.send_and_wait("t", b"x")).offset == 0

    run(main)


def test_what_a_record_fails_with_its_future_raises(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store, linger_ms=60_000, delivery_timeout_ms=60_000) as producer:
            bad = await producer.send("t", b"x", timestamp_ms=2**60)
            good = await producer.send("t", b"y")
            await producer.flush()
            with pytest.raises(errors.InvalidArgumentError):
                await bad
            assert (await good).offset == 0

    run(main)


def test_another_loop_is_refused(store: segstore.Store) -> None:
    producer = AsyncProducer(store)

    async def main() -> None:
        await producer.send_and_wait("t", b"x")

    run(main)
    with pytest.raises(errors.IllegalStateError, match="another event loop"):
        run(main)
    producer._producer.close()
    assert store.partition("t").end_offset == 1


def test_a_loop_that_is_gone_harms_nobody(
    store: segstore.Store, files: GatedFiles, caplog: pytest.LogCaptureFixture
) -> None:
    producer = AsyncProducer(store)

    async def main() -> None:
        files.gate.clear()
        await producer.send("t", b"x")

    run(main)
    files.gate.set()
    producer._producer.close()
    assert store.partition("t").end_offset == 1
    assert caplog.text == ""


def test_settings_are_the_producers(store: segstore.Store) -> None:
    with pytest.raises(errors.ConfigError, match="linger_mss"):
        AsyncProducer(store, linger_mss=5)


def test_a_stop_that_can_not_be_asked_for_has_stopped_nothing(store: segstore.Store) -> None:
    async def main() -> None:
        producer = AsyncProducer(store)
        for wrong in ("5", -1, float("nan"), []):
            with pytest.raises(errors.SegstoreError, match=r"timeout.* must be"):
                await producer.stop(wrong)  # type: ignore[arg-type]
        assert (await producer.send_and_wait("t", b"x")).offset == 0
        await producer.stop()
        with pytest.raises(errors.ClientClosedError):
            await producer.send("t", b"y")

    run(main)
