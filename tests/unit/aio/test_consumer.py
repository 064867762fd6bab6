"""`AsyncConsumer`: the consumer for asyncio; a cancellation loses nothing, and the event loop is never
blocked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from consumers import LONG_MS, append, fill, offsets, tp

import segstore
from segstore.client.aio import AsyncConsumer
from segstore.errors import (
    ClientClosedError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    RecordDeserializationError,
)


def earliest(store: segstore.Store, *topics: str, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(store, *topics, **{"auto_offset_reset": "earliest", **settings})


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), LONG_MS / 1000))


def test_async_for_gives_each_record(store: segstore.Store) -> None:
    fill(store, partitions=2, records=30)

    async def main() -> list[int]:
        async with earliest(store, "t", max_poll_records=7, consumer_timeout_ms=60) as consumer:
            got = [record async for record in consumer]
            assert [await consumer.position(tp(p)) for p in (0, 1)] == [30, 30]
        return [*offsets(got, 0), *offsets(got, 1)]

    assert run(main) == [*range(30), *range(30)]


def test_async_for_waits_and_other_tasks_go_on(store: segstore.Store) -> None:
    fill(store, records=0)

    async def main() -> None:
        async def beat() -> None:
            for _ in range(30):
                await asyncio.sleep(0.001)
            append(store, 3)  # what is waited for comes only if the loop goes on

        async with earliest(store, "t") as consumer:
            heart = asyncio.ensure_future(beat())
            got = []
            async for record in consumer:
                got.append(record.offset)
                if len(got) == 3:
                    break
        await heart
        assert got == [0, 1, 2]

    run(main)


def test_a_position_follows_each_record(store: segstore.Store) -> None:
    fill(store)

    async def main() -> None:
        async with earliest(store, "t") as consumer:
            async for record in consumer:
                assert await consumer.position(tp()) == record.offset + 1
                if record.offset == 3:
                    break
            assert offsets((await consumer.poll())[tp()]) == [4, 5, 6, 7, 8, 9]

    run(main)


@pytest.mark.parametrize("how", ["poll", "poll_arrow", "iterate"])
@pytest.mark.parametrize("after", [0.0, 0.001, 0.03, 0.13])
def test_a_cancelled_call_loses_nothing(store: segstore.Store, how: str, after: float) -> None:
    fill(store, partitions=2, records=0)

    async def look(consumer: AsyncConsumer) -> list[tuple[int, int]]:
        if how == "poll":
            polled = await consumer.poll(LONG_MS)
            return [(r.partition, r.offset) for part in polled.values() for r in part]
        if how == "poll_arrow":
            table = await consumer.poll_arrow(LONG_MS)
            return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        record = await consumer.__anext__()
        return [(record.partition, record.offset)]

    async def main() -> None:
        async with earliest(store, "t") as consumer:
            for _ in range(5):
                task = asyncio.ensure_future(look(consumer))
                await asyncio.sleep(after)
                append(store, 4, partition=0)
                append(store, 4, partition=1)
                await asyncio.sleep(0)
                task.cancel()
                began = time.monotonic()
                try:
                    got.extend(await task)
                except asyncio.CancelledError:
                    cancelled.append(time.monotonic() - began)
            while len(got) < 40:
                got.extend(await look(consumer))

    got: list[tuple[int, int]] = []
    cancelled: list[float] = []
    run(main)
    assert sorted(got) == [(p, i) for p in range(2) for i in range(20)]
    assert len(set(got)) == len(got)
    assert max(cancelled, default=0) < LONG_MS / 2000  # none waited for what its poll did


def test_calls_of_several_tasks_take_turns(store: segstore.Store) -> None:
    fill(store, records=0)

    async def main() -> None:
        async with earliest(store, "t") as consumer:
            waiting = asyncio.ensure_future(consumer.poll(LONG_MS))
            await asyncio.sleep(0.01)
            began = time.monotonic()
            assert consumer.assignment() == {tp()}
            consumer.pause(tp())
            assert consumer.paused() == {tp()}
            append(store, 1)
            consumer.resume(tp())
            assert time.monotonic() - began < LONG_MS / 2000
            assert offsets((await waiting)[tp()]) == [0]

    run(main)


def test_all_else_is_as_in_a_consumer(store: segstore.Store) -> None:
    fill(store)

    async def main() -> None:
        consumer = earliest(store)
        consumer.subscribe(["t"])
        assert consumer.subscription() == {"t"}
        consumer.unsubscribe()
        consumer.assign([tp()])
        consumer.seek(tp(), 8)
        assert (await consumer.poll_arrow())["offset"].to_pylist() == [8, 9]
        await consumer.seek_to_beginning(tp())
        assert await consumer.position(tp()) == 0
        await consumer.seek_to_end()
        assert await consumer.position(tp()) == 10
        assert await consumer.beginning_offsets([tp()]) == {tp(): 0}
        assert await consumer.end_offsets([tp()]) == {tp(): 10}
        assert await consumer.offsets_for_times({tp(): 1 << 60}) == {tp(): None}
        assert await consumer.topics() == {"t"}
        assert consumer.partitions_for_topic("t") == {0}
        assert consumer.highwater(tp()) == 10
        assert (await consumer.group_metadata()).group_id is None
        assert (await consumer.metrics())["consumer-fetch-manager-metrics"]["records-consumed-total"] == 2
        for refused in (consumer.commit(), consumer.committed(tp())):
            with pytest.raises(segstore.errors.IllegalStateError):
                await refused
        await consumer.close()
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await consumer.poll()
        assert [record async for record in consumer] == []

    run(main)


def test_errors_come_through(store: segstore.Store) -> None:
    fill(store)

    async def main() -> None:
        async with earliest(store, "t", value_deserializer=lambda data: 1 // 0) as consumer:
            with pytest.raises(RecordDeserializationError):
                await consumer.poll()
            with pytest.raises(RecordDeserializationError):
                await consumer.__anext__()
            for wrong in (-1, float("nan")):
                with pytest.raises(InvalidArgumentError, match="timeout_ms"):
                    await consumer.poll(wrong)

    run(main)


@pytest.mark.parametrize("wrong", [None, "x", b"x", [], {}, (1, 2), np.array([1, 2])], ids=repr)
@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
def test_a_time_to_wait_that_is_no_number(store: segstore.Store, call: str, wrong: Any) -> None:
    fill(store)

    async def main() -> list[int]:
        async with earliest(store, "t") as consumer:
            with pytest.raises(
                InvalidTypeError, match=f"timeout_ms must be a number, not {type(wrong).__name__}"
            ):
                await getattr(consumer, call)(wrong)
            return offsets((await consumer.poll())[tp(0)])

    assert run(main) == list(range(10))


# --- aiokafka's names ------------------------------------------------------------------------------


def test_a_program_of_aiokafka(store: segstore.Store) -> None:
    store.create_topic("t", 2)

    async def main() -> None:
        producer, consumer = segstore.AsyncProducer(store), earliest(store, "t")
        await producer.start()
        await consumer.start()
        try:
            assert consumer.assignment() == {tp(0), tp(1)}
            for number in range(4):
                await producer.send_and_wait("t", b"%d" % number, partition=number % 2)
            assert (await consumer.getone()).value in (b"0", b"1")
            rest = await consumer.getmany(timeout_ms=LONG_MS)
            while sum(map(len, rest.values())) < 3:
                for partition, records in (await consumer.getmany(timeout_ms=LONG_MS)).items():
                    rest.setdefault(partition, []).extend(records)
            assert await consumer.getmany(timeout_ms=0) == {}
        finally:
            await consumer.stop()
            await producer.close()
        for call in (consumer.getone, consumer.getmany, consumer.start):
            with pytest.raises(ClientClosedError):
                await call()

    run(main)


def test_named_partitions_only(store: segstore.Store) -> None:
    fill(store, partitions=3, records=5)

    async def main() -> None:
        async with earliest(store, "t", max_poll_records=100) as consumer:
            consumer.pause(tp(2))
            assert [(await consumer.getone(tp(1))).offset for _ in range(3)] == [0, 1, 2]
            assert consumer.paused() == {tp(2)}
            polled = await consumer.getmany(tp(1), timeout_ms=LONG_MS)
            assert {p: [r.offset for r in got] for p, got in polled.items()} == {tp(1): [3, 4]}
            assert await consumer.getmany(tp(1), timeout_ms=0) == {}
            assert await consumer.position(tp(0)) == 0
            assert set(await consumer.getmany(timeout_ms=LONG_MS)) == {tp(0)}
            with pytest.raises(IllegalStateError, match="not assigned"):
                await consumer.getone(tp(7))
            assert consumer.paused() == {tp(2)}

    run(main)


def test_getone_waits_and_a_cancelled_one_loses_nothing(store: segstore.Store) -> None:
    store.create_topic("t")

    async def main() -> None:
        async with earliest(store, "t") as consumer:
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.01)
            append(store, 1)
            assert (await waiting).offset == 0

    run(main)
