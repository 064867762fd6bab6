"""Clients of asyncio and their event loop: other tasks get their turns, another loop is refused, and records
that an interrupted poll did not return are returned again.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import append, tp
from stores import values
from waiting import PATIENCE

import segstore
from segstore.client.aio import AsyncConsumer, AsyncProducer
from segstore.errors import IllegalStateError


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        store.create_topic("t")
        yield store


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def earliest(store: segstore.Store, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(store, "t", auto_offset_reset="earliest", **settings)


# --- other tasks have their turns ------------------------------------------------------------------


async def turns_within(work: Awaitable[Any]) -> int:
    """How many turns another task has until `work` is done."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    turns = 0
    await work
    beside.cancel()
    return turns


def test_a_loop_of_sends_gives_other_tasks_their_turns(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store) as producer:

            async def sends() -> None:
                for i in range(1_000):
                    await producer.send("t", b"%d" % i)

            assert await turns_within(sends()) >= 10

    run(main)
    assert values(store.partition("t")) == [b"%d" % i for i in range(1_000)]


def test_a_cancelled_loop_of_sends_ends_and_what_it_took_is_there(store: segstore.Store) -> None:
    async def main() -> list[bytes]:
        taken: list[bytes] = []
        async with AsyncProducer(store) as producer:

            async def sends() -> None:
                for i in range(5_000):
                    await producer.send("t", b"%d" % i)
                    taken.append(b"%d" % i)

            task = asyncio.ensure_future(sends())
            asyncio.get_running_loop().call_soon(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
        return taken

    taken = run(main)
    assert 0 < len(taken) < 1_000
    assert values(store.partition("t")) == taken


def test_tasks_that_send_one_record_each_keep_their_order(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store) as producer:
            await asyncio.gather(*(producer.send("t", b"%d" % i) for i in range(300)))

    run(main)
    assert values(store.partition("t")) == [b"%d" % i for i in range(300)]


def test_an_iteration_gives_other_tasks_their_turns(store: segstore.Store) -> None:
    """The records of one poll are all at hand."""
    append(store, 1_000)

    async def main() -> None:
        async with earliest(store, max_poll_records=1_000) as consumer:
            assert (await consumer.__anext__()).offset == 0
            got: list[int] = []

            async def iterate() -> None:
                while len(got) < 999:
                    got.append((await consumer.__anext__()).offset)

            assert await turns_within(iterate()) >= 10
            assert got == [*range(1, 1_000)]

    run(main)


# --- polls that give nothing --------------------------------------------------------------------------


async def poll(consumer: AsyncConsumer) -> list[int]:
    return [record.offset for part in (await consumer.poll(PATIENCE * 1000)).values() for record in part]


async def poll_arrow(consumer: AsyncConsumer) -> list[int]:
    found: list[int] = (await consumer.poll_arrow(PATIENCE * 1000))["offset"].to_pylist()
    return found


async def iterate(consumer: AsyncConsumer) -> list[int]:
    return [(await consumer.__anext__()).offset]


LOOKS = [poll, poll_arrow, iterate]


@pytest.mark.parametrize("made", [True, False], ids=["made", "under way"])
@pytest.mark.parametrize("after", LOOKS)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
def test_a_poll_that_gives_nothing_takes_nothing(
    store: segstore.Store, error: type[BaseException], look: Any, after: Any, made: bool
) -> None:
    append(store, 10)

    async def main() -> None:
        async with earliest(store, group_id="g", max_poll_records=5) as consumer:
            coroutine = look(consumer)
            coroutine.send(None)
            if made:
                await consumer._line.run(lambda: None)
            if error is GeneratorExit:
                coroutine.close()
            else:
                with pytest.raises(KeyboardInterrupt):
                    coroutine.throw(error)
            got = await after(consumer)
            assert got[0] == 0
            while len(got) < 10:
                got += await after(consumer)
            assert got == [*range(10)]

    run(main)


# --- another loop -------------------------------------------------------------------------------------


def test_a_consumer_refuses_another_loop_beside_its_own(store: segstore.Store) -> None:
    """Threads whose loops poll one consumer: one has it, the others are told; nothing is lost."""
    append(store, 10)
    consumer, got, refused = earliest(store), list[int](), list[IllegalStateError]()
    first, over = threading.Barrier(3, timeout=PATIENCE), threading.Barrier(3, timeout=PATIENCE)

    async def use() -> None:
        first.wait()
        try:
            got.extend(await asyncio.wait_for(poll(consumer), PATIENCE))
        except IllegalStateError as error:
            refused.append(error)
            over.wait()
        else:
            over.wait()
            await consumer.close()

    threads = [threading.Thread(target=asyncio.run, args=(use(),), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == [*range(10)]
    assert len(refused) == 2
    assert all("another event loop" in str(error) for error in refused)


def test_a_consumer_refuses_another_loop_in_each_call(store: segstore.Store) -> None:
    consumer = earliest(store, group_id="g")
    asyncio.run(consumer.topics())

    async def seek() -> None:
        consumer.seek(tp(), 0)

    async def assignment() -> None:
        consumer.assignment()

    for call in (
        seek,
        assignment,
        lambda: consumer.poll(),
        lambda: consumer.poll_arrow(),
        lambda: consumer.__anext__(),
        lambda: consumer.commit(),
        lambda: consumer.close(),
    ):
        with pytest.raises(IllegalStateError, match="group_id=g> belongs to another event loop"):
            run(call)  # type: ignore[arg-type]
    assert not consumer._consumer._guard.closed


def test_a_closed_consumer_may_be_closed_in_another_loop(store: segstore.Store) -> None:
    consumer = earliest(store)
    run(consumer.close)
    run(consumer.close)


@pytest.mark.parametrize("collected", [True, False], ids=["collected", "kept"])
def test_a_loop_that_was_closed_within_a_poll_loses_nothing(store: segstore.Store, collected: bool) -> None:
    append(store, 10)
    consumer = earliest(store, group_id="g", max_poll_records=5)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consumer.topics())
    task: Any = loop.create_task(poll(consumer))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    if collected:
        task._log_destroy_pending = False
        task = None
        gc.collect()
    with pytest.raises(IllegalStateError, match="another event loop"):
        run(lambda: poll(consumer))
    store.close()
    if task is not None:
        task._log_destroy_pending = False
    with segstore.open(store.path) as again:

        async def rest() -> None:
            async with earliest(again, group_id="g") as member:
                assert await poll(member) == [*range(10)]
                assert await member.position(tp()) == 10

        run(rest)
