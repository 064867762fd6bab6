"""Stores that are closed before, between and after their asyncio clients, in any order."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from consumers import append
from stores import values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.aio import AsyncConsumer, AsyncProducer

pytestmark = pytest.mark.kind("interrupts")

SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CLIENTS = ("producer", "transactional", "consumer", "member")
CLOSED = errors.ClientClosedError | errors.StoreClosedError


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def opened(path: Path) -> segstore.Store:
    store = segstore.open(path, config=SMALL)
    if "t" not in store.topics():
        store.create_topic("t")
    return store


class Application:
    """A store and four clients. Four records of a round count; one is in a transaction that is left open."""

    async def begin(self, path: Path) -> None:
        self.store = store = opened(path)
        self.before = len(values(store.partition("t"), isolation_level="read_committed"))
        append(store, 1)
        self.all: dict[str, Any] = {}
        for name, group in (("consumer", None), ("member", "g")):
            consumer = AsyncConsumer(store, "t", group_id=group, auto_offset_reset="earliest")
            assert await consumer.poll(PATIENCE * 1000)
            self.all[name] = consumer
        self.all["producer"] = producer = AsyncProducer(store, linger_ms=60_000)
        self.sent = [await producer.send("t", b"%d" % i) for i in range(2)]
        self.all["transactional"] = transactional = AsyncProducer(
            store, transactional_id="x", linger_ms=60_000
        )
        await transactional.start()
        async with transactional.transaction():
            await transactional.send("t", b"committed")
        await transactional.begin_transaction()
        await transactional.send("t", b"left open")

    async def close(self, name: str) -> None:
        if name == "store":
            self.store.close()
        else:
            await getattr(self.all[name], "stop" if isinstance(self.all[name], AsyncProducer) else "close")()

    async def judge(self, path: Path) -> None:
        for future in self.sent:
            assert (await future).offset >= 0
        with opened(path) as store:
            log = store.partition("t")
            assert len(values(log, isolation_level="read_committed")) == self.before + 4
            assert log.last_stable_offset == log.end_offset


@pytest.mark.parametrize("first", ["store", *CLIENTS])
def test_any_order_of_closing(store_dir: Path, first: str) -> None:
    """All orders of the five; each is closed twice."""

    async def main() -> None:
        for order in itertools.permutations(name for name in ("store", *CLIENTS) if name != first):
            application = Application()
            await application.begin(store_dir)
            for name in (first, *order):
                await application.close(name)
                await application.close(name)
            await application.judge(store_dir)

    run(main)


def test_before_after_or_never(store_dir: Path) -> None:
    async def main() -> None:
        for when in itertools.product(["before", "after", "never"], repeat=4):
            application = Application()
            await application.begin(store_dir)
            closed = dict(zip(CLIENTS, when, strict=True))
            for turn in ("before", "after"):
                for name in (name for name in CLIENTS if closed[name] == turn):
                    await application.close(name)
                if turn == "before":
                    await application.close("store")
            await application.judge(store_dir)

    run(main)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("how", ["poll", "async for"])
def test_tasks_that_wait_are_told_when_the_store_is_closed(
    store_dir: Path, how: str, group: str | None
) -> None:
    """`async with` in a task, and the store closed in the `finally` of main; nobody is cancelled."""
    store = opened(store_dir)
    append(store, 3)
    got: list[int] = []
    began = asyncio.Event()

    async def consume() -> None:
        settings: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(store, "t", **settings) as consumer:
            if how == "poll":
                while True:
                    for records in (await consumer.poll(PATIENCE * 1000)).values():
                        note(records)
            async for record in consumer:
                note([record])

    def note(records: list[Any]) -> None:
        got.extend(record.offset for record in records)
        if len(got) == 3:
            began.set()

    async def main() -> None:
        task = asyncio.ensure_future(consume())
        try:
            await began.wait()
            await asyncio.sleep(0.01)
        finally:
            store.close()
        await asyncio.wait([task])
        assert isinstance(task.exception(), CLOSED | None)

    run(main)
    assert got == [0, 1, 2]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_cancelled_task_ends_as_cancelled_although_its_store_was_closed_first(
    store_dir: Path, group: str | None
) -> None:
    store = opened(store_dir)

    async def work() -> None:
        async with (
            AsyncConsumer(store, "t", group_id=group) as consumer,
            AsyncProducer(store, linger_ms=60_000) as producer,
        ):
            await producer.send("t", b"x")
            async for _ in consumer:
                continue

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.05)
        store.close()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), CLOSED | None)

    run(main)
    with opened(store_dir) as again:
        assert values(again.partition("t")) == [b"x"]


def test_the_loop_goes_on_where_the_store_is_closed_in_a_thread(store_dir: Path) -> None:
    """What is awaited then has its outcome, and a send that comes too late is refused."""
    store = opened(store_dir)

    async def main() -> None:
        producer = AsyncProducer(store, linger_ms=60_000)
        future = await producer.send("t", b"x")
        await asyncio.to_thread(store.close)
        assert (await future).offset == 0
        with pytest.raises(errors.StoreClosedError):
            await producer.send("t", b"late")
        await producer.stop()

    run(main)


def test_sends_that_wait_for_memory_end_when_the_store_is_closed(store_dir: Path) -> None:
    store = opened(store_dir)

    async def main() -> None:
        producer = AsyncProducer(store, linger_ms=60_000, buffer_memory=20_000)
        taken = asyncio.gather(*(producer.send("t", b"x" * 9000) for _ in range(20)), return_exceptions=True)
        await asyncio.sleep(0)
        store.close()
        outcomes = await taken
        futures = [each for each in outcomes if isinstance(each, asyncio.Future)]
        assert all(isinstance(each, errors.StoreClosedError) for each in outcomes if each not in futures)
        assert sorted([(await future).offset for future in futures]) == [*range(len(futures))]

    run(main)


SCRIPT = """
import asyncio, sys, segstore

async def consume(store):
    settings = dict(group_id="g", auto_offset_reset="earliest")
    async with segstore.AsyncConsumer(store, "t", **settings) as consumer:
        async for record in consumer:
            continue

async def produce(store):
    async with segstore.AsyncProducer(store, linger_ms=60_000) as producer:
        while True:
            await producer.send("t", b"x")
            await asyncio.sleep(0.001)

async def main():
    store = segstore.open(sys.argv[1], config={"offsets.topic.num.partitions": 1})
    store.create_topic("t")
    tasks = [asyncio.ensure_future(work(store)) for work in (consume, produce, consume)]
    await asyncio.sleep(0.3)
    try:
        print("ready", flush=True)
        await asyncio.gather(*tasks)
    finally:
        store.close()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run cancels at Ctrl-C since Python 3.11")
def test_ctrl_c_ends_a_program_with_the_traceback_of_ctrl_c_alone(tmp_path: Path, store_dir: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, path, store_dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.kill(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    for bad in ("segstore.errors", "Task exception was never retrieved", "Exception ignored"):
        assert bad not in said, said
    with opened(store_dir) as store:
        assert store.partition("t").end_offset > 0
