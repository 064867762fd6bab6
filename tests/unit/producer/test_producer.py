"""The producer end to end: records that are sent can be read."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stores import START_MS, Clock, stored, values
from waiting import PATIENCE

import segstore
from segstore.client.producer import Producer
from segstore.coordinator.structs import TopicPartition
from segstore.records import CODECS

RECORDS: dict[str, dict[str, Any]] = {
    "a value": {"value": b"v"},
    "a key": {"value": b"v", "key": b"k"},
    "a null value": {"key": b"k"},
    "nothing at all": {},
    "empty is not null": {"value": b"", "key": b""},
    "headers": {"value": b"v", "headers": [("a", b"1"), ("a", None), ("ö", b"")]},
    "a timestamp": {"value": b"v", "timestamp_ms": 1_234},
    "no timestamp": {"value": b"v", "timestamp_ms": -1},
    "a bytearray": {"value": bytearray(b"v"), "key": memoryview(b"k")},
    "a large one": {"value": b"v" * 100_000},
}


@pytest.mark.parametrize("given", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize(
    "settings", [{}, {"linger_ms": 10, "compression_type": "lz4"}], ids=["now", "linger"]
)
def test_a_record_arrives_as_it_was_sent(store: segstore.Store, given: dict, settings: dict) -> None:
    before = time.time_ns() // 1_000_000
    with Producer(store, **settings) as producer:
        future = producer.send("t", **given)
        metadata = future.get(PATIENCE)
    (record,) = stored(store, "t")
    assert record.value == given.get("value")
    assert record.key == given.get("key")
    assert record.headers == given.get("headers", [])
    if "timestamp_ms" in given:
        assert record.timestamp == given["timestamp_ms"]
    else:
        assert before <= record.timestamp <= time.time_ns() // 1_000_000
    sizes = [len(given[name]) if name in given else -1 for name in ("key", "value")]
    headers = sum(len(n.encode()) + len(v or b"") for n, v in given.get("headers", [])) or -1
    expected = ("t", 0, TopicPartition("t", 0), 0, record.timestamp, None, *sizes, headers)
    assert metadata == expected
    assert future.is_done
    assert future.succeeded()
    assert not future.failed()
    assert future.value == metadata
    assert future.exception is None


def test_many_records_of_every_kind_keep_their_order(store: segstore.Store, rng: random.Random) -> None:
    sent = []
    with Producer(store, batch_size=1_000, buffer_memory=20_000, linger_ms=1) as producer:
        futures = []
        for i in range(5_000):
            key = b"k" if rng.random() < 0.1 else None
            headers = [("i", b"%d" % i)] if rng.random() < 0.1 else []
            value = b"%d" % i * rng.randrange(1, 60) if rng.random() < 0.95 else None
            stamp = START_MS + i if rng.random() < 0.1 else None
            futures.append(producer.send("t", value, key, headers, timestamp_ms=stamp))
            sent.append((value, key, headers))
    assert [(r.value, r.key, r.headers) for r in stored(store, "t")] == sent
    assert [future.get(0).offset for future in futures] == list(range(5_000))
    assert [future.get(0).timestamp for future in futures] == [r.timestamp for r in stored(store, "t")]


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_share_a_producer(store: segstore.Store, threads: int) -> None:
    found: list[list[Any]] = [[] for _ in range(threads)]
    with Producer(store, batch_size=500, buffer_memory=5_000) as producer:

        def send(mine: int) -> None:
            for i in range(2_000):
                found[mine].append((producer.send("t", b"%d %d" % (mine, i)), b"%d %d" % (mine, i)))

        running = [threading.Thread(target=send, args=(i,)) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    got = values(store.partition("t"))
    assert len(got) == threads * 2_000
    for mine in found:
        assert all(got[future.get(0).offset] == value for future, value in mine)
        offsets = [future.get(0).offset for future, _ in mine]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("acks", [0, 1, "all", -1])
def test_acks(store: segstore.Store, acks: Any) -> None:
    with Producer(store, acks=acks) as producer:
        offset = producer.send("t", b"x").get(PATIENCE).offset
    assert offset == (-1 if acks == 0 else 0)
    assert values(store.partition("t")) == [b"x"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("topic", ["producer", "zstd"])
def test_compression_is_the_topics_or_the_producers(store_dir: Path, codec: str, topic: str) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"compression.type": topic})
        with Producer(store, compression_type=codec, linger_ms=60_000) as producer:
            for i in range(100):
                producer.send("t", b"%d" % i * 10)
        found = store.partition("t").read(0)
        assert [CODECS[a & 7] for a in found.batches["attributes"]] == [
            codec if topic == "producer" else topic
        ]
        assert found.values == [b"%d" % i * 10 for i in range(100)]


def test_a_batch_of_the_producer_is_one_on_disk(store: segstore.Store) -> None:
    with Producer(store, batch_size=1_000, linger_ms=60_000, delivery_timeout_ms=60_000) as producer:
        for _ in range(100):
            producer.send("t", b"x" * 88)
    batches = store.partition("t").read(0).batches
    assert batches["count"].tolist() == [9] * 11 + [1]
    assert batches["size"].max() <= 1_000


def test_log_append_time_is_what_the_future_says(store_dir: Path) -> None:
    clock = Clock(step=1)
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        with Producer(store, linger_ms=60_000) as producer:
            futures = [producer.send("t", b"x", timestamp_ms=stamp) for stamp in (None, 5, None)]
            producer.flush()
            sent = producer.send("t", b"y")
            producer.flush()
            alone = sent.get(0)
        stamps = [record.timestamp for record in stored(store, "t")]
        assert [*(future.get(0).timestamp for future in futures), alone.timestamp] == stamps
        assert len(set(stamps)) == 2
        assert stamps[0] > START_MS


def test_the_stores_clock_stamps_records(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        with Producer(store) as producer:
            assert producer.send("t", b"x").get(PATIENCE).timestamp == START_MS
        assert [record.timestamp for record in stored(store, "t")] == [START_MS]
