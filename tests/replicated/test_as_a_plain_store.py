"""What a plain store does, a replicated one does on all replicas: deletion, compaction, reading, forks."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync, found
from stores import in_child, records
from waiting import until

import segstore
from segstore import errors

SMALL = {"segment.bytes": 2_000, "file.delete.delay.ms": 0}


def filled(three: Directories, count: int = 100, **config: Any) -> tuple[Any, Any]:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3, config={**SMALL, **config})
    log = store.partition("t", 0)
    for number in range(count):
        log.append(b"%d" % number * 20, key=b"k%d" % (number % 5), timestamp=1_700_000_000_000 + number)
    await_in_sync(store)
    return store, log


def starts(three: Directories) -> list[int]:
    """The log start offset of each replica, as a reader of its directory alone finds it."""
    made = []
    for path in three.paths:
        with segstore.open(path, mode="r") as reader:
            made.append(reader.partition("t", 0).start_offset)
    return made


def test_r33_deleted_records_are_deleted_on_all_replicas(three: Directories) -> None:
    store, log = filled(three)
    assert log.delete_records(40) == 40
    assert log.start_offset == 40
    with pytest.raises(errors.OffsetOutOfRangeError):
        log.read(10)
    log.append(b"and on")
    await_in_sync(store)
    until(lambda: starts(three) == [40, 40, 40])
    store.close()
    assert starts(three) == [40, 40, 40]
    three.judged = False  # the replicas drop whole segments, each in its own time
    assert [segstore.check(path) for path in three.paths] == [[], [], []]


@pytest.mark.hangs
def test_r33_nothing_above_the_high_watermark_is_deleted(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]}, config={**SMALL, "min.insync.replicas": 2})
    log = store.partition("t", 0)
    log.append(b"shown")
    three.files.hang(three.paths[1])
    log.append_batch([b"%d" % number * 50 for number in range(200)], acks=1)
    with pytest.raises(errors.OffsetOutOfRangeError):
        log.delete_records(100)
    store.alter_topic("t", {"retention.bytes": 0})
    three.files.mend()
    until(lambda: log.end_offset == 201)


def test_r33_retention_runs_on_each_replica(three: Directories) -> None:
    three.judged = False
    store, log = filled(three, 100)
    store.alter_topic("t", {"retention.bytes": 4_000})
    until(lambda: store.sweep() is not None and log.start_offset > 0)
    log.append(b"and on")
    await_in_sync(store)
    until(lambda: min(starts(three)) > 0)
    store.close()
    assert [segstore.check(path) for path in three.paths] == [[], [], []]


def test_r34_compaction_runs_on_each_replica_and_keeps_the_latest_of_each_key(three: Directories) -> None:
    three.judged = False
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.ms": 1}
    store, log = filled(three, 300, **settings)
    for number in range(5):
        log.append(b"latest", key=b"k%d" % number)
    store.sweep()
    store.close()
    for path in three.paths:
        assert segstore.check(path) == []
        with segstore.open(path, mode="r") as reader:
            latest = {record.key: record.value for record in records(reader.partition("t", 0))}
            assert latest == {b"k%d" % number: b"latest" for number in range(5)}
            assert len(found(reader.partition("t", 0))) < 305


def test_reading_by_offset_by_time_and_by_transfer(three: Directories) -> None:
    _, log = filled(three)
    assert log.read_one(7).value == b"7" * 20
    assert [record.offset for record in log.read_many([3, 99])] == [3, 99]
    assert log.offset_for_time(1_700_000_000_050) == 50
    with tempfile.TemporaryFile() as sink:
        size, at = log.transfer(sink, 0, 1 << 20, method="read")
        assert (os.fstat(sink.fileno()).st_size, at) == (size, 100)
    assert len(log.read(0, max_bytes=1 << 20).to_arrow()) == 100


def test_stats_and_metrics_have_each_partition_once(three: Directories) -> None:
    store, _ = filled(three)
    assert [(each.topic, each.partition) for each in store.stats() if each.topic == "t"] == [("t", 0)]
    assert store.metrics_text()


def test_topics_are_deleted_on_all_directories(three: Directories) -> None:
    store, log = filled(three)
    store.delete_topic("t")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        log.append(b"too late")
    until(lambda: not any(list(path.glob("t-*")) for path in three.paths))
    store.create_topic("t", replication_factor=3)
    assert store.partition("t", 0).append(b"anew") == 0


def test_a_topic_deleted_while_a_directory_was_away_is_deleted_there_too(three: Directories) -> None:
    store, _ = filled(three)
    store.close()
    three.lose(2)
    with three.open() as store:
        store.delete_topic("t")
        store.create_topic("t", replication_factor=2)
        assert store.partition("t", 0).append(b"another topic of that name") == 0
    three.bring_back()
    with three.open() as store:
        await_in_sync(store)
        assert found(store.partition("t", 0)) == {0: b"another topic of that name"}
        until(lambda: not (three.paths[2] / "t-0").exists())


def test_partitions_are_added(three: Directories) -> None:
    store, _ = filled(three)
    store.add_partitions("t", 5)
    assert store.topics()["t"].partitions == 5
    for number in range(1, 5):
        assert store.partition("t", number).append(b"x", acks="all") == 0
        assert len(store.describe_partition("t", number).replicas) == 3


def test_a_forked_child_is_refused(three: Directories) -> None:
    store, log = filled(three, 10)

    def use(tell: Any) -> None:
        for call in (lambda: log.append(b"x"), lambda: store.create_topic("u"), store.close):
            try:
                call()
            except errors.ForkedError:
                tell("refused")

    _, lines = in_child(use)
    assert lines[:2] == ["refused", "refused"]
    assert log.append(b"the parent goes on") == 10


def test_nothing_is_left_behind_when_a_store_is_closed(three: Directories) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with three.open() as store:
            if "t" not in store.topics():
                store.create_topic("t", replication_factor=3)
            store.partition("t", 0).append(b"x")
    three._opened.clear()
    del store
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
