"""The producer end to end: where records go, what the futures say, bad input, closing, forks."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import START_MS, Clock, in_child, records, values

import segstore
from segstore import errors
from segstore.client.producer import FutureRecordMetadata, Producer
from segstore.client.structs import TopicPartition
from segstore.records import CODECS

LONG = 20  # seconds: never waited for in full


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.create_topic("four", partitions=4)
        yield store


def stored(store: segstore.Store, topic: str) -> list[segstore.Record]:
    """All records of a topic, partition by partition."""
    return [r for p in store.topics()[topic].partition_ids for r in records(store.partition(topic, p))]


# --- what goes in comes out -----------------------------------------------------------------

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
        metadata = future.get(LONG)
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
        offset = producer.send("t", b"x").get(LONG).offset
    assert offset == (-1 if acks == 0 else 0)
    assert values(store.partition("t")) == [b"x"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("topic", ["producer", "zstd"])
def test_compression_is_the_topics_or_the_producers(store_dir: Path, codec: str, topic: str) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"compression.type": topic})
        with Producer(store, compression_type=codec, linger_ms=1000) as producer:
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
        with Producer(store, linger_ms=1000) as producer:
            futures = [producer.send("t", b"x", timestamp_ms=stamp) for stamp in (None, 5, None)]
            producer.flush()
            alone = producer.send("t", b"y").get(LONG)
        stamps = [record.timestamp for record in stored(store, "t")]
        assert [*(future.get(0).timestamp for future in futures), alone.timestamp] == stamps
        assert len(set(stamps)) == 2
        assert stamps[0] > START_MS


def test_the_stores_clock_stamps_records(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        with Producer(store) as producer:
            assert producer.send("t", b"x").get(LONG).timestamp == START_MS
        assert [record.timestamp for record in stored(store, "t")] == [START_MS]


# --- futures and callbacks --------------------------------------------------------------------


def test_callbacks_run_whenever_they_are_added(store: segstore.Store) -> None:
    told: list[Any] = []
    with Producer(store, linger_ms=50) as producer:
        future = producer.send("t", b"x")
        future.add_callback(told.append).add_errback(told.append)
        future.add_callback(lambda *args, **kwargs: told.append((args, kwargs)), 1, two=2)
        future.add_both(told.append)
        assert not future.is_done
        assert future.value is None
        metadata = future.get(LONG)
        producer.flush()
        future.add_callback(told.append)
    assert told == [metadata, ((1, metadata), {"two": 2}), metadata, metadata]


def test_a_callback_that_fails_harms_nobody(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    with Producer(store, linger_ms=50) as producer:
        future = producer.send("t", b"x")
        future.add_callback(lambda metadata: 1 / 0).add_callback(told.append)
        producer.send("t", b"y").add_callback(told.append)
    assert [metadata.offset for metadata in told] == [0, 1]
    assert "callback" in caplog.text


def test_a_callback_may_send(store: segstore.Store) -> None:
    with Producer(store) as producer:
        again: list[Any] = []
        producer.send("t", b"x").add_callback(lambda _: again.append(producer.send("t", b"y"))).get(LONG)
        while not again:
            time.sleep(0.001)
        assert again[0].get(LONG).offset == 1


def test_flush_in_a_callback_is_refused(store: segstore.Store) -> None:
    caught: list[BaseException] = []

    def flush(_: Any) -> None:
        try:
            producer.flush()
        except errors.InvalidArgumentError as error:
            caught.append(error)

    with Producer(store, linger_ms=50) as producer:
        producer.send("t", b"x").add_callback(flush)
    assert len(caught) == 1


def test_get_gives_up_after_its_time(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(errors.KafkaTimeoutError):
            future.get(0.01)
        assert isinstance(errors.KafkaTimeoutError(), TimeoutError)


def test_many_threads_wait_for_one_record(store: segstore.Store) -> None:
    got: list[int] = []
    with Producer(store, linger_ms=50) as producer:
        future = producer.send("t", b"x")
        waiting = [threading.Thread(target=lambda: got.append(future.get(LONG).offset)) for _ in range(8)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
    assert got == [0] * 8


def test_flush_returns_when_all_is_done(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000, batch_size=200) as producer:
        for _ in range(3):
            futures = [producer.send("four", b"x" * 30) for _ in range(100)]
            producer.flush()
            assert all(future.is_done for future in futures)
    assert len(stored(store, "four")) == 300


def test_linger_gathers_and_then_sends(store: segstore.Store) -> None:
    with Producer(store, linger_ms=100) as producer:
        futures = [producer.send("t", b"x") for _ in range(10)]
        assert not futures[0].is_done
        futures[-1].get(LONG)
        assert store.partition("t").read(0).batches["count"].tolist() == [10]


# --- bad input ------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "a str": ({}, {"value": "x"}, errors.SerializationError, "value is str.*value_serializer"),
    "a str for a key": ({}, {"key": "x"}, errors.SerializationError, "key is str"),
    "an int": ({}, {"value": 5}, errors.SerializationError, "value is int"),
    "a serializer that fails": (
        {"value_serializer": lambda value: value and value.encode()},
        {"value": 5},
        errors.SerializationError,
        "5 can't be serialized",
    ),
    "a serializer that gives a str": (
        {"key_serializer": lambda key: key and str(key)},
        {"key": 5},
        errors.SerializationError,
        "key is str",
    ),
    "headers that are no list": ({}, {"headers": {"a": b"b"}}, errors.InvalidTypeError, "headers is dict"),
    "a header that is no pair": ({}, {"headers": [("a",)]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's name in bytes": ({}, {"headers": [(b"a", b"b")]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's value in str": (
        {},
        {"headers": [("a", b"b"), ("a", "b")]},
        errors.InvalidTypeError,
        r"headers\[1\]",
    ),
    "too large": (
        {"max_request_size": 1000},
        {"value": b"x" * 1000},
        errors.RecordTooLargeError,
        "1,082 bytes.*max_request_size=1,000",
    ),
    "larger than the memory": (
        {"buffer_memory": 500},
        {"value": b"x" * 600},
        errors.RecordTooLargeError,
        "buffer_memory=500",
    ),
    "an unknown topic": ({}, {"topic": "u"}, errors.UnknownTopicOrPartitionError, "u"),
    "a topic that is no str": ({}, {"topic": 5}, errors.InvalidTypeError, "topic must be a str"),
    "a topic that can't be hashed": ({}, {"topic": []}, errors.InvalidTypeError, "topic must be a str"),
    "an unknown partition": ({}, {"partition": 1}, errors.UnknownTopicOrPartitionError, r"1.*\[0\]"),
    "a negative partition": ({}, {"partition": -1}, errors.UnknownTopicOrPartitionError, "-1"),
    "a partition that is no int": (
        {},
        {"partition": "0"},
        errors.InvalidTypeError,
        "partition must be an int",
    ),
    "a timestamp that is no int": ({}, {"timestamp_ms": 1.5}, errors.InvalidTypeError, "timestamp_ms"),
    "a timestamp below -1": ({}, {"timestamp_ms": -2}, errors.InvalidArgumentError, "timestamp_ms=-2"),
    "a partitioner that fails": (
        {"partitioner": lambda key, all_, available: 1 // 0},
        {},
        ZeroDivisionError,
        "zero",
    ),
    "a partitioner that finds none": (
        {"partitioner": lambda key, all_, available: 7},
        {},
        errors.UnknownTopicOrPartitionError,
        "7",
    ),
}


@pytest.mark.parametrize(("settings", "given", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input_is_named_and_the_producer_goes_on(
    store: segstore.Store, settings: dict, given: dict, error: type[Exception], match: str
) -> None:
    with Producer(store, **settings) as producer:
        with pytest.raises(error, match=match):
            producer.send(**{"topic": "t", "value": None, **given})
        assert producer.send("t", None, partition=0).get(LONG).offset == 0
        producer.flush()
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == (
            settings.get("buffer_memory", 32 << 20)
        )


# Refused when they are appended: the future tells, and the others of the batch go their way.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception]]] = {
    "larger than max.message.bytes": (
        {"max.message.bytes": 500},
        {"value": os.urandom(600)},
        errors.RecordTooLargeError,
    ),
    "from the future": ({}, {"value": b"x", "timestamp_ms": 2**60}, errors.InvalidArgumentError),
}


@pytest.mark.parametrize(("config", "given", "error"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("around", [0, 3])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_refused_record_takes_no_other_with_it(
    store: segstore.Store, config: dict, given: dict, error: type[Exception], around: int, compression: Any
) -> None:
    store.alter_topic("t", config)
    told: list[BaseException] = []
    with Producer(store, linger_ms=60_000, compression_type=compression) as producer:
        before = [producer.send("t", b"%d" % i) for i in range(around)]
        bad = producer.send("t", **given).add_errback(told.append)
        after = [producer.send("t", b"%d" % i, timestamp_ms=i) for i in range(around)]
        producer.flush()
        with pytest.raises(error) as caught:
            bad.get(0)
        assert told == [caught.value]
        assert bad.failed()
        assert bad.value is None
        assert [future.get(0).offset for future in before + after] == list(range(2 * around))
        assert [future.get(0).timestamp for future in after] == list(range(around))
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 1
    assert values(store.partition("t")) == [b"%d" % i for i in range(around)] * 2


def test_a_topic_that_is_deleted_and_made_anew(store: segstore.Store) -> None:
    with Producer(store) as producer:
        producer.send("four", b"x", partition=3).get(LONG)
        store.delete_topic("four")
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.StoreClosedError)):
            producer.send("four", b"x", partition=3).get(LONG)
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            producer.send("four", b"x")
        store.create_topic("four", partitions=1)
        assert producer.send("four", b"y").get(LONG).offset == 0
        store.add_partitions("four", 2)
        assert producer.send("four", b"z", partition=1).get(LONG)[1:4:2] == (1, 0)
        assert producer.partitions_for("four") == {0, 1}


# --- the end ----------------------------------------------------------------------------------


def test_a_closed_producer_refuses(store: segstore.Store) -> None:
    producer = Producer(store)
    producer.send("t", b"x")
    producer.close()
    producer.close()
    for use in (lambda: producer.send("t", b"x"), lambda: producer.partitions_for("t")):
        with pytest.raises(errors.ClientClosedError, match="closed"):
            use()
    producer.flush()
    assert values(store.partition("t")) == [b"x"]


def test_close_sends_what_lingers(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
    assert future.get(0).offset == 0


def test_a_send_that_close_overtakes_fails(store: segstore.Store) -> None:
    producer = Producer(store)
    producer.send("t", b"x").get(LONG)
    queue = producer._accumulator.queue(TopicPartition("t", 0))
    # As `send` does when its thread stood still between looking `queue` up and appending.
    future = FutureRecordMetadata()
    future._holder, future._at, future._time = queue, b"late", time.time()
    producer.close()
    queue.append(future)
    producer._accumulator.late(queue)
    with pytest.raises(errors.ClientClosedError):
        future.get(0)
    assert values(store.partition("t")) == [b"x"]


def test_close_in_a_callback(store: segstore.Store) -> None:
    producer = Producer(store, linger_ms=20)
    producer.send("t", b"x").add_callback(lambda _: producer.close())
    producer._sender.join(LONG)
    assert not producer._sender.is_alive()


def test_close_gives_up_after_its_time(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, OSError(28, "No space left on device"), 0, 1 << 30)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        producer = Producer(store)
        files.arm(1, 1 << 30)
        future = producer.send("t", b"x")
        producer.close(timeout=0.05)
        with pytest.raises(errors.ClientClosedError):
            future.get(LONG)
        producer._sender.join(LONG)
        assert not producer._sender.is_alive()
        files.arm(0)
        assert values(store.partition("t")) == []


def test_a_producer_that_is_dropped_sends_what_it_has(store: segstore.Store) -> None:
    producer = Producer(store, linger_ms=60_000)
    sender, future = producer._sender, producer.send("t", b"x")
    del producer
    gc.collect()
    sender.join(LONG)
    assert not sender.is_alive()
    assert future.get(0).offset == 0


def test_a_store_that_is_closed_first(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    producer = Producer(store, linger_ms=60_000)
    future = producer.send("t", b"x")
    store.close()
    producer.close()
    with pytest.raises(errors.StoreClosedError):
        future.get(0)


@pytest.mark.parametrize("mode", ["r", "closed", "no store"])
def test_stores_that_nothing_can_be_sent_to(store_dir: Path, mode: str) -> None:
    segstore.open(store_dir).close()
    store: Any = segstore.open(store_dir, mode="r") if mode == "r" else segstore.open(store_dir)
    error: type[Exception] = errors.ReadOnlyError
    if mode != "r":
        store.close()
        error = errors.StoreClosedError
    if mode == "no store":
        store, error = str(store_dir), errors.InvalidTypeError
    with pytest.raises(error):
        Producer(store)
    if mode == "r":
        store.close()


def test_a_forked_child_is_refused(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"parent")

        def child(tell: Any) -> None:
            for use in (
                lambda: producer.send("t", b"child"),
                lambda: future.get(LONG),
                lambda: producer.flush(),
            ):
                try:
                    use()
                except errors.ForkedError:
                    tell("refused")
            producer.close()

        assert in_child(child) == (0, ["refused"] * 3)
    assert values(store.partition("t")) == [b"parent"]
