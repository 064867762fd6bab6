"""The plain methods of `AsyncConsumer`, called while its thread is within a call; and reads without a
subscription.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import append, tp
from waiting import PATIENCE

import segstore
from segstore.client.aio import AsyncConsumer, entry, in_thread
from segstore.errors import (
    ClientClosedError,
    ConcurrentModificationError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    UnknownTopicOrPartitionError,
)

LONG_MS = PATIENCE * 1000


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        store.create_topic("t", 2)
        yield store


@pytest.fixture
def long_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait in the thread goes on for as long as a plain method waits for its end, and longer."""
    monkeypatch.setattr(in_thread, "SLICE_MS", LONG_MS)


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def earliest(store: segstore.Store, *topics: str, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(store, *topics, **{"auto_offset_reset": "earliest", **settings})


async def waiting(polls: AsyncConsumer, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task of a call that is under way in the consumer's thread."""
    task = asyncio.ensure_future(call)
    while not polls._consumer._guard._user or not within(polls):
        await asyncio.sleep(0.001)
    return task


def within(polls: AsyncConsumer) -> bool:
    found = polls._consumer._guard.acquire(False)
    if found:
        polls._consumer._guard.release()
    return not found


# --- reads without a subscription -----------------------------------------------------------------

READS: dict[str, Callable[[AsyncConsumer], Coroutine[Any, Any, Any]]] = {
    "poll": lambda it: it.poll(LONG_MS),
    "poll_arrow": lambda it: it.poll_arrow(LONG_MS),
    "getone": lambda it: it.getone(),
    "getmany": lambda it: it.getmany(timeout_ms=LONG_MS),
    "async for": lambda it: it.__anext__(),
}


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("read", READS)
def test_a_read_without_a_subscription_is_refused(
    store: segstore.Store, read: str, group: str | None
) -> None:
    """Also after `unsubscribe`, and after an assignment of nothing; then the consumer is used as ever."""
    append(store, 1)

    async def main() -> None:
        async with earliest(store, group_id=group) as it:
            for give_up in (lambda: None, it.unsubscribe, lambda: it.assign([])):
                give_up()
                with pytest.raises(IllegalStateError, match=r"subscribe\(\) or assign\(\) first"):
                    await READS[read](it)
                it.assign([tp()])
                it.seek(tp(), 0)
                assert await READS[read](it)

    run(main)


@pytest.mark.parametrize("read", READS)
def test_a_read_that_waits_learns_of_the_end_of_the_subscription(
    store: segstore.Store, long_calls: None, read: str
) -> None:
    async def main() -> None:
        async with earliest(store, "t") as it:
            task = await waiting(it, READS[read](it))
            it.unsubscribe()
            with pytest.raises(IllegalStateError, match="not subscribed"):
                await task

    run(main)


# --- beside a call in the thread --------------------------------------------------------------------

PLAIN: dict[str, Callable[[AsyncConsumer], object]] = {
    "assign": lambda it: it.assign([tp(), tp(1)]),
    "assignment": lambda it: it.assignment() == {tp(), tp(1)},
    "highwater": lambda it: it.highwater(tp()) == 0,
    "last_poll_timestamp": lambda it: it.last_poll_timestamp(tp()) is None,
    "last_stable_offset": lambda it: it.last_stable_offset(tp()) == 0,
    "partitions_for_topic": lambda it: it.partitions_for_topic("t") == {0, 1},
    "pause": lambda it: it.pause(tp(1)),
    "paused": lambda it: it.paused() == set(),
    "resume": lambda it: it.resume(tp()),
    "seek": lambda it: it.seek(tp(), 0),
    "subscription": lambda it: it.subscription() is None,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("call", PLAIN)
def test_a_wait_gives_way_to_a_plain_method(
    store: segstore.Store, long_calls: None, call: str, read: str
) -> None:
    """A wait that did not would have it raise ConcurrentModificationError. The read goes on after it."""

    async def main() -> None:
        async with earliest(store) as it:
            it.assign([tp(), tp(1)])
            task = await waiting(it, READS[read](it))
            assert PLAIN[call](it) in (None, True)
            append(store, 1)
            assert await task

    run(main)


@pytest.mark.parametrize("pattern", [False, True])
def test_a_subscription_that_is_replaced_within_a_wait(
    store: segstore.Store, long_calls: None, pattern: bool
) -> None:
    store.create_topic("other")
    append(store, 3, "other")

    async def main() -> None:
        async with earliest(store, *([] if pattern else ["t"])) as it:
            if pattern:
                it.subscribe(pattern="t")
            task = await waiting(it, it.getone())
            it.subscribe(pattern="oth") if pattern else it.subscribe(["other"])
            assert (await task).topic == "other"
            assert it.subscription() == {"other"}
            assert it.assignment() == {tp(0, "other")}

    run(main)


def test_a_wait_for_a_transaction_gives_way(store: segstore.Store, long_calls: None) -> None:
    """The transaction is ended in the loop that the wait would block."""

    async def main() -> None:
        producer = segstore.AsyncProducer(store, transactional_id="x")
        settings = {"group_id": "g", "isolation_level": "read_committed"}
        async with producer, earliest(store, **settings) as it:
            it.assign([tp()])
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({tp(): segstore.OffsetAndMetadata(7)}, "g")
            task = await waiting(it, it.committed(tp()))
            it.pause(tp())
            assert it.paused() == {tp()}
            assert not task.done()
            await producer.commit_transaction()
            assert await task == 7

    run(main)


def test_some_partitions_only_beside_a_look_at_what_is_paused(
    store: segstore.Store, long_calls: None
) -> None:
    """`getmany` of some partitions pauses the others within its call."""

    async def main() -> None:
        async with earliest(store, "t") as it:
            task = await waiting(it, it.getone(tp(1)))
            assert it.paused() == set()
            it.pause(tp(1))
            append(store, 1, partition=1)
            append(store, 1, partition=0)
            assert set(await it.getmany(timeout_ms=LONG_MS)) == {tp(0)}
            assert it.paused() == {tp(1)}
            it.resume(tp(1))
            assert (await task).partition == 1

    run(main)


def test_a_cancelled_poll_leaves_a_seek_in_force(store: segstore.Store) -> None:
    """The poll has its records, its task does not, and is cancelled once the position was moved."""
    append(store, 10)

    async def main() -> None:
        async with earliest(store, "t") as it:
            task = asyncio.ensure_future(it.poll(LONG_MS))
            await asyncio.sleep(0)
            made = threading.Event()
            it._line.later(made.set)
            assert made.wait(PATIENCE)  # the task can't run meanwhile
            it.seek(tp(), 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await it.position(tp()) == 10

    run(main)


def test_a_poll_that_was_cut_short_goes_on_to_its_time(store: segstore.Store, long_calls: None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with earliest(store, "t", consumer_timeout_ms=100) as it:
            for read in (it.poll(100), anext(aiter(it), None)):
                began = loop.time()
                task = await waiting(it, read)  # type: ignore[arg-type]
                it.pause(tp())
                assert not await task
                assert loop.time() - began >= 0.1

    run(main)


# --- listeners and deserializers --------------------------------------------------------------------


class Seeks(segstore.ConsumerRebalanceListener):
    """What applications of aiokafka do."""

    def __init__(self, of: AsyncConsumer) -> None:
        self.of, self.threads = of, set[str]()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.threads.add(threading.current_thread().name)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.threads.add(threading.current_thread().name)
        for partition in self.of.assignment():
            self.of.seek(partition, 2)
        self.of.pause(tp(1))


@pytest.mark.parametrize("group", [None, "g"])
def test_a_listener_may_call_plain_methods(store: segstore.Store, group: str | None) -> None:
    append(store, 4)

    async def main() -> None:
        async with earliest(store, group_id=group) as it:
            listener = Seeks(it)
            it.subscribe(["t"], listener=listener)
            assert (await it.getone()).offset == 2
            assert it.paused() == {tp(1)}
            assert listener.threads == {"segstore-consumer"}
            it.unsubscribe()
            assert listener.threads == {"segstore-consumer", threading.current_thread().name}

    run(main)


class Coroutines(segstore.ConsumerRebalanceListener):
    async def on_partitions_revoked(self, revoked: Any) -> None:  # type: ignore[override]
        raise AssertionError

    async def on_partitions_assigned(self, assigned: Any) -> None:  # type: ignore[override]
        raise AssertionError


def test_a_listener_with_coroutines_is_refused(store: segstore.Store) -> None:
    it = earliest(store)
    with pytest.raises(InvalidTypeError, match="Coroutines has a coroutine on_partitions_revoked"):
        it.subscribe(["t"], listener=Coroutines())
    assert it.subscription() is None


def test_a_deserializer_that_waits_for_the_loop_does_not_stop_it_for_ever(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "PATIENCE", 0.05)
    append(store, 1)
    entered, left = threading.Event(), threading.Event()

    def deserialize(value: bytes) -> bytes:
        entered.set()
        left.wait(PATIENCE)
        return value

    async def main() -> None:
        async with earliest(store, "t", value_deserializer=deserialize) as it:
            task = asyncio.ensure_future(it.getone())
            await asyncio.to_thread(entered.wait, PATIENCE)
            assert it.assignment() == {tp(), tp(1)}  # which waits for nothing
            with pytest.raises(ConcurrentModificationError, match="deserializer"):
                it.pause(tp())
            left.set()
            assert (await task).offset == 0
            it.pause(tp())

    run(main)


# --- others --------------------------------------------------------------------------------------------


def test_plain_methods_before_a_loop_runs(store: segstore.Store) -> None:
    append(store, 1)
    it = earliest(store)
    it.subscribe(["t"])

    async def main() -> None:
        async with it:
            assert (await it.getone()).offset == 0

    run(main)


def test_errors_come_at_once_and_change_nothing(store: segstore.Store) -> None:
    async def main() -> None:
        async with earliest(store, "t") as it:
            with pytest.raises(UnknownTopicOrPartitionError):
                it.subscribe(["none"])
            with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) first"):
                it.assign([tp()])
            for call in (it.highwater, it.last_stable_offset, it.last_poll_timestamp, it.pause, it.resume):
                with pytest.raises(IllegalStateError, match="t-7 is not assigned"):
                    call(tp(7))
            with pytest.raises(IllegalStateError, match="t-7 is not assigned"):
                await it.seek_to_committed(tp(), tp(7))
            assert it.assignment() == {tp(), tp(1)}
        for closed in (it.assignment, it.subscription, it.paused, it.unsubscribe, lambda: it.assign([tp()])):
            with pytest.raises(ClientClosedError):
                closed()

    run(main)


@pytest.mark.parametrize(
    ("offset", "committed"),
    [
        (7, segstore.OffsetAndMetadata(7)),
        ((7, "note"), segstore.OffsetAndMetadata(7, "note")),
        (segstore.OffsetAndMetadata(7, "note", 3), segstore.OffsetAndMetadata(7, "note", 3)),
        (-1, InvalidArgumentError),
        (True, InvalidTypeError),
        ((7, "note", 3), InvalidTypeError),
        (("7", ""), InvalidTypeError),
        ("7", InvalidTypeError),
    ],
    ids=repr,
)
def test_offsets_to_commit_as_aiokafka_takes_them(store: segstore.Store, offset: Any, committed: Any) -> None:
    async def main() -> None:
        async with earliest(store, group_id="g") as it:
            it.assign([tp()])
            if isinstance(committed, type):
                with pytest.raises(committed):
                    await it.commit({tp(): offset})
                assert await it.committed(tp()) is None
            else:
                await it.commit({tp(): offset})
                assert await it.committed(tp(), metadata=True) == committed

    run(main)


def test_what_a_log_and_a_poll_say(store: segstore.Store) -> None:
    append(store, 3)

    async def main() -> None:
        producer = segstore.AsyncProducer(store, transactional_id="x")
        async with producer, earliest(store, group_id="g", enable_auto_commit=False) as it:
            it.assign([tp()])
            assert it.last_poll_timestamp(tp()) is None
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"open", partition=0)
            assert (it.highwater(tp()), it.last_stable_offset(tp())) == (4, 3)
            await producer.abort_transaction()
            assert it.last_stable_offset(tp()) == it.highwater(tp()) == 5
            before = store.context.clock()
            await it.poll()
            assert before <= it.last_poll_timestamp(tp()) <= store.context.clock()
            assert await it.seek_to_committed() == {tp(): None}
            assert await it.position(tp()) == 5
            await it.commit({tp(): segstore.OffsetAndMetadata(1)})
            assert await it.seek_to_committed(tp()) == {tp(): 1}
            assert await it.position(tp()) == 1

    run(main)
