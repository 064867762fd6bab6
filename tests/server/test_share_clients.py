"""Promise: share consumers of librdkafka and franz-go get, acknowledge and give back records; raw clients
show what happens to records whose connection breaks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import built_programs as built
import pytest
from share_wire import ShareWire
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared

confluent_kafka = pytest.importorskip("confluent_kafka", reason="librdkafka's share consumer")
needs_share_consumer = pytest.mark.skipif(
    not hasattr(confluent_kafka, "ShareConsumer"), reason="this confluent-kafka has no share consumer"
)
GROUP, TOPIC = "g", "t"
ALL = list(range(10))
LONG = int(PATIENCE * 1000)


@pytest.fixture
def topic(store: segstore.Store) -> None:
    """Ten records of which a share group gets all."""
    store.create_topic(TOPIC)
    store.partition(TOPIC, 0).append_batch([b"r%d" % n for n in ALL])
    group_settings(store).alter(GROUP, {"share.auto.offset.reset": "earliest"})


def start_of(store: segstore.Store) -> tuple[int, int]:
    """Return the durable start offset and the lag of the group."""
    key = ShareKey(GROUP, store.topics()[TOPIC].topic_id, 0)
    start, _, lag = shared(store, ShareCoordinator).offsets(GROUP, [key])[key]
    return start, lag


# --- librdkafka --------------------------------------------------------------------------------


class Confluent:
    """A share consumer, and what its callback was told."""

    def __init__(self, server: segstore.Server, mode: str = "explicit") -> None:
        settings = {"bootstrap.servers": server.bootstrap_servers, "group.id": GROUP}
        self.consumer = confluent_kafka.ShareConsumer({**settings, "share.acknowledgement.mode": mode})
        self.told: list[tuple[set[int], Any]] = []
        self.consumer.set_acknowledgement_commit_callback(self._take)
        self.consumer.subscribe([TOPIC])

    def _take(self, offsets: Any, error: Any) -> None:
        self.told += [(set(some), error) for some in offsets.values()]

    def poll(self, count: int) -> list[Any]:
        """Return so many messages."""
        found: list[Any] = []

        def enough() -> bool:
            found.extend(self.consumer.poll(0.2))
            return len(found) >= count

        until(enough)
        assert [each.error() for each in found] == [None] * count
        return found

    def accept(self, messages: Sequence[Any]) -> None:
        for each in messages:
            self.consumer.acknowledge(each)

    def commit(self) -> list[Any]:
        return list(self.consumer.commit_sync(PATIENCE).values())


def seen(messages: list[Any]) -> list[tuple[int, int]]:
    return [(each.offset(), each.delivery_count()) for each in messages]


@needs_share_consumer
def test_librdkafka_acknowledges_explicitly(
    server: segstore.Server, store: segstore.Store, topic: None
) -> None:
    types = confluent_kafka.AcknowledgeType
    mine = Confluent(server)
    first = mine.poll(10)
    assert seen(first) == [(offset, 1) for offset in ALL]
    assert [each.value() for each in first] == [b"r%d" % offset for offset in ALL]
    for each in first:
        kind = types.ACCEPT if each.offset() < 3 else types.RELEASE if each.offset() < 6 else types.REJECT
        mine.consumer.acknowledge(each, kind)
    assert mine.commit() == [None]
    again = mine.poll(3)
    assert seen(again) == [(3, 2), (4, 2), (5, 2)]
    for each in again:
        mine.consumer.acknowledge(each)
    mine.consumer.close()
    assert mine.told == [(set(ALL), None), ({3, 4, 5}, None)]
    assert start_of(store)[1] == 0


@needs_share_consumer
def test_librdkafka_acknowledges_by_its_next_poll(
    server: segstore.Server, store: segstore.Store, topic: None
) -> None:
    """Its end gives the records of the last poll back."""
    mine = Confluent(server, "implicit")
    assert seen(mine.poll(10)) == [(offset, 1) for offset in ALL]
    store.partition(TOPIC, 0).append(b"last")
    assert seen(mine.poll(1)) == [(10, 1)]
    mine.consumer.close()
    other = Confluent(server)
    last = other.poll(1)
    assert seen(last) == [(10, 2)]
    other.accept(last)
    other.consumer.close()
    assert start_of(store)[1] == 0


@needs_share_consumer
def test_members_of_librdkafka_share_a_partition(
    server: segstore.Server, store: segstore.Store, topic: None
) -> None:
    """Records of one member that closes without a word are the other one's."""
    one, other = Confluent(server), Confluent(server)
    held = one.poll(10)
    store.partition(TOPIC, 0).append_batch([b"x"] * 5)
    theirs = other.poll(5)
    assert seen(theirs) == [(offset, 1) for offset in range(10, 15)]
    other.accept(theirs)
    one.accept(held[:4])
    one.consumer.close()
    rest = other.poll(6)
    assert seen(rest) == [(offset, 2) for offset in range(4, 10)]
    other.accept(rest)
    other.consumer.close()
    assert start_of(store)[1] == 0


# --- franz-go ----------------------------------------------------------------------------------


@pytest.mark.skipif(bool(built.missing("go")), reason=str(built.missing("go")))
def test_franz_go(server: segstore.Server, store: segstore.Store, topic: None) -> None:
    told = built.go_lines("franz_go_share", server.bootstrap_servers, GROUP, TOPIC)
    first = " ".join(f"{offset}/1" for offset in ALL)
    assert told == [f"first {first}", "released 3/2 4/2 5/2", "closed"]
    assert start_of(store)[1] == 0


# --- raw clients -------------------------------------------------------------------------------


def test_q93_a_connection_that_breaks_frees_its_records(
    server: segstore.Server, store: segstore.Store, topic: None
) -> None:
    with ShareWire(server, "a") as one, ShareWire(server, "b") as other:
        assert one.beat().error_code == 0
        assert one.fetch() == [(0, 9, 1)]
        assert other.fetch() == []
        one.close()
        assert other.fetch(max_wait_ms=LONG) == [(0, 9, 2)]


def test_q93_records_that_come_for_a_broken_connection_are_nobody_s(
    server: segstore.Server, store: segstore.Store
) -> None:
    store.create_topic(TOPIC)
    group_settings(store).alter(GROUP, {"share.auto.offset.reset": "earliest"})
    with ShareWire(server, "a") as one, ShareWire(server, "b") as other:
        one.beat()
        one.send_fetch(max_wait_ms=LONG)
        assert other.fetch() == []  # the other fetch waits by now, or sees that its client has gone
        one.close()
        assert other.fetch() == []
        store.partition(TOPIC, 0).append(b"x")
        assert other.fetch(max_wait_ms=LONG) == [(0, 0, 1)]


def test_many_members_of_one_partition_miss_nothing(server: segstore.Server, store: segstore.Store) -> None:
    """All wait; each record is acquired by one of them, once."""
    store.create_topic(TOPIC)
    group_settings(store).alter(GROUP, {"share.auto.offset.reset": "earliest"})
    members = [ShareWire(server, f"m{n}") for n in range(8)]
    members[0].beat()
    found: list[tuple[int, int, int]] = []
    for number in range(40):
        for each in members:
            each.send_fetch(max_wait_ms=200)
        store.partition(TOPIC, 0).append_batch([b"x"] * (1 + number % 3))
        for each in members:
            got = each.take()
            found += got
            each.accept(got)
    for each in members:
        each.close()
    offsets = sorted(offset for first, last, _ in found for offset in range(first, last + 1))
    end = store.partition(TOPIC, 0).high_watermark
    assert offsets == list(range(offsets[-1] + 1))
    assert {count for *_, count in found} == {1}
    assert offsets[-1] + 1 >= end - 3, json.dumps(found)
