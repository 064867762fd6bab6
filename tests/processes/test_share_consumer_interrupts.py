"""Promise: Ctrl-C in a share consumer's call keeps no other thread out, loses no record, and leaves nothing
of a close undone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from consumers import append
from share_consumers import RELEASE, RENEW, opened, set_group, state, worker
from struck import struck
from waiting import PATIENCE, until

import segstore
from segstore import ShareConsumer
from segstore.client.consumer.ending import ConsumerEnding
from segstore.errors import ClientClosedError, IllegalStateError, StoreClosedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]
"""An interrupt may end a generator."""
MOST_STEP = 9
"""Each place is struck in a few runs: one run takes every one to ninth."""


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with opened(store_dir) as store:
        yield store


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as other:
        yield other


def elsewhere(other: ThreadPoolExecutor, run: Callable[[], Any]) -> Any:
    return other.submit(run).result(PATIENCE)


def answer(queue: ShareConsumer) -> None:
    for record in queue.poll_flat():
        queue.acknowledge(record, (RELEASE, RENEW)[record.offset % 2])


CALLS: dict[str, Callable[[ShareConsumer], object]] = {
    "poll": answer,
    "acknowledge": lambda queue: queue.acknowledge_offset("t", 0, 0),
    "commit_sync": lambda queue: queue.commit_sync(),
    "subscription": lambda queue: queue.subscription(),
    "next": lambda queue: queue._next(),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_thread_uses_the_consumer_next(
    store: segstore.Store, other: ThreadPoolExecutor, rng: random.Random, name: str
) -> None:
    place, raised = 0, 1
    with worker(store) as queue:
        queue.poll()
        while raised:
            place += rng.randrange(1, MOST_STEP) if name in ("poll", "commit_sync") else 1
            for held in queue._acks.held.values():
                for offset in held.records:
                    queue.acknowledge_offset("t", 0, offset, RELEASE)
            with suppress(IllegalStateError):  # nothing is held
                raised = struck(lambda: CALLS[name](queue), place)
            assert elsewhere(other, queue.subscription) == {"t"}, place
            if raised == 0 and place == 1:
                break
    assert place > 3


def one_block(store: segstore.Store, seen: list[int], mode: Any) -> None:
    """Work off what is there, as an application does."""
    with worker(store, share_acknowledgement_mode=mode) as queue:
        records = queue.poll_flat()
        for record in records:
            seen.append(record.offset)
            if mode == "explicit":
                queue.acknowledge(record)
        queue.commit_sync()


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_no_record_is_lost(store_dir: Path, rng: random.Random, mode: Any) -> None:
    """A record that nobody has seen is there still, whatever was interrupted: if the close at the end of the
    block was, once its lock has run out.
    """
    place, raised, end = 0, 1, 10
    seen: list[int] = []
    with opened(store_dir) as store:
        set_group(store, **{"share.record.lock.duration.ms": 1000, "share.delivery.count.limit": 10})
        one_block(store, seen, mode)
        while raised:
            place += rng.randrange(1, MOST_STEP)
            append(store, 2)
            end += 2
            raised = struck(lambda: one_block(store, seen, mode), place)
            until(lambda: one_block(store, seen, mode) or state(store)[1] == 0)
            assert set(seen) == set(range(end)), place
    assert place > 100


class Closed:
    """A deserializer that counts its ends."""

    def __init__(self) -> None:
        self.times = 0

    def deserialize(self, _topic: str, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.times += 1


def test_a_close_is_ended_by_the_next(
    store: segstore.Store, other: ThreadPoolExecutor, rng: random.Random
) -> None:
    place, raised = 0, 1
    while raised:
        place += rng.randrange(1, MOST_STEP)
        parts = [Closed(), Closed()]
        queue = worker(store, key_deserializer=parts[0], value_deserializer=parts[1])
        queue.poll()
        raised = struck(queue.close, place)
        elsewhere(other, queue.close)
        assert all(1 <= part.times <= 2 for part in parts), place
        assert queue._is_ended()
        with pytest.raises(ClientClosedError):
            queue.subscription()
    assert place > 20
    assert [part.times for part in parts] == [1, 1]


def test_the_end_with_the_store_keeps_nobody_out(
    store: segstore.Store, other: ThreadPoolExecutor, rng: random.Random
) -> None:
    place, raised = 0, 1
    while raised:
        place += rng.randrange(1, MOST_STEP)
        queue = worker(store)
        ending = ConsumerEnding(queue)
        raised = struck(lambda it=ending: it.close_with_store(time.monotonic() + PATIENCE, True), place)
        with suppress(StoreClosedError, ClientClosedError):  # no ConcurrentModificationError
            elsewhere(other, queue.subscription)
        ending.close_with_store(time.monotonic() + PATIENCE, True)
        assert queue._is_ended()
    assert place > 10
