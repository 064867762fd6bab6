"""What a plain store does, a replicated one does on all replicas: deletion, compaction, reading, forks."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from compaction import end_in_gap
from replicated_stores import Directories, await_in_sync, found, retrying
from stores import in_child, records, tree
from waiting import until

import segstore
from segstore import errors
from segstore.coordinator.group.admin import Groups
from segstore.storage.bulk_import import importing
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("replicated stores")

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


def test_r41_a_new_replica_reaches_a_leader_that_ends_behind_a_gap(three: Directories) -> None:
    """It stayed out of the ISR until something was appended."""
    end_in_gap(three.paths[0])
    store = three.open(adopt=True)
    store.reassign({("t", 0): [0, 1, 2]})
    await_in_sync(store, seconds=20)
    log = store.partition("t", 0)
    assert [each.log_end_offset for each in store.describe_partition("t", 0).replica_states] == [60] * 3
    assert [*found(log)] == [*range(9)]
    store.close()
    store = three.open()
    store.elect_leaders("preferred", [("t", 0)])
    assert store.partition("t", 0).append(b"and on", key=b"k") == 60
    three.files.fail(three.paths[0])
    until(lambda: store.describe_partition("t", 0).leader > 0)
    assert retrying(lambda: store.partition("t", 0).append(b"on", key=b"k")) >= 61
    assert [*found(store.partition("t", 0))][:10] == [*range(9), 60]


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


def test_sweeps_are_told_of_where_the_partition_leads(three: Directories) -> None:
    """They were those of the first directory, also where another one leads."""
    three.judged = False
    store = three.open()
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.ms": 1, **SMALL}
    store.create_topic("t", assignments={0: [1, 2]}, config=settings)
    log = store.partition("t", 0)
    for number in range(200):
        log.append(b"%d" % number * 20, key=b"k")
    await_in_sync(store)
    until(lambda: store.sweep() is not None and any(s.compacted_bytes for s in store.sweep_states().values()))
    (stats,) = [each for each in store.stats() if each.topic == "t"]
    assert stats.compacted_bytes > 0
    assert stats.swept_ms > 0
    assert stats.dirty_ratio is not None
    assert stats.dirty_ratio < 0.5


def test_what_was_mended_in_any_directory_is_told(three: Directories) -> None:
    filled(three, 5)[0].close()
    point = three.paths[2] / "recovery-point-offset-checkpoint"
    point.write_bytes(b"nonsense")
    with three.open() as store:
        assert [done.path for done in store.mended] == [str(point)]


def test_a_copy_of_a_directory_is_a_plain_store(three: Directories) -> None:
    store, log = filled(three)
    for number, path in enumerate(three.paths):
        until(lambda path=path: ends_at(path) == 100)
        assert segstore.copy(path, three.base / f"copy-{number}").partitions == 1
    log.append(b"not in the copies")
    store.close()
    for number in range(3):
        assert segstore.check(three.base / f"copy-{number}") == []
        with segstore.open(three.base / f"copy-{number}") as copy:
            assert list(copy.topics()) == ["t"]
            assert len(found(copy.partition("t", 0))) == 100
            assert copy.partition("t", 0).append(b"and on") == 100


def ends_at(path: Any) -> int:
    with segstore.open(path, mode="r") as reader:
        return int(reader.partition("t", 0).end_offset)


def test_a_replica_is_not_repaired_by_itself(three: Directories) -> None:
    """Other replicas would not hear of it: one offset had two contents under one leader epoch."""
    three.judged = False
    filled(three)[0].close()
    assert repair(three.paths[1]) == []
    log = min((three.paths[1] / "t-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    before = tree(three.paths[1])
    for quarantine in (False, True):
        with pytest.raises(errors.InvalidArgumentError, match="is a directory of a replicated store"):
            repair(three.paths[1], quarantine=quarantine)
    assert tree(three.paths[1]) == before


def test_an_import_into_one_directory_is_refused(three: Directories) -> None:
    store, _ = filled(three, 10)
    store.close()
    refused = pytest.raises(errors.InvalidArgumentError, match="is a directory of a replicated store")
    with refused, importing(str(three.paths[0]), "t"):
        raise AssertionError("the block must not begin")


def test_settings_that_were_changed_hold_for_each_replica(three: Directories) -> None:
    store, log = filled(three, 10)
    store.alter_topic("t", {"max.message.bytes": 200, "compression.type": "zstd"})
    with pytest.raises(errors.RecordTooLargeError):
        log.append(os.urandom(2_000))
    store.close()
    for path in three.paths:
        with segstore.open(path, mode="r") as reader:
            assert reader.topics()["t"].config["max.message.bytes"] == 200
    with three.open() as store, pytest.raises(errors.RecordTooLargeError):
        store.partition("t", 0).append(os.urandom(2_000))


def test_groups_are_described(three: Directories) -> None:
    store, _ = filled(three, 10)
    with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(1_000))
        consumer.commit()
        (state,) = Groups(store).describe("g").partitions
        assert (state.committed.offset, state.end, state.lag) == (10, 10, 0)
    assert [each.group_id for each in Groups(store).list()] == ["g"]


def test_a_topic_that_exists_is_taken_where_it_is_as_asked(three: Directories) -> None:
    with three.open() as store:
        made = store.create_topic("t", 2, replication_factor=3)
        assert store.create_topic("t", 2, replication_factor=3, exist_ok=True).topic_id == made.topic_id
        assert store.ensure_topic("t").topic_id == made.topic_id
        assert store.ensure_topic("t", 2, replication_factor=3).topic_id == made.topic_id
        for asked in ({"replication_factor": 2}, {"partitions": 2, "replication_factor": 2}):
            with pytest.raises(errors.TopicMismatchError, match="replication_factor=3, not 2"):
                store.ensure_topic("t", **asked)
        with pytest.raises(errors.TopicMismatchError, match="partitions=2, not 1"):
            store.create_topic("t", exist_ok=True)
        with ThreadPoolExecutor(4) as pool:
            infos = list(pool.map(lambda _: store.ensure_topic("u", 2, replication_factor=2), range(8)))
        assert len({info.topic_id for info in infos}) == 1
        store.partition("u", 1).append(b"it is led")


def test_compare_and_append(three: Directories) -> None:
    store, log = filled(three, 3)
    assert log.append(b"v", expected_offset=3) == 3
    assert log.append_batch([b"v"] * 2, expected_offset=4) == range(4, 6)
    for append in (log.append, lambda v, **e: log.append_batch([v] * 2, **e)):
        with pytest.raises(errors.OffsetMismatchError) as caught:
            append(b"no", expected_offset=5)
        assert caught.value.end_offset == log.log_end_offset == 6
    assert [r.offset for r in log.scan(3)] == [3, 4, 5]
    await_in_sync(store)
