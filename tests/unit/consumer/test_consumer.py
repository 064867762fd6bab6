"""`Consumer` without a group: kafka-python's names, records, iteration, closing, threads."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import kafka
import pytest
from consumers import LONG_MS, append, drain, earliest, fill, offsets, tp
from kafka.consumer.fetcher import ConsumerRecord as KafkaRecord
from partitions import broker_partitions
from waiting import PATIENCE, until

import segstore
from segstore.client.consumer import Consumer, ConsumerRebalanceListener, ConsumerRecord
from segstore.client.consumer.config import ConsumerConfig
from segstore.coordinator.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from segstore.errors import (
    ClientClosedError,
    ConcurrentModificationError,
    InvalidTopicError,
    StoreClosedError,
)

# --- kafka-python's names --------------------------------------------------------------------

NOT_OURS = {"bootstrap", "DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735"}
NAMES = sorted(n for n in vars(kafka.KafkaConsumer) if not n.startswith("_") and n != "DEFAULT_CONFIG")


@pytest.mark.parametrize("name", NAMES)
def test_has_kafka_pythons_methods_and_arguments(name: str) -> None:
    if name in NOT_OURS:
        assert not hasattr(Consumer, name)
        return
    theirs, ours = (
        [p for p in inspect.signature(getattr(of, name)).parameters if p != "raw"]
        for of in (kafka.KafkaConsumer, Consumer)
    )
    assert [p for p in ours if p in theirs] == [p for p in theirs if p in ours]
    if name != "position":
        assert set(theirs) <= set(ours)


def test_a_program_takes_from_its_settings_those_that_are_known(store: segstore.Store) -> None:
    theirs = {"bootstrap_servers": "kafka:9092", "api_version": (2, 8), "max_poll_records": 7}
    settings = {
        **Consumer.DEFAULT_CONFIG,
        **{n: v for n, v in theirs.items() if n in Consumer.DEFAULT_CONFIG},
    }
    with Consumer(store, **settings) as consumer:
        assert consumer.config == ConsumerConfig(max_poll_records=7)
    ours = {"interceptors", "group_protocol", "group_remote_assignor"}
    assert set(Consumer.DEFAULT_CONFIG) - set(kafka.KafkaConsumer.DEFAULT_CONFIG) == ours


def test_it_is_connected_while_it_and_its_store_are_open(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        closed, left = Consumer(store), Consumer(store)
        assert closed.bootstrap_connected()
        closed.close()
        assert (closed.bootstrap_connected(), left.bootstrap_connected()) == (False, True)
    assert not left.bootstrap_connected()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ConsumerRecord, KafkaRecord),
        (TopicPartition, kafka.structs.TopicPartition),
        (OffsetAndMetadata, kafka.structs.OffsetAndMetadata),
        (OffsetAndTimestamp, kafka.structs.OffsetAndTimestamp),
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
def test_tuples_have_kafka_pythons_fields(ours: Any, theirs: Any) -> None:
    assert ours._fields == theirs._fields


def test_kafka_pythons_topic_partition_will_do(store: segstore.Store) -> None:
    fill(store)
    theirs = kafka.TopicPartition("t", 0)
    with earliest(store) as consumer:
        consumer.assign([theirs])
        assert consumer.assignment() == {theirs} == {tp()}
        consumer.seek(theirs, 9)
        assert offsets(consumer.poll()[theirs]) == [9]


# --- records ---------------------------------------------------------------------------------


def test_a_record_has_all_that_was_appended(store: segstore.Store) -> None:
    store.create_topic("t")
    log = store.partition("t")
    log.append(b"value", key="kß".encode(), headers=[("h", b"xy"), ("ü", None), ("h", b"")], timestamp=123)
    log.append(None)
    log.append(b"", key=b"")
    with earliest(store, "t") as consumer:
        (records,) = consumer.poll().values()
    first, null, empty = records
    assert first == ConsumerRecord(
        "t", 0, 0, 0, 123, 0, "kß".encode(), b"value", [("h", b"xy"), ("ü", None), ("h", b"")], None, 3, 5, 6
    )
    assert (null.key, null.value, null.headers) == (None, None, [])
    assert (null.serialized_key_size, null.serialized_value_size, null.serialized_header_size) == (-1, -1, -1)
    assert (empty.key, empty.value, empty.serialized_key_size, empty.serialized_value_size) == (
        b"",
        b"",
        0,
        0,
    )


def test_a_time_of_append_says_so(store: segstore.Store) -> None:
    fill(store, records=1, **{"message.timestamp.type": "LogAppendTime"})
    with earliest(store, "t") as consumer:
        assert [record.timestamp_type for record in drain(consumer)] == [1]


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("source", [s for s in broker_partitions() if s.form == "clean"], ids=lambda s: s.id)
@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_a_brokers_directory_is_read_as_its_consumer_did(source: Any, how: str) -> None:
    topic, _, number = source.path.name.rpartition("-")
    partition = TopicPartition(topic, int(number))
    with segstore.open(source.path.parent, mode="r") as store:
        consumer = earliest(store, max_poll_records=300, consumer_timeout_ms=0)
        consumer.assign([partition])
        got = list(consumer) if how == "iterate" else drain(consumer)
    expected = source.expected()
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.offset, ours.timestamp, ours.key, ours.value) == (
            theirs.offset, theirs.timestamp, theirs.key, theirs.value,
        )  # fmt: skip
        assert (ours.headers, ours.leader_epoch) == (theirs.headers, theirs.leader_epoch)
        assert ours.timestamp_type == (theirs.timestamp_type == "LogAppendTime")


def test_read_committed_leaves_out_what_was_aborted(golden: Path) -> None:
    """The third and fourth of six transactions were; no marker is ever seen."""
    with segstore.open(golden / "clean", mode="r") as store:
        log = store.partition("flights-txn", 0)
        counts = {}
        for level in ("read_uncommitted", "read_committed"):
            consumer = earliest(store, "flights-txn", isolation_level=level, max_poll_records=70)
            got = drain(consumer)
            partition = tp(0, "flights-txn")
            assert consumer.position(partition) == consumer.end_offsets([partition])[partition]
            counts[level] = len(got)
            at, engine = log.start_offset, []
            while at < log.end_offset:
                records = log.read(at, isolation_level=level)
                engine += records.offsets.tolist()
                at = records.next_offset
            assert offsets(got) == engine
            consumer.close()
    assert 0 < counts["read_committed"] < counts["read_uncommitted"]


# --- iteration -------------------------------------------------------------------------------


def test_an_iteration_moves_the_position_record_by_record(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t", consumer_timeout_ms=0)
    for record in consumer:
        assert consumer.position(tp()) == record.offset + 1
        if record.offset == 4:
            break
    assert offsets(consumer.poll()[tp()]) == [5, 6, 7, 8, 9]
    assert list(consumer) == []


@pytest.mark.parametrize("change", ["seek", "seek_to_beginning", "pause", "unsubscribe", "close"])
def test_an_iteration_follows_what_is_done_between_two_records(store: segstore.Store, change: str) -> None:
    fill(store)
    consumer = earliest(store, "t", consumer_timeout_ms=0)
    assert next(consumer).offset == 0
    if change == "seek":
        consumer.seek(tp(), 7)
    elif change == "close":
        consumer.close()
    elif change == "pause":
        consumer.pause(tp())
    else:
        getattr(consumer, change)()
    rest = offsets(list(consumer))
    assert rest == {"seek": [7, 8, 9], "seek_to_beginning": list(range(10))}.get(change, [])
    if change == "pause":
        consumer.resume(tp())
        assert offsets(list(consumer)) == list(range(1, 10))


def test_an_iteration_ends_when_nothing_comes(store: segstore.Store) -> None:
    fill(store, records=0)
    consumer = earliest(store, "t", consumer_timeout_ms=20)
    with pytest.raises(StopIteration):
        next(consumer)
    append(store, 1)
    assert next(consumer).value == b"0-0"


# --- closing, threads ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        "poll",
        "poll_arrow",
        "assignment",
        "subscription",
        "topics",
        "unsubscribe",
        "paused",
        "metrics",
        "commit",
    ],
)
def test_a_closed_consumer_refuses(store: segstore.Store, method: str) -> None:
    fill(store)
    with earliest(store, "t") as consumer:
        pass
    consumer.close()
    with pytest.raises(ClientClosedError):
        getattr(consumer, method)()
    assert list(consumer) == []
    store.partition("t").append(b"the store is open")


def test_a_closed_store_says_so(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    fill(store)
    consumer = earliest(store, "t")
    consumer.poll(max_records=1)
    store.close()
    for look in (consumer.poll, consumer.poll_arrow, lambda: next(consumer), consumer.topics):
        with pytest.raises(StoreClosedError):
            look()
    consumer.close()


def test_a_second_thread_is_told(store: segstore.Store) -> None:
    fill(store, records=0)
    consumer = earliest(store, "t")
    polled: list[Any] = []
    thread = threading.Thread(target=lambda: polled.append(consumer.poll(LONG_MS)))
    thread.start()
    # Not by a call: that would be what the thread itself meets.
    until(lambda: consumer._guard._user == thread.ident)
    for call in (consumer.assignment, lambda: next(consumer), consumer.close, lambda: consumer.poll(0)):
        with pytest.raises(ConcurrentModificationError, match=f"thread {thread.ident} uses it"):
            call()
    append(store, 1)
    thread.join(PATIENCE)
    assert [len(records) for records in polled[0].values()] == [1]
    consumer.close()


def test_a_listener_may_use_its_consumer(store: segstore.Store) -> None:
    fill(store)

    class Seeks(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            told.append((revoked, consumer.position(tp())))

        def on_partitions_assigned(self, assigned: Any) -> None:
            for partition in assigned:
                consumer.seek(partition, 8)

    told: list[Any] = []
    consumer = Consumer(store)
    consumer.subscribe(["t"], listener=Seeks())
    assert offsets(drain(consumer)) == [8, 9]
    consumer.close()
    assert told == [([tp()], 10)]


def test_invalid_topic_names_are_refused_in_a_subscription() -> None:
    from segstore.client.consumer.subscription import Subscription

    with pytest.raises(InvalidTopicError):
        Subscription().subscribe(["a/b"], None, None)
