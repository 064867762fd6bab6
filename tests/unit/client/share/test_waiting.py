"""What wakes a share consumer that waits, and that nothing that comes before the wait is missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append, tp
from share_consumers import RELEASE, counts, offsets, opened, set_group, worker
from waiting import PATIENCE, until

import segstore
from segstore import ShareConsumer
from segstore.client.share.waiting import ShareWait
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.errors import WakeupError


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with opened(store_dir, records=4) as store:
        yield store


@pytest.fixture
def holder(store: segstore.Store) -> Iterator[ShareConsumer]:
    """A consumer that has all records."""
    with worker(store) as holder:
        assert len(holder.poll_flat()) == 4
        yield holder


def release(holder: ShareConsumer) -> None:
    for offset in range(4):
        holder.acknowledge_offset("t", 0, offset, RELEASE)
    holder.commit_sync()


def joins_again(store: segstore.Store) -> None:
    """Has the group's members change, which changes no assignment."""
    with worker(store) as third:
        third.poll()


EVENTS: dict[str, tuple[Callable[[segstore.Store, ShareConsumer], object], dict[int, int]]] = {
    "records are appended": (lambda store, _: append(store, 1), {4: 1}),
    "records are released": (lambda _, holder: release(holder), dict.fromkeys(range(4), 2)),
    "a member closes": (lambda _, holder: holder.close(), dict.fromkeys(range(4), 2)),
    "a member unsubscribes and releases": (
        lambda _, holder: (holder.unsubscribe(), release(holder)),
        dict.fromkeys(range(4), 2),
    ),
}


@pytest.mark.parametrize(("event", "expected"), EVENTS.values(), ids=EVENTS)
def test_q28_a_waiting_poll_is_woken(
    store: segstore.Store, holder: ShareConsumer, event: Callable[..., object], expected: dict[int, int]
) -> None:
    with worker(store) as queue, ThreadPoolExecutor(1) as thread:
        until(lambda: queue.poll() == {} and queue._membership.partitions)
        waiting = thread.submit(queue.poll_flat, LONG_MS)
        until(lambda: queue._wait._may_wait)
        event(store, holder)
        assert counts(waiting.result(PATIENCE)) == expected


def test_q36_a_lock_that_runs_out_wakes_others(store_dir: Path) -> None:
    with opened(store_dir, records=4) as store:
        set_group(store, **{"share.record.lock.duration.ms": 1000})
        with worker(store) as holder, worker(store) as queue:
            assert len(holder.poll_flat()) == 4
            found = queue.poll_flat(timeout_ms=LONG_MS)
            assert counts(found) == dict.fromkeys(range(4), 2)


def test_q28_a_full_window_opens(store_dir: Path) -> None:
    with opened(store_dir, records=400) as store:
        set_group(store, **{"share.partition.max.record.locks": 100})
        with worker(store, max_poll_records=100) as holder, worker(store) as queue:
            held = holder.poll_flat()
            until(lambda: queue.poll() == {} and queue._membership.partitions)
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(queue.poll_flat, LONG_MS)
                until(lambda: queue._wait._may_wait)
                for record in held:
                    holder.acknowledge(record)
                holder.commit_sync()
                assert waiting.result(PATIENCE)[0].offset == 100


def test_topics_and_members_that_come_wake_a_poll_which_goes_on(
    store: segstore.Store, holder: ShareConsumer
) -> None:
    with worker(store) as queue, ThreadPoolExecutor(1) as thread:
        until(lambda: queue.poll() == {} and queue._membership.partitions)
        waiting = thread.submit(queue.poll_flat, LONG_MS)
        until(lambda: queue._wait._may_wait)
        store.create_topic("u")
        joins_again(store)
        segstore.AdminClient(store).create_partitions({"t": segstore.NewPartitions(4)})
        for partition in (1, 2, 3):  # the two members share them
            append(store, 1, partition=partition)
        found = waiting.result(PATIENCE)
        assert {record.partition for record in found} <= {1, 2, 3}
        assert offsets(found) == [0] * len(found)


@pytest.mark.parametrize("name", ["ring", "wakeup"])
def test_what_comes_between_a_look_and_the_wait_is_not_missed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wait, slept = ShareWait(store), []
    sleep = store.wait_for

    def late(*arguments: Any) -> int:
        getattr(wait, name)()  # after the look at what came before, and before the sleep
        began = time.monotonic()
        found = sleep(*arguments)
        slept.append(time.monotonic() - began < PATIENCE)
        return found

    monkeypatch.setattr(store, "wait_for", late)
    wait.begin([tp()])
    getattr(wait, name)()
    wait.wait(PATIENCE)
    assert slept == []
    wait.is_woken = False
    wait.begin([tp()])
    wait.wait(PATIENCE)
    assert slept == [True]
    assert wait.is_woken == (name == "wakeup")


def test_records_that_come_between_a_look_and_the_wait_end_it(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        queue.poll()
        sleep = queue._wait.wait

        def late(*arguments: Any, **named: Any) -> None:
            if store.partition("t").end_offset == 4:
                append(store, 1)
            sleep(*arguments, **named)

        monkeypatch.setattr(queue._wait, "wait", late)
        assert offsets(queue.poll_flat(timeout_ms=LONG_MS)) == [4]


def test_a_wakeup_waits_for_a_poll_that_finds_nothing(store: segstore.Store) -> None:
    """It is not lost either: records come first."""
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        look = queue._look

        def woken(*arguments: Any) -> Any:
            queue.wakeup()
            return look(*arguments)

        queue._look = woken  # type: ignore[method-assign]
        assert len(queue.poll_flat()) == 4
        del queue._look  # type: ignore[method-assign]
        with pytest.raises(WakeupError):
            queue.poll(timeout_ms=LONG_MS)


def test_a_poll_that_waits_does_not_spin(store: segstore.Store, holder: ShareConsumer) -> None:
    with worker(store) as queue:
        until(lambda: queue.poll() == {} and queue._membership.partitions)
        queue.poll(timeout_ms=50)
        looks = []
        look = queue._look

        def counted(*arguments: Any) -> Any:
            looks.append(1)
            return look(*arguments)

        queue._look = counted  # type: ignore[method-assign]
        assert queue.poll(timeout_ms=300) == {}
        assert len(looks) <= 3


def test_a_closed_or_dropped_consumer_is_called_no_more(store: segstore.Store) -> None:
    waiters = shared(store, ShareCoordinator)._waiters
    with worker(store):
        assert len(waiters._by_group["g"]) == 1
    assert "g" not in waiters._by_group
    queue: ShareConsumer | None = worker(store)
    assert queue is not None
    until(lambda: "g" in waiters._by_group)
    queue = None
    import gc

    gc.collect()
    waiters.wake("g")
    assert "g" not in waiters._by_group
