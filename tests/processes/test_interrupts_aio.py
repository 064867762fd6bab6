"""Promise: Ctrl-C within a call of an asyncio client ends the call, and `async with` closes the client."""

from __future__ import annotations

import asyncio
import asyncio.locks
import concurrent.futures.thread
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from struck import struck
from waiting import PATIENCE

import segstore
from segstore.client import aio
from segstore.client.aio.line import Line
from segstore.client.aio.turns import Turns

# Coroutines of a loop that an interrupt ended are dropped, where an exception is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.kind("interrupts"),
]
WITHIN = {
    "clients": os.path.dirname(aio.__file__),
    "locks": asyncio.locks.__file__,
    "executors": concurrent.futures.thread.__file__,
    "threads": threading.__file__,
}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"v"] * 3)
        yield store


async def consume(store: segstore.Store, made: list[segstore.AsyncConsumer]) -> None:
    async with segstore.AsyncConsumer(store, "t", auto_offset_reset="earliest") as consumer:
        made.append(consumer)
        await consumer.poll()
        consumer.assignment()


async def produce(store: segstore.Store, made: list[segstore.AsyncProducer]) -> None:
    async with segstore.AsyncProducer(store) as producer:
        made.append(producer)
        await producer.send_and_wait("t", b"1")
        await producer.flush()


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
@pytest.mark.parametrize("use", [consume, produce])
def test_a_client_is_closed(store: segstore.Store, use: object, within: str) -> None:
    place, raised = 0, 1
    while raised:
        place += 1
        loop, made = asyncio.new_event_loop(), list[object]()
        late = loop.call_later(PATIENCE, loop.stop)
        try:
            raised = struck(partial(loop.run_until_complete, use(store, made)), place, within=within)  # type: ignore[operator]
        finally:
            late.cancel()
            loop.close()
        for client in made:
            if isinstance(client, segstore.AsyncConsumer):
                assert client._consumer._guard.closed or raised, place


# --- what they are made of --------------------------------------------------------------------------


def test_a_line_makes_its_calls_one_after_the_other() -> None:
    """At each place of `run`: a call is made once, or not at all, and the next one behind it."""
    place, raised = 0, 1
    while raised:
        place += 1
        line, made = Line("of a test"), list[tuple[int, int]]()

        def call(number: int, made: list[tuple[int, int]] = made) -> None:
            made.append((number, threading.get_ident()))

        async def ask(line: Line = line, place: int = place) -> int:
            raised = struck(lambda: line.run(partial(call, 1)), place)
            await line.run(partial(call, 2))
            return raised

        raised = asyncio.run(ask())
        line.end()
        assert [number for number, _ in made] in ([1, 2], [2]), place
        assert len({thread for _, thread in made}) == 1, place
        with pytest.raises(segstore.ClientClosedError):
            line.run(print)
    assert place > 3


def test_a_turn_that_was_interrupted_is_over() -> None:
    turns, place, raised = Turns(), 0, 1

    async def nothing() -> None:
        await asyncio.sleep(0)

    async def both() -> None:
        async def first() -> None:
            nonlocal raised
            coroutine = turns.take(nothing)
            try:
                while True:
                    raised = struck(partial(coroutine.send, None), place)
                    if raised:
                        return
                    await asyncio.sleep(0)
            except StopIteration:
                return

        second = asyncio.ensure_future(turns.take(nothing))
        await first()
        await asyncio.wait_for(turns.take(nothing), PATIENCE)
        await asyncio.wait_for(second, PATIENCE)

    while raised:
        place += 1
        raised = 0
        asyncio.run(both())
    assert place > 1


def test_who_waits_comes_before_who_asks_again() -> None:
    turns, order = Turns(), list[str]()

    async def main() -> None:
        async def again(name: str) -> None:
            for _ in range(3):
                await turns.take(partial(note, name))

        async def note(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)

        await asyncio.gather(again("a"), again("b"), again("c"))

    asyncio.run(main())
    assert order == ["a", "b", "c"] * 3


def test_who_is_cancelled_gives_its_turn_to_the_next() -> None:
    turns = Turns()

    async def main() -> None:
        free = asyncio.Event()
        first = asyncio.ensure_future(turns.take(free.wait))
        await asyncio.sleep(0)
        second, third = (asyncio.ensure_future(turns.take(partial(asyncio.sleep, 0, n))) for n in (2, 3))
        await asyncio.sleep(0)
        free.set()
        await first
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await asyncio.wait_for(third, PATIENCE) == 3

    asyncio.run(main())
