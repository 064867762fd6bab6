"""Transactions of `AsyncProducer`: the way in which a block is left decides; cancelled and fenced
producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import committed_values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.aio import AsyncProducer


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        yield store


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_transaction_is_committed_or_aborted_by_how_it_is_left(store: segstore.Store) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send_and_wait("t", b"lost")
            raise ZeroDivisionError

    async def main() -> None:
        async with AsyncProducer(store, transactional_id="x") as producer:
            async with producer.transaction():
                futures = [await producer.send("t", b"%d" % i) for i in range(3)]
            assert [future.result().offset for future in futures] == [0, 1, 2]
            with pytest.raises(ZeroDivisionError):
                await work(producer)
            await producer.begin_transaction()
            await producer.send("t", b"3")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.send("t", b"lost too")
            await producer.abort_transaction()
            with pytest.raises(errors.IllegalStateError):
                await producer.commit_transaction()

    run(main)
    assert committed_values(store.partition("t")) == [b"0", b"1", b"2", b"3"]


def test_a_task_that_is_cancelled_aborts_its_transaction(store: segstore.Store) -> None:
    async def main() -> None:
        async with AsyncProducer(store, transactional_id="x") as producer:

            async def work() -> None:
                async with producer.transaction():
                    await producer.send_and_wait("t", b"lost")
                    written.set()
                    await asyncio.sleep(PATIENCE)

            written = asyncio.Event()
            task = asyncio.ensure_future(work())
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send("t", b"kept")

    run(main)
    assert committed_values(store.partition("t")) == [b"kept"]


def test_a_producer_that_is_fenced_leaves_with_what_fenced_it(store: segstore.Store) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction():
            async with AsyncProducer(store, transactional_id="x") as newer, newer.transaction():
                await newer.send("t", b"kept")
            await producer.send_and_wait("t", b"lost")

    async def main() -> None:
        async with AsyncProducer(store, transactional_id="x") as producer:
            with pytest.raises(errors.ProducerFencedError):
                await work(producer)

    run(main)
    assert committed_values(store.partition("t")) == [b"kept"]


def test_a_start_that_fails_leaves_nothing_behind(store: segstore.Store) -> None:
    async def main() -> None:
        producer = AsyncProducer(store, transactional_id="x", transaction_timeout_ms=1 << 30)
        with pytest.raises(errors.InvalidTxnTimeoutError):
            async with producer:
                raise AssertionError
        assert not producer._producer._sender.is_alive()

    run(main)
