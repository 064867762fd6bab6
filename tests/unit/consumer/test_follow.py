"""A consumer that follows: new topics and partitions, deletions, appends in this process and in another."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append, drain, earliest, fill, offsets, opened, tp
from stores import append_inner
from waiting import until

import segstore
from segstore.client.consumer import Consumer, ConsumerRebalanceListener
from segstore.coordinator.structs import TopicPartition
from segstore.errors import StoreClosedError, UnknownTopicOrPartitionError


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.told.append(("revoked", sorted(revoked)))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.told.append(("assigned", sorted(assigned)))


@pytest.fixture(params=["rw", "r"])
def sides(request: pytest.FixtureRequest, store_dir: Path) -> Iterator[tuple[segstore.Store, segstore.Store]]:
    """The writer's store, and the one that consumers get: the same, or one opened read-only."""
    with segstore.open(store_dir) as writer:
        if request.param == "rw":
            yield writer, writer
        else:
            with segstore.open(store_dir, mode="r") as reader:
                yield writer, reader


# --- topics that come and go -----------------------------------------------------------------


def test_a_subscription_by_name_follows_new_partitions(sides: Any) -> None:
    writer, store = sides
    fill(writer, partitions=1)
    listener, consumer = Listener(), earliest(store)
    consumer.subscribe(["t"], listener=listener)
    assert (consumer.subscription(), consumer.assignment()) == ({"t"}, set())
    assert len(drain(consumer)) == 10
    assert consumer.assignment() == {tp(0)}
    writer.add_partitions("t", 3)
    writer.partition("t", 2).append(b"new")
    (records,) = until(lambda: consumer.poll(100)).values()
    assert [(r.partition, r.value) for r in records] == [(2, b"new")]
    assert consumer.assignment() == {tp(0), tp(1), tp(2)}
    assert consumer.position(tp(0)) == 10
    consumer.close()
    assert listener.told == [
        ("assigned", [tp(0)]),
        ("assigned", [tp(1), tp(2)]),
        ("revoked", [tp(0), tp(1), tp(2)]),
    ]


def test_a_pattern_follows_new_topics_and_leaves_internal_ones_out(sides: Any) -> None:
    writer, store = sides
    writer._create_topic("__consumer_offsets", 1, {})
    append_inner(writer.partition("__consumer_offsets"), b"internal", b"junk")
    consumer = earliest(store)
    consumer.subscribe(pattern="a|_")
    assert consumer.poll() == {}
    assert consumer.subscription() == set()
    for topic in ("ab", "b", "a"):
        fill(writer, topic, records=1)
    got: list[str] = []
    while len(got) < 2:
        got += [r.topic for part in until(lambda: consumer.poll(100)).values() for r in part]
    assert sorted(got) == ["a", "ab"]
    assert consumer.subscription() == {"a", "ab"}
    named = earliest(store, "__consumer_offsets")
    assert len(drain(named)) == 1
    all_of_them = earliest(store, exclude_internal_topics=False)
    all_of_them.subscribe(pattern="a|_")
    assert {r.topic for r in drain(all_of_them)} == {"a", "ab", "__consumer_offsets"}
    assert (consumer.topics(), all_of_them.topics() - consumer.topics()) == (
        {"a", "ab", "b"},
        {"__consumer_offsets"},
    )
    assert [found.offset for found in segstore.check(writer.path)] == [0]  # no record of a group's
    writer._delete_topic("__consumer_offsets")


def test_a_new_topic_is_found_within_moments_by_a_consumer_that_waits(sides: Any) -> None:
    writer, store = sides
    consumer = earliest(store)
    consumer.subscribe(pattern="t")
    consumer.poll()
    thread = threading.Timer(0.1, lambda: fill(writer, records=3))
    thread.start()
    began = time.monotonic()
    assert sum(len(part) for part in consumer.poll(LONG_MS).values()) > 0
    assert time.monotonic() - began < LONG_MS / 2000
    thread.join()


def test_a_new_topic_is_found_by_a_consumer_that_is_busy(sides: Any) -> None:
    writer, store = sides
    writer.create_topic("ta")
    writer.partition("ta").append_batch([b"x"] * 1_000_000)
    consumer = earliest(store, max_poll_records=1)
    consumer.subscribe(pattern="t")
    consumer.poll()
    fill(writer, "tb", records=1)
    until(lambda: "tb" in [part.topic for part in consumer.poll()])
    assert consumer.position(tp(0, "ta")) < 1_000_000


def test_a_topic_that_is_deleted_is_revoked_and_one_made_anew_is_read(sides: Any) -> None:
    writer, store = sides
    fill(writer, "t")
    fill(writer, "u", records=1)
    listener, consumer = Listener(), earliest(store)
    consumer.subscribe(["t", "u"], listener=listener)
    assert len(drain(consumer)) == 11
    writer.delete_topic("t")
    until(lambda: consumer.poll(10) or consumer.assignment() == {tp(0, "u")})
    append(writer, 1, "u")
    assert [r.topic for part in consumer.poll(LONG_MS).values() for r in part] == ["u"]
    fill(writer, "t", records=12)
    got = [r for part in until(lambda: consumer.poll(100)).values() for r in part]
    assert offsets(got) == list(range(12))
    assert listener.told == [
        ("assigned", [tp(), tp(0, "u")]),
        ("revoked", [tp()]),
        ("assigned", [tp()]),
    ]


def test_a_topic_made_anew_at_once_is_not_taken_for_the_old_one(sides: Any) -> None:
    writer, store = sides
    fill(writer)
    consumer = earliest(store, "t", max_poll_records=4)
    assert offsets(consumer.poll()[tp()]) == [0, 1, 2, 3]
    writer.delete_topic("t")
    writer.create_topic("t")
    writer.partition("t").append_batch([b"anew"] * 6)
    got = until(lambda: [r for part in consumer.poll(100).values() for r in part if r.value == b"anew"])
    assert offsets(got) == [0, 1, 2, 3]


def test_an_assigned_partition_that_goes_is_an_error(sides: Any) -> None:
    writer, store = sides
    fill(writer)
    fill(writer, "u")
    consumer = earliest(store)
    consumer.assign([tp(), tp(0, "u")])
    assert len(drain(consumer)) == 20
    writer.delete_topic("t")
    with pytest.raises((StoreClosedError, UnknownTopicOrPartitionError), match="t"):
        until(lambda: consumer.poll(10))
    append(writer, 1, "u")
    consumer.assign([tp(0, "u")])
    assert len(consumer.poll()[tp(0, "u")]) == 1


def test_the_last_stable_offset_holds_a_committed_reader_back(sides: Any, golden: Path) -> None:
    """And its end offsets say so."""
    writer, store = sides
    fill(writer)
    consumer = earliest(store, "t", isolation_level="read_committed")
    assert len(drain(consumer)) == 10
    assert consumer.end_offsets([tp()]) == {tp(): writer.partition("t").last_stable_offset}


# --- waiting ---------------------------------------------------------------------------------


def test_an_append_wakes_a_poll(sides: Any) -> None:
    writer, store = sides
    fill(writer, partitions=2, records=0)
    consumer = earliest(store, "t")
    consumer.poll()
    looks = counted(consumer)
    for i in range(20):
        thread = threading.Timer(0.005, writer.partition("t", i % 2).append, (b"x",))
        thread.start()
        assert len(consumer.poll(LONG_MS)) == 1
        thread.join()
    assert len(looks) <= 20 * 6


def counted(consumer: Consumer) -> list[int]:
    """Grows by one with each look for records. Who sleeps until one is published takes few."""
    looks: list[int] = []
    find = consumer._fetcher._turns

    def look() -> Any:
        looks.append(1)
        return find()

    consumer._fetcher._turns = look  # type: ignore[method-assign]
    return looks


def test_a_poll_that_waits_does_not_spin(sides: Any) -> None:
    writer, store = sides
    fill(writer, partitions=20, records=0)
    consumer = earliest(store)
    consumer.subscribe(pattern=".")
    consumer.poll()
    before = resource.getrusage(resource.RUSAGE_THREAD)
    assert consumer.poll(300) == {}
    after = resource.getrusage(resource.RUSAGE_THREAD)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.06


def test_a_poll_waits_as_long_as_it_was_told(sides: Any) -> None:
    writer, store = sides
    fill(writer, records=0)
    consumer = earliest(store, "t")
    began = time.monotonic()
    assert consumer.poll(30) == {}
    assert consumer.poll_arrow(30).num_rows == 0
    assert 0.06 <= time.monotonic() - began < LONG_MS / 2000


def test_a_paused_consumer_sleeps_through_appends(sides: Any) -> None:
    writer, store = sides
    fill(writer)
    consumer = earliest(store, "t")
    drain(consumer)
    consumer.pause(tp())
    append(writer, 1)
    assert consumer.poll(20) == {}


# --- another process -------------------------------------------------------------------------

_SENT = struct.Struct("<d")


def _write(path: str, ready: int, go: int, records: int, pause: float) -> None:
    with segstore.open(path) as store:
        fill(store, partitions=2, records=0)
        os.write(ready, b"r")
        os.read(go, 1)
        for i in range(records):
            store.partition("t", i % 2).append(_SENT.pack(time.monotonic()))
            time.sleep(pause)
        os.read(go, 1)


@pytest.fixture
def writing(store_dir: Path) -> Iterator[Any]:
    """Starts a writer in another process: gives what lets it begin, and after that end."""
    (ready, ready_w), (go_r, go) = os.pipe(), os.pipe()
    children = []

    def start(records: int, pause: float) -> tuple[Any, int]:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_write, args=(str(store_dir), ready_w, go_r, records, pause))
        child.start()
        children.append(child)
        assert os.read(ready, 1) == b"r"
        return child, go

    yield start
    for child in children:
        if child.is_alive():
            os.write(go, b"xx")
        child.join(LONG_MS / 1000)
        assert child.exitcode in (0, -signal.SIGKILL)
    for end in (ready, ready_w, go_r, go):
        os.close(end)


@pytest.mark.kind("kills")
@pytest.mark.parametrize("how", ["poll", "iterate", "poll_arrow"])
def test_a_live_writer_in_another_process_is_followed(store_dir: Path, writing: Any, how: str) -> None:
    """Each record wakes the reader, and costs it a bounded number of looks; benchmarks/bench_latency.py says
    how soon.
    """
    _, go = writing(60, 0.004)
    store, consumer = opened(store_dir, "t", consumer_timeout_ms=LONG_MS)
    looks = counted(consumer)
    consumer.poll()
    os.write(go, b"x")
    sent: list[float] = []
    while len(sent) < 60:
        if how == "poll":
            values = [r.value for part in consumer.poll(LONG_MS).values() for r in part]
        elif how == "iterate":
            values = [next(consumer).value]
        else:
            values = consumer.poll_arrow(LONG_MS)["value"].to_pylist()
        sent += [_SENT.unpack(value)[0] for value in values]
    assert len(set(sent)) == 60
    assert len(looks) < 60 * 6 + 20
    os.write(go, b"x")
    consumer.close()
    store.close()


@pytest.mark.kind("kills")
def test_what_a_killed_writer_left_is_read(store_dir: Path, writing: Any) -> None:
    child, go = writing(1_000_000, 0)
    store, consumer = opened(store_dir, "t", isolation_level="read_committed")
    os.write(go, b"x")
    until(lambda: len(consumer.poll(100)) > 0)
    os.kill(child.pid, signal.SIGKILL)
    child.join(LONG_MS / 1000)
    drain(consumer)
    ends = consumer.end_offsets([tp(0), tp(1)])
    assert {t: consumer.position(t) for t in ends} == ends
    with segstore.open(store_dir) as writer:  # recovers, and writes on
        append(writer, 3)
        values = [r.value for part in until(lambda: consumer.poll(100)).values() for r in part]
        assert len(values) > 0
    consumer.close()
    store.close()


@pytest.mark.kind("programs")
def test_a_consumer_in_a_forked_child_is_refused_with_its_store(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        fill(store)
        consumer = earliest(store, "t")
        consumer.poll(max_records=1)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                consumer.poll()
            except segstore.ForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(drain(consumer)) == 9


def test_a_brokers_log_that_grows_is_followed(tmp_path: Path, golden: Path) -> None:
    """Where nothing is published the log is looked at: a batch that is whole is read, half of one is not."""
    source = golden / "clean" / "flights-none-1" / "00000000000000002879.log"
    data = source.read_bytes()
    root = tmp_path / "broker"
    (root / "t-0").mkdir(parents=True)
    path = root / "t-0" / source.name
    first = 12 + struct.unpack_from(">i", data, 8)[0]
    second = first + 12 + struct.unpack_from(">i", data, first + 8)[0]
    path.write_bytes(data[:first])
    with segstore.open(root, mode="r") as store:
        consumer = Consumer(store, "t", auto_offset_reset="earliest")
        seen = len(drain(consumer))
        assert seen == struct.unpack_from(">i", data, 57)[0]
        with path.open("ab") as log:
            log.write(data[first : second - 1])
            log.flush()
            assert consumer.poll(30) == {}
            log.write(data[second - 1 : second])
        more = consumer.poll(LONG_MS)[tp()]
        assert more[0].offset == 2879 + seen
        assert len(more) == struct.unpack_from(">i", data, first + 57)[0]


def test_a_consumer_looks_at_the_topics_only_where_there_are_news_of_them(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    topics = segstore.Store.topics
    monkeypatch.setattr(segstore.Store, "topics", lambda self: looks.append(1) or topics(self))
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        with segstore.Consumer(store, "t", auto_offset_reset="latest") as consumer:
            watch = consumer._coordination._watch
            until(lambda: not consumer.poll(20) and watch._has_no_news(store.news))
            looks.clear()
            for _ in range(10):
                store.partition("t").append(b"x")
                assert consumer.poll(LONG_MS)
            consumer.poll(50)
            assert looks == []
            store.create_topic("u")
            until(lambda: consumer.poll(20) or looks)
