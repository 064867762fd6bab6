"""Promise: Ctrl-C in a consumer's call keeps no other thread out, and leaves nothing of a close undone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from consumers import fill, tp
from struck import struck
from waiting import PATIENCE

import segstore
from segstore import Consumer
from segstore.client.consumer.ending import ConsumerEnding
from segstore.errors import ClientClosedError, StoreClosedError

pytestmark = pytest.mark.kind("interrupts")

CALLS: dict[str, Callable[[Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(),
    "next": lambda consumer: next(consumer),
    "seek": lambda consumer: consumer.seek(tp(), 0),
    "position": lambda consumer: consumer.position(tp()),
    "take": lambda consumer: consumer._take(),
}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        fill(store)
        yield store


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as other:
        yield other


def elsewhere(other: ThreadPoolExecutor, run: Callable[[], Any]) -> Any:
    return other.submit(run).result(PATIENCE)


@pytest.mark.parametrize("name", CALLS)
def test_another_thread_uses_the_consumer_next(
    store: segstore.Store, other: ThreadPoolExecutor, name: str
) -> None:
    """Before: ConcurrentModificationError, for ever, where it came between taking and letting go."""
    place, raised = 0, 1
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp()])
        while raised:
            consumer.seek(tp(), 0)
            place += 1
            raised = struck(lambda: CALLS[name](consumer), place)
            assert elsewhere(other, lambda: consumer.position(tp())) is not None, place
    assert place > 5


class Closed:
    """A deserializer, or an interceptor, that counts its ends."""

    def __init__(self) -> None:
        self.times = 0

    def deserialize(self, _topic: str, data: bytes) -> bytes:
        return data

    def on_consume(self, records: Any) -> Any:
        return records

    def close(self) -> None:
        self.times += 1


@pytest.mark.parametrize("group", [None, "g"], ids=["no group", "a group"])
def test_a_close_is_ended_by_the_next(
    store: segstore.Store, other: ThreadPoolExecutor, group: str | None
) -> None:
    """Before: parts that an interrupt kept from their end were never closed."""
    place, raised = 0, 1
    while raised:
        place += 1
        parts = [Closed(), Closed(), Closed()]
        consumer = Consumer(
            *(store, "t"), group_id=group, key_deserializer=parts[0], value_deserializer=parts[1],
            interceptors=[parts[2]],
        )  # fmt: skip
        consumer.poll()
        raised = struck(consumer.close, place)
        elsewhere(other, consumer.close)
        assert all(1 <= part.times <= 2 for part in parts), place
        assert consumer._is_ended()
        with pytest.raises(ClientClosedError):
            consumer.assignment()
    assert place > 20
    assert [part.times for part in parts] == [1, 1, 1]


def test_a_close_of_the_store_ends_what_an_interrupted_close_left(store_dir: Path) -> None:
    place, raised = 0, 1
    while raised:
        place += 1
        part = Closed()
        with segstore.open(store_dir) as store:
            if not store.topics():
                store.create_topic("t")
            consumer = Consumer(store, "t", value_deserializer=part)
            raised = struck(consumer.close, place)
        assert 1 <= part.times <= 2, place
    assert place > 10


def test_the_end_with_the_store_keeps_nobody_out(store: segstore.Store, other: ThreadPoolExecutor) -> None:
    place, raised = 0, 1
    while raised:
        place += 1
        consumer = Consumer(store, "t")
        ending = ConsumerEnding(consumer)
        raised = struck(lambda it=ending: it.close_with_store(time.monotonic() + PATIENCE, True), place)
        with suppress(StoreClosedError, ClientClosedError):  # no ConcurrentModificationError
            elsewhere(other, consumer.assignment)
        ending.close_with_store(time.monotonic() + PATIENCE, True)
        assert consumer._is_ended()
    assert place > 10


def test_a_lock_that_the_interpreter_left_taken_is_let_go_of(
    store: segstore.Store, other: ThreadPoolExecutor
) -> None:
    """CPython 3.10 and 3.14 have a gap in `with`: the next call of the thread that has the lock closes it."""
    with Consumer(store, "t") as consumer:
        consumer._guard.acquire()
        consumer.poll()
        assert elsewhere(other, consumer.assignment) == {tp()}


def test_a_part_that_closes_the_consumer_is_closed_once(store: segstore.Store) -> None:
    class Closing(Closed):
        def close(self) -> None:
            super().close()
            consumer.close()

    part = Closing()
    consumer = Consumer(store, "t", value_deserializer=part)
    consumer.close()
    consumer.close()
    assert part.times == 1


def test_a_part_that_fails_is_told_and_the_next_close_goes_on_behind_it(store: segstore.Store) -> None:
    class Failing(Closed):
        def close(self) -> None:
            super().close()
            raise ValueError("no end")

    parts = [Failing(), Closed()]
    consumer = Consumer(store, "t", key_deserializer=parts[0], value_deserializer=parts[1])
    with pytest.raises(ValueError, match="no end"):
        consumer.close()
    consumer.close()
    consumer.close()
    assert [part.times for part in parts] == [1, 1]
