"""The share consumer for asyncio: the same as the plain one, records one by one, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append, tp
from share_consumers import REJECT, RELEASE, RENEW, counts, offsets, opened, state, worker
from waiting import PATIENCE

import segstore
from segstore import AsyncShareConsumer
from segstore.client.share import consumer as plain
from segstore.errors import (
    ClientClosedError,
    IllegalStateError,
    RecordDeserializationError,
    StoreClosedError,
    WakeupError,
)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with opened(store_dir) as store:
        yield store


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def queue_of(store: segstore.Store, **settings: Any) -> AsyncShareConsumer:
    return AsyncShareConsumer(store, "t", **{"group_id": "g", **settings})


EXPLICIT: Any = {"share_acknowledgement_mode": "explicit"}


def test_a_poll_and_acknowledgements(store: segstore.Store) -> None:
    async def main() -> None:
        async with queue_of(store, **EXPLICIT) as queue:
            records = await queue.poll_flat()
            assert offsets(records) == [*range(10)]
            for record in records[:5]:
                queue.acknowledge(record)
            await queue.acknowledge(records[5], RENEW)
            for record in records[6:9]:
                queue.acknowledge(record, RELEASE)
            queue.acknowledge_offset("t", 0, 9, REJECT)
            assert await queue.commit_sync() == {tp(): None}
            assert counts(await queue.poll_flat()) == {5: 1}
            queue.acknowledge_offset("t", 0, 5)
            await queue.commit_async()
            assert (await queue.poll()).keys() == {tp()}
            assert queue.acquisition_lock_timeout_ms == 30_000
            assert queue.subscription() == {"t"}
            assert (await queue.metrics()).keys() >= {"consumer-share-metrics"}
        with pytest.raises(ClientClosedError):
            await queue.poll()

    run(main)
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(6, 9), 3)


def test_a_record_is_accepted_when_the_next_is_asked_for(store: segstore.Store) -> None:
    async def main() -> None:
        seen = []
        async with queue_of(store) as queue:
            async for record in queue:
                seen.append(record.offset)
                if record.offset == 6:
                    break
            await queue._close(False)  # as an exception does: the seventh was not done
        assert seen == [*range(7)]

    run(main)
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(6, 10), 2)


def test_a_close_accepts_the_last_record_and_none_after_it(store: segstore.Store) -> None:
    async def main() -> None:
        async with queue_of(store) as queue:
            async for record in queue:
                if record.offset == 6:
                    break

    run(main)
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(7, 10), 2)


def test_an_iteration_waits_for_records_and_ends_with_the_consumer(store: segstore.Store) -> None:
    async def main() -> None:
        seen: list[int] = []
        queue = queue_of(store)

        async def read() -> None:
            async for record in queue:
                assert record.offset == len(seen)
                seen.append(record.offset)

        reading = asyncio.create_task(read())
        while len(seen) < 10:
            await asyncio.sleep(0)
        append(store, 3)
        while len(seen) < 13:
            await asyncio.sleep(0)
        await queue.close()
        await reading
        assert seen == [*range(13)]

    run(main)
    assert state(store)[1] == 0


def test_what_an_iteration_accepts_is_sent_meanwhile(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after the last record of a fetch, whose locks may run out before."""
    monkeypatch.setattr(plain, "_FLUSH_S", 0.0)

    async def main() -> None:
        async with queue_of(store) as queue:
            async for record in queue:
                assert state(store)[1] == 10 - record.offset
                if record.offset == 9:
                    break

    run(main)


def test_an_explicit_iteration_needs_an_answer_for_each_record(store: segstore.Store) -> None:
    async def main() -> None:
        async with queue_of(store, **EXPLICIT) as queue:
            for _ in range(10):
                record = await queue.__anext__()
                if record.offset != 3:
                    queue.acknowledge(record)
            with pytest.raises(IllegalStateError, match="All records must be acknowledged"):
                await queue.__anext__()
            queue.acknowledge_offset("t", 0, 3)

    run(main)
    assert state(store)[1] == 0


def test_q6_a_bad_record_ends_an_iteration_which_may_go_on(store: segstore.Store) -> None:
    def refuse(data: bytes) -> bytes:
        if data == b"0-3":
            raise ZeroDivisionError
        return data

    async def main() -> list[int]:
        async with queue_of(store, value_deserializer=refuse) as queue:
            seen = [(await queue.__anext__()).offset for _ in range(3)]
            with pytest.raises(RecordDeserializationError):
                await queue.__anext__()
            queue.acknowledge_offset("t", 0, 3, REJECT)
            async for record in queue:
                seen.append(record.offset)
                if record.offset == 9:
                    break
        return seen

    assert run(main) == [0, 1, 2, *range(4, 10)]
    assert state(store)[1] == 0


CALLS: dict[str, Callable[[AsyncShareConsumer], Coroutine[Any, Any, Any]]] = {
    "poll": lambda queue: queue.poll(LONG_MS),
    "poll_flat": lambda queue: queue.poll_flat(LONG_MS),
    "next": lambda queue: queue.__anext__(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
def test_a_cancelled_call_loses_nothing(store: segstore.Store, name: str, turns: int) -> None:
    """Granted records come with the next poll, with the same delivery count."""

    async def main() -> None:
        async with queue_of(store, **EXPLICIT) as queue:
            task = asyncio.ensure_future(CALLS[name](queue))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done[0], asyncio.CancelledError):
                assert counts(await queue.poll_flat(LONG_MS)) == dict.fromkeys(range(10), 1)

    run(main)


def test_a_cancelled_wait_loses_nothing(store_dir: Path) -> None:
    async def main() -> None:
        async with queue_of(store) as queue:
            for offset in range(20):
                task = asyncio.ensure_future(queue.poll_flat(LONG_MS))
                await asyncio.sleep(0.001 * (offset % 3))
                append(store, 1)
                await asyncio.sleep(0)
                task.cancel()
                found = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(found, asyncio.CancelledError):
                    found = await queue.poll_flat(LONG_MS)
                assert counts(found) == {offset: 1}

    with opened(store_dir, records=0) as store:
        run(main)


def test_tasks_take_turns_and_plain_calls_end_a_wait(store_dir: Path) -> None:
    async def main() -> None:
        store.create_topic("u")
        async with queue_of(store) as queue:
            tasks = {asyncio.ensure_future(queue.poll_flat(LONG_MS)) for _ in range(2)}
            await asyncio.sleep(0.01)
            queue.subscribe(["t", "u"])
            for offset in range(2):
                append(store, 1)
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                assert [offsets(task.result()) for task in done] == [[offset]]
            await queue.unsubscribe()
            with pytest.raises(IllegalStateError):
                await queue.poll()

    with opened(store_dir, records=0) as store:
        run(main)


def test_a_wakeup_ends_a_poll(store_dir: Path) -> None:
    async def main() -> None:
        async with queue_of(store) as queue:
            waiting = asyncio.ensure_future(queue.poll(LONG_MS))
            await asyncio.sleep(0.01)
            queue.wakeup()
            with pytest.raises(WakeupError):
                await waiting

    with opened(store_dir, records=0) as store:
        run(main)


def test_the_callback_is_called(store: segstore.Store) -> None:
    async def main() -> list[Any]:
        told: list[Any] = []
        async with queue_of(store) as queue:
            await queue.set_acknowledgement_commit_callback(lambda *heard: told.append(heard))
            await queue.poll()
            await queue.commit_sync()
        return told

    assert run(main) == [({tp(): set(range(10))}, None)]


def test_an_exception_accepts_nothing(store: segstore.Store) -> None:
    async def main() -> None:
        async with queue_of(store) as queue:
            await queue.poll()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    assert state(store)[1] == 10


def test_a_close_of_the_store_ends_an_iteration(store_dir: Path) -> None:
    async def main() -> None:
        with opened(store_dir) as store:
            queue = queue_of(store)
            async for record in queue:
                if record.offset == 4:
                    break
        with pytest.raises(StoreClosedError):
            await queue.__anext__()
        await queue.close()

    run(main)
    with opened(store_dir) as store:
        assert state(store)[1] == 5


def test_it_belongs_to_one_loop(store: segstore.Store) -> None:
    queue = queue_of(store)
    run(queue.poll)
    with pytest.raises(IllegalStateError, match=r"AsyncShareConsumer group_id=g.* another event loop"):
        run(queue.poll)
    queue._consumer.close()
