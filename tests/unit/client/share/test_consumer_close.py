"""The end of a share consumer: by `close`, with its store, dropped, in the child of a fork (rule Q7 of
docs/queues.md).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, tp
from share_consumers import Refusing, counts, members, offsets, opened, state, worker
from share_consumers import store as store
from waiting import PATIENCE, until

import segstore
from segstore import ShareConsumer
from segstore.errors import ClientClosedError, StoreClosedError


def test_q7_a_close_sends_gives_back_and_leaves(store: segstore.Store) -> None:
    with worker(store) as other:
        with worker(store, max_poll_records=1) as queue:
            for record in queue.poll_flat()[:2]:
                queue.acknowledge(record)
            assert offsets(other.poll_flat(timeout_ms=LONG_MS)) == [*range(4, 10)]
            assert members(store) == 2
        assert members(store) == 1
        assert state(store)[1] == 8
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(2, 10), 2)


def test_q7_a_close_gives_back_what_no_poll_has_given(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert offsets(queue.poll_flat(max_records=2)) == [0, 1]
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == {2: 2, 3: 2, **dict.fromkeys(range(4, 10), 1)}


def test_an_exception_accepts_nothing(store: segstore.Store) -> None:
    def work() -> None:
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            queue.poll_flat()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(10), 2)


def test_a_closed_consumer_is_refused(store: segstore.Store) -> None:
    part = Refusing()
    queue = worker(store, value_deserializer=part)
    (record, *_) = queue.poll_flat()
    queue.close()
    queue.close()
    assert part.ends == 1
    calls: list[Callable[[], object]] = [
        queue.poll,
        queue.poll_flat,
        queue.commit_sync,
        queue.commit_async,
        queue.subscription,
        queue.unsubscribe,
        queue.metrics,
        lambda: queue.subscribe(["t"]),
        lambda: queue.acknowledge(record),
        lambda: queue.acknowledge_offset("t", 0, 0),
        lambda: queue.set_acknowledgement_commit_callback(None),
    ]
    for call in calls:
        with pytest.raises(ClientClosedError):
            call()
    queue.wakeup()


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_a_close_of_the_store_ends_it(store_dir: Path, mode: Any) -> None:
    with opened(store_dir) as store:
        queue = worker(store, share_acknowledgement_mode=mode)
        records = queue.poll_flat()
        if mode == "explicit":
            queue.acknowledge(records[0])
    with pytest.raises(StoreClosedError):
        queue.poll()
    queue.close()
    with opened(store_dir) as store:
        assert members(store) == 0
        assert state(store)[1] == (9 if mode == "explicit" else 0)


def test_a_close_of_the_store_ends_a_poll_in_another_thread(store_dir: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        with opened(store_dir, records=0) as store:
            queue = worker(store)
            waiting = thread.submit(queue.poll, LONG_MS)
            until(lambda: queue._wait._may_wait)
        assert waiting.result(PATIENCE) == {}
    with pytest.raises(StoreClosedError):
        queue.poll()


def test_a_consumer_that_was_dropped_leaves_its_group(store: segstore.Store) -> None:
    queue: ShareConsumer | None = worker(store)
    assert queue is not None
    queue.poll()
    ref = weakref.ref(queue)
    queue = None
    assert ref() is None  # without the garbage collector
    with worker(store) as other:
        until(lambda: other.poll(timeout_ms=1) == {} and members(store) == 1)


@pytest.mark.kind("programs")
def test_a_child_of_a_fork_has_no_consumer(store: segstore.Store) -> None:
    queue = worker(store)
    records = queue.poll_flat()
    child = os.fork()
    if not child:
        status = 1
        try:
            queue.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for record in records:
        queue.acknowledge(record)
    assert queue.commit_sync() == {tp(): None}
    queue.close()
    assert members(store) == 0
