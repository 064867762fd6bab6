"""Waits until a standby has caught up, and what is asked for on the way there: the wait ends by what happens,
not by a look at a clock, and not before the primary knows.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from compaction import end_in_gap
from mirrors import stored
from waiting import PATIENCE, until

import segstore
from segstore.replica_fetcher import running
from segstore.replica_fetcher.repeated_fetch import RepeatedFetch
from segstore.server.apis import Api
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
MIB = 1 << 20
SLOW = {"fetch.max.wait.ms": 20_000, "metadata.max.age.ms": 50}
"""The primary keeps a fetch that brings nothing for longer than a test waits."""


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is not woken lasts longer than a test waits."""
    monkeypatch.setattr(running, "_LOOK", 2.0 * PATIENCE)


def reached(broker: Broker) -> dict[tuple[str, int], int]:
    """How far the primary knows its standby to be."""
    return {key: found.offset for key, found in broker.store.engine.primary._reached.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("ends", [[0], [3], [0, 3, 500], [20_000]])
def test_the_primary_knows_when_the_wait_ends(
    tmp_path: Path, store_dir: Path, mode: str, ends: list[int]
) -> None:
    with Broker(tmp_path / "p", topics={"a": len(ends)}) as broker:
        for number, end in enumerate(ends):
            if end:
                broker.store.partition("a", number).append_batch([b"x" * 200] * end)
        # Empty partitions are told of by an answer that comes once the primary has waited.
        settings = SLOW | ({"fetch.max.wait.ms": 50} if 0 in ends else {})
        with segstore.follow(broker.bootstrap_servers, store_dir, mode=mode, config=settings) as standby:
            assert standby.wait_caught_up(LIMIT)
            assert reached(broker) == {("a", number): end for number, end in enumerate(ends)}
            assert standby.wait_caught_up(0), "a wait for what is known ends at once"
    assert segstore.check(store_dir) == []


def test_a_source_without_topics_is_caught_up_with(tmp_path: Path, store_dir: Path) -> None:
    with (
        Broker(tmp_path / "p") as broker,
        segstore.follow(broker.bootstrap_servers, store_dir, topics="none.*", config=SLOW) as standby,
    ):
        assert standby.wait_caught_up(LIMIT)


def asked(broker: Broker) -> list[int]:
    """The bytes that each fetch asked for of its only partition."""
    fetches = [each.fields for each in broker.requests if each.api == Api.FETCH]
    parts = [[part for topic in each["topics"] for part in topic["partitions"]] for each in fetches]
    return [found[0]["partition_max_bytes"] for found in parts if len(found) == 1]


@pytest.mark.parametrize(("given", "later"), [({}, 32 * MIB), ({"max.partition.fetch.bytes": 3000}, 3000)])
def test_answers_that_are_taken_while_they_come_are_long(
    tmp_path: Path, store_dir: Path, given: dict[str, Any], later: int
) -> None:
    """The first ones are received whole, so they are shorter."""
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append_batch([b"x" * 1000] * 6000, batch_bytes=10_000)
        with segstore.follow(broker.bootstrap_servers, store_dir, config=SLOW | given) as standby:
            assert standby.wait_caught_up(LIMIT)
        assert asked(broker)[:3] == [min(later, MIB)] * 2 + [later]
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)


def test_one_piece_is_appended_while_the_next_one_is_received(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread does that which ends with the connection; the last piece of an answer is not handed over."""
    takers: list[str] = []
    take = RepeatedFetch.take_piece

    def taking(self: RepeatedFetch, brought: Any) -> bool:
        takers.append(threading.current_thread().name)
        return take(self, brought)

    monkeypatch.setattr(RepeatedFetch, "take_piece", taking)
    rng = random.Random(3)
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        for _ in range(40):
            broker.store.partition("a").append_batch([rng.randbytes(500_000)])
        with segstore.follow(broker.bootstrap_servers, store_dir, config=SLOW) as standby:
            assert standby.wait_caught_up(LIMIT)
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)
    assert set(takers) == {"segstore-follow-append", "segstore-fetcher-1"}
    assert takers[-1] == "segstore-fetcher-1"
    until(lambda: "segstore-follow-append" not in {each.name for each in threading.enumerate()})
    assert segstore.check(store_dir) == []


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_r41_a_standby_reaches_a_primary_that_ends_behind_a_gap(
    tmp_path: Path, store_dir: Path, mode: str
) -> None:
    """It waited until something was appended."""
    end_in_gap(tmp_path / "p")
    with Broker(tmp_path / "p") as broker:
        quick = SLOW | {"fetch.max.wait.ms": 50}
        with segstore.follow(broker.bootstrap_servers, store_dir, mode=mode, config=quick) as standby:
            assert standby.wait_caught_up(LIMIT)
            until(lambda: reached(broker)["t", 0] == 60)
            assert broker.store.partition("t").append(b"and on", key=b"k") == 60
            until(lambda: reached(broker)["t", 0] == 61)
        assert stored(store_dir, "t", 0) == stored(tmp_path / "p", "t", 0)
    assert segstore.check(store_dir) == []
