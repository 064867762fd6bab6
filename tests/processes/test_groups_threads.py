"""Groups after a kill and an open, in threads, in asyncio, and when nothing happens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill
from groups import (
    HEARTBEAT_MS,
    KINDS,
    SESSION_MS,
    Monotonic,
    coordinator,
    every,
    is_empty,
    member,
    offsets,
    settled,
    take_turns,
)
from stores import in_child
from waiting import PATIENCE, until

import segstore
from segstore.client.aio import AsyncConsumer
from segstore.client.consumer import Consumer
from segstore.coordinator.group.classic.member import ClassicGroupState

# --- again, and elsewhere ----------------------------------------------------------------------


@pytest.mark.kind("kills")
def test_killed_between_append_and_commit(store_dir: Path) -> None:
    def run(tell: Any) -> None:
        with segstore.open(store_dir) as store:
            fill(store, records=8)
            consumer = member(store, "t", enable_auto_commit=False, max_poll_records=4)
            settled(store, [consumer])
            consumer.commit()
            read = [r.offset for records in consumer.poll().values() for r in records]
            tell(f"{read} {consumer.group_metadata().generation_id}")
            append(store, 4)
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)

    signal_, lines = in_child(run)
    assert (signal_, lines) == (9, ["[4, 5, 6, 7] 1"])
    with segstore.open(store_dir) as store, member(store, "t") as consumer:
        assert [r.offset for r in settled(store, [consumer]) + take_turns([consumer])] == list(range(4, 12))
        assert consumer.group_metadata().generation_id == 2


def test_reopened(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        fill(store, partitions=2)
        static, other = member(store, "t", group_instance_id="x"), member(store, "t", group_instance_id="y")
        settled(store, [static, other])
        had, generation = static.assignment(), static.group_metadata().generation_id
    with segstore.open(store_dir) as store:
        static = member(store, "t", group_instance_id="x")
        take_turns([static], 1)
        assert static.assignment() == had
        assert static.group_metadata().generation_id == generation
        clock = Monotonic()
        clock.now = time.monotonic() * 1000 + SESSION_MS - HEARTBEAT_MS
        coordinator(store, clock).run_due()
        clock.now += 2 * HEARTBEAT_MS
        coordinator(store).run_due()
        settled(store, [static])
        assert static.assignment() == every(store, "t")
    static.close()


def test_a_closed_store_ends_its_groups(store: segstore.Store) -> None:
    fill(store)
    consumer = member(store, "t", enable_auto_commit=False)
    settled(store, [consumer])
    store.close()
    with pytest.raises(segstore.StoreClosedError):
        consumer.poll()


# --- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_while_members_come_and_go(store: segstore.Store, kind: str) -> None:
    fill(store, partitions=4, records=200)
    seen, failed, stop = set(), [], threading.Event()

    def work(rounds: int) -> None:
        try:
            with member(store, "t", auto_commit_interval_ms=0, **KINDS[kind]) as consumer:
                while rounds and not stop.is_set():
                    for records in consumer.poll(timeout_ms=20, max_records=7).values():
                        seen.update((r.partition, r.offset) for r in records)
                    rounds -= 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10_000, 10_000, 5, 10, 20)]
    [thread.start() for thread in threads]
    until(lambda: len(seen) == 800 or failed)
    stop.set()
    [thread.join() for thread in threads]
    assert not failed
    assert is_empty(store)
    assert {each: at.offset for each, at in offsets(store).fetch("g").items()} == dict.fromkeys(
        every(store, "t"), 200
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_stable_group_leaves_its_coordinator_alone(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fill(store, partitions=2)
    settings = {"auto_commit_interval_ms": 3_600_000, **KINDS[kind]}
    members = [member(store, "t", **settings) for _ in range(2)]
    settled(store, members)
    take_turns(members, 2)
    found = coordinator(store)
    asked: list[str] = []
    for name in ("join", "sync", "heartbeat", "leave", "commit", "consumer_heartbeat"):
        monkeypatch.setattr(found, name, lambda *_, name=name: asked.append(name))
    nudges: list[int] = []
    monkeypatch.setattr(store, "nudge", lambda: nudges.append(1))
    looks: list[int] = []
    poll = members[0]._coordination.poll
    monkeypatch.setattr(members[0]._coordination, "poll", lambda: [looks.append(1), poll()])
    members[0].poll(timeout_ms=100)
    take_turns(members, 1000)
    assert (asked, nudges) == ([], [])
    assert len(looks) <= 1000 + 10
    monkeypatch.undo()


def test_a_waiting_member_is_woken(store: segstore.Store) -> None:
    fill(store, partitions=2, records=4)
    first, second = member(store, "t", max_poll_records=1), member(store, "t")
    settled(store, [first])
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(second.poll(timeout_ms=PATIENCE * 1000)))
    thread.start()
    until(lambda: coordinator(store).state("g") is ClassicGroupState.PREPARING_REBALANCE)
    until(lambda: take_turns([first], 1) == [] and bool(second._subscription.states) and got)
    thread.join()
    assert got[0]


def test_asyncio(store: segstore.Store) -> None:
    fill(store, partitions=2, records=10)

    async def read(consumer: AsyncConsumer, seen: set[Any], done: Callable[[], Awaitable[bool]]) -> None:
        end = time.monotonic() + PATIENCE
        while not await done():
            assert time.monotonic() < end
            async for record in consumer:
                seen.add((record.partition, record.offset))

    async def main() -> None:
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "consumer_timeout_ms": 50}
        one, two = (AsyncConsumer(store, "t", **settings) for _ in range(2))
        seen: set[Any] = set()

        async def shared() -> bool:
            return len(seen) == 20 and len(one.assignment()) == len(two.assignment()) == 1

        await asyncio.gather(read(one, seen, shared), read(two, seen, shared))
        assert seen == {(p, o) for p in range(2) for o in range(10)}
        assert one.assignment() | two.assignment() == every(store, "t")
        await one.commit()
        await asyncio.gather(one.close(), two.close())

    asyncio.run(main())
    assert {at.offset for at in offsets(store).fetch("g").values()} == {10}


def test_metrics_have_kafkas_names(store: segstore.Store) -> None:
    fill(store)
    consumer: Consumer = member(store, "t")
    settled(store, [consumer])
    measured = consumer.metrics()["consumer-coordinator-metrics"]
    assert measured["assigned-partitions"] == 1
    assert (measured["join-total"], measured["sync-total"], measured["rebalance-total"]) == (1, 1, 1)
    assert measured["failed-rebalance-total"] == 0
    assert measured["last-rebalance-seconds-ago"] >= 0
    assert member(store, metrics_enabled=False).metrics() == {}
