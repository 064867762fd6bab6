"""`Consumer` without a group: what it reads, where it is, what it refuses; kafka-python's names and
behaviour.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from consumers import append, drain, earliest, fill, offsets, tp
from kafka.consumer.fetcher import ConsumerRecord as KafkaRecord
from partitions import broker_partitions

import segstore
from segstore.client.consumer import Consumer, ConsumerRebalanceListener, ConsumerRecord
from segstore.client.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from segstore.errors import (
    ClientClosedError,
    ConcurrentModificationError,
    ConfigError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTypeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        yield store


# --- kafka-python's names --------------------------------------------------------------------

NOT_OURS = {"bootstrap", "bootstrap_connected", "DEFAULT_CONFIG", "DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735"}


@pytest.mark.parametrize("name", sorted(n for n in vars(kafka.KafkaConsumer) if not n.startswith("_")))
def test_has_kafka_pythons_methods_and_arguments(name: str) -> None:
    if name in NOT_OURS:
        assert not hasattr(Consumer, name)
        return
    theirs, ours = (
        [p for p in inspect.signature(getattr(of, name)).parameters if p not in ("update_offsets", "raw")]
        for of in (kafka.KafkaConsumer, Consumer)
    )
    assert [p for p in ours if p in theirs] == [p for p in theirs if p in ours]
    if name != "position":
        assert set(theirs) <= set(ours)


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


# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "begins"), [("earliest", 0), ("latest", 10)])
def test_where_a_consumer_begins(store: segstore.Store, policy: str, begins: int) -> None:
    fill(store)
    consumer = Consumer(store, "t", auto_offset_reset=policy)
    consumer.poll()
    consumer.seek_to_beginning()
    assert consumer.position(tp()) == 0
    consumer.seek_to_end(tp())
    assert consumer.position(tp()) == 10
    fresh = Consumer(store, auto_offset_reset=policy)
    fresh.assign([tp()])
    assert fresh.position(tp()) == begins


def test_without_a_policy_a_position_must_be_given(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = Consumer(store, "t", auto_offset_reset="none")
    for look in (consumer.poll, consumer.poll_arrow, lambda: next(consumer), lambda: consumer.position(tp())):
        with pytest.raises(NoOffsetForPartitionError) as caught:
            look()
        assert caught.value.partitions == {tp(0), tp(1)}
    consumer.seek(tp(0), 8)
    with pytest.raises(NoOffsetForPartitionError, match="partition=1"):
        consumer.poll()
    consumer.seek(tp(1), 9)
    got = drain(consumer)
    assert (offsets(got, 0), offsets(got, 1)) == ([8, 9], [9])


OUT_OF_RANGE = {
    "behind the end, earliest": ("earliest", 11, list(range(4, 10))),
    "behind the end, latest": ("latest", 99, []),
    "before the start, earliest": ("earliest", 3, list(range(4, 10))),
    "before the start, latest": ("latest", 0, []),
    "at the end": ("none", 10, []),
    "at the start": ("none", 4, list(range(4, 10))),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_a_position_that_is_not_there_is_dealt_with_by_the_policy(store: segstore.Store, case: str) -> None:
    policy, to, seen = OUT_OF_RANGE[case]
    fill(store)
    store.partition("t").delete_records(4)
    consumer = Consumer(store, auto_offset_reset=policy)
    consumer.assign([tp()])
    consumer.seek(tp(), to)
    assert offsets(drain(consumer)) == seen
    assert consumer.position(tp()) == 10


@pytest.mark.parametrize("to", [3, 11])
def test_out_of_range_without_a_policy_is_an_error_each_time(store: segstore.Store, to: int) -> None:
    fill(store, partitions=2)
    store.partition("t").delete_records(4)
    consumer = Consumer(store, auto_offset_reset="none")
    consumer.assign([tp(0), tp(1)])
    consumer.seek(tp(0), to)
    consumer.seek(tp(1), 0)
    got: list[ConsumerRecord] = []
    raised = []
    for _ in range(6):  # the other partition has its turns
        try:
            got += drain_some(consumer, 1)
        except OffsetOutOfRangeError as error:
            raised.append((error.offset, error.start, error.end))
    assert len(raised) >= 4
    assert set(raised) == {(to, 4, 10)}
    assert offsets(got, 1) == list(range(10))
    assert consumer.position(tp(0)) == to
    consumer.seek(tp(0), 4)
    assert offsets(drain(consumer)) == list(range(4, 10))


def test_records_that_go_under_the_reader(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t", max_poll_records=2)
    assert offsets(drain_some(consumer, 1)) == [0, 1]
    store.partition("t").delete_records(6)
    # What was read before the records went is still given, as a broker's answer on its way would be.
    rest = offsets(drain(consumer))
    assert rest == sorted(rest)
    assert set(range(6, 10)) <= set(rest)
    consumer.seek(tp(), 5)
    assert offsets(drain(consumer)) == list(range(6, 10))


def drain_some(consumer: Consumer, polls: int) -> list[ConsumerRecord]:
    return [r for _ in range(polls) for records in consumer.poll().values() for r in records]


def test_a_seek_takes_an_offset_and_metadata(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store)
    consumer.assign([tp()])
    consumer.seek(tp(), OffsetAndMetadata(7, "note", 0))
    assert offsets(drain(consumer)) == [7, 8, 9]


def test_pause_and_resume(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = earliest(store, "t", max_poll_records=4)
    consumer.poll()
    consumer.pause(tp(0))
    assert consumer.paused() == {tp(0)}
    assert {record.partition for record in drain(consumer)} == {1}
    before = consumer.position(tp(0))
    consumer.resume(tp(0))
    assert consumer.paused() == set()
    assert offsets(drain(consumer)) == list(range(before, 10))


def test_a_partition_that_stays_assigned_keeps_position_and_pause(store: segstore.Store) -> None:
    fill(store, partitions=3)
    consumer = earliest(store)
    consumer.assign([tp(0), tp(1)])
    consumer.seek(tp(0), 5)
    consumer.pause(tp(1))
    consumer.assign([tp(0), tp(1), tp(2)])
    assert (consumer.position(tp(0)), consumer.paused()) == (5, {tp(1)})
    consumer.assign([])
    assert (consumer.assignment(), consumer.subscription()) == (set(), None)


# --- looking up ------------------------------------------------------------------------------


def test_offsets_that_are_looked_up(store: segstore.Store) -> None:
    store.create_topic("t", partitions=2)
    store.partition("t", 0).append_batch([b"a", b"b", b"c"], timestamps=[10, 20, 30])
    consumer = earliest(store)
    both = [tp(0), tp(1)]
    assert consumer.beginning_offsets(both) == {tp(0): 0, tp(1): 0}
    assert consumer.end_offsets(both, timeout_ms=5) == {tp(0): 3, tp(1): 0}
    assert consumer.offsets_for_times({tp(0): 11, tp(1): 11}) == {
        tp(0): OffsetAndTimestamp(1, 20, 0),
        tp(1): None,
    }
    assert consumer.offsets_for_times({tp(0): 31}) == {tp(0): None}
    assert consumer.assignment() == set()
    assert consumer.topics() == {"t"}
    assert consumer.partitions_for_topic("t") == {0, 1}
    assert consumer.partitions_for_topic("u") == set()
    consumer.assign([tp(0)])
    assert consumer.highwater(tp(0)) == 3


# --- bad input -------------------------------------------------------------------------------

UNKNOWN, STATE, ARGUMENT, TYPE = (
    UnknownTopicOrPartitionError, IllegalStateError, InvalidArgumentError, InvalidTypeError,
)  # fmt: skip
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "an unknown topic": (lambda c: c.subscribe(["u"]), UNKNOWN, "no topic 'u'; there are: t"),
    "an unknown partition": (lambda c: c.assign([tp(7)]), UNKNOWN, "no partition 7"),
    "a topic that can't be": (lambda c: c.subscribe(["a/b"]), UNKNOWN, "'a/b'"),
    "topics as one str": (lambda c: c.subscribe("t"), TYPE, "a list of str, not str"),
    "a topic that is no str": (lambda c: c.subscribe([3]), TYPE, "must be a str, not int"),
    "topics that are a number": (lambda c: c.subscribe(3), TYPE, "a list of str, not int"),
    "nothing to subscribe to": (lambda c: c.subscribe(), ARGUMENT, "neither topics nor a pattern"),
    "both": (lambda c: c.subscribe(["t"], pattern="t"), STATE, "only one of them"),
    "a pattern that is none": (lambda c: c.subscribe(pattern="("), ARGUMENT, r"pattern='\('"),
    "a pattern of bytes": (lambda c: c.subscribe(pattern=b"t"), ARGUMENT, "regular expression"),
    "a deaf listener": (lambda c: c.subscribe(["t"], listener=3), TYPE, "int has no on_partitions_revoked"),
    "a partition that is a str": (lambda c: c.assign(["t"]), TYPE, "a TopicPartition, not str"),
    "a plain tuple": (lambda c: c.seek(("t", 0), 0), TYPE, "a TopicPartition, not tuple"),
    "position of a stranger": (lambda c: c.position(tp(1)), STATE, "t-1 is not assigned; .*: t-0"),
    "seek in a stranger": (lambda c: c.seek(tp(1), 0), STATE, "t-1 is not assigned"),
    "pause of a stranger": (lambda c: c.pause(tp(0), tp(1)), STATE, "t-1 is not assigned"),
    "resume of a stranger": (lambda c: c.resume(tp(1)), STATE, "t-1 is not assigned"),
    "beginning of a stranger": (lambda c: c.seek_to_beginning(tp(1)), STATE, "t-1 is not assigned"),
    "highwater of a stranger": (lambda c: c.highwater(tp(1)), STATE, "t-1 is not assigned"),
    "an offset below 0": (lambda c: c.seek(tp(), -1), ARGUMENT, "offset=-1: must be at least 0"),
    "an offset that is no int": (lambda c: c.seek(tp(), "0"), TYPE, "offset must be an int, not str"),
    "time below 0": (lambda c: c.offsets_for_times({tp(): -1}), ARGUMENT, "timestamp=-1"),
    "offsets of the unknown": (lambda c: c.end_offsets([tp(0, "u")]), UNKNOWN, "no topic 'u'"),
    "a wait below 0": (lambda c: c.poll(-1), ARGUMENT, "timeout_ms=-1: must be at least 0"),
    "a wait that is NaN": (lambda c: c.poll_arrow(float("nan")), ARGUMENT, "timeout_ms=nan"),
    "a wait that is no number": (lambda c: c.poll(None), TYPE, "timeout_ms must be a number"),
    "no records": (lambda c: c.poll(max_records=0), ARGUMENT, "max_records=0: must be at least 1"),
    "half a record": (lambda c: c.poll(max_records=1.5), TYPE, "max_records must be an int"),
    "a commit without a group": (lambda c: c.commit(), STATE, "belong to a group"),
    "one that does not wait": (lambda c: c.commit_async(), STATE, "belong to a group"),
    "what was committed": (lambda c: c.committed(tp()), STATE, "group_id is None"),
    "of no partition": (lambda c: c.committed("t"), TYPE, "a TopicPartition, not str"),
    "subscribe after assign": (lambda c: c.subscribe(["t"]), STATE, r"unsubscribe\(\) first"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_changes_nothing(store: segstore.Store, case: str) -> None:
    call, kind, said = BAD[case]
    fill(store, partitions=2)
    consumer = earliest(store)
    consumer.assign([tp(0)])
    consumer.seek(tp(0), 3)
    with pytest.raises(kind, match=said):
        call(consumer)
    assert (consumer.assignment(), consumer.position(tp(0)), consumer.paused()) == ({tp(0)}, 3, set())
    assert offsets(drain(consumer)) == list(range(3, 10))


def test_what_kafka_python_raises_is_among_the_bases() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(InvalidTypeError, TypeError)


def test_a_consumer_needs_a_store(store: segstore.Store) -> None:
    with pytest.raises(InvalidTypeError, match=re.escape("segstore.open()")):
        Consumer("t")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        Consumer(store, "u")
    with pytest.raises(ConfigError, match="bootstrap_servers is refused: there is no network"):
        Consumer(store, bootstrap_servers="localhost:9092")


def test_assign_after_subscribe_and_the_way_out(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t")
    with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) first"):
        consumer.assign([tp()])
    with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) first"):
        consumer.subscribe(pattern="t")
    consumer.unsubscribe()
    assert consumer.poll() == {}
    with pytest.raises(IllegalStateError, match="no partitions are assigned"):
        consumer.seek_to_end()
    consumer.assign([tp()])
    assert len(drain(consumer)) == 10


def test_no_group_is_no_membership(store: segstore.Store) -> None:
    metadata = earliest(store).group_metadata()
    assert metadata == kafka.structs.ConsumerGroupMetadata()


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
    thread = threading.Thread(target=lambda: polled.append(consumer.poll(20_000)))
    thread.start()
    told = ""
    while not told:
        try:
            consumer.assignment()
        except ConcurrentModificationError as error:
            told = str(error)
    assert str(thread.ident) in told
    for call in (lambda: next(consumer), consumer.close, lambda: consumer.poll(0)):
        with pytest.raises(ConcurrentModificationError):
            call()
    append(store, 1)
    thread.join(20)
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
