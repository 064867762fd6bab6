"""The sweeper: compaction and retention together, by hand and in the background, errors, checkpoints,
states.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import START_MS, Clock, killed_at_each_call, logs, records, value_of
from waiting import PATIENCE, until

import segstore
from segstore.files import Files

SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}
COMPACT = {**SMALL, "cleanup.policy": "compact"}
BY_HAND = {"log.cleaner.threads": 0}


def put(store: segstore.Store, topic: str, n: int, keys: int = 3) -> None:
    """`n` records of `keys` keys, about six to a segment."""
    log = store.partition(topic)
    for i in range(log.end_offset, log.end_offset + n):
        log.append(value_of(i, 100), key=b"k%d" % (i % keys))


def latest(log: segstore.PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records(log)}


def checkpoint(path: Path) -> str:
    return (path / "cleaner-offset-checkpoint").read_text()


def test_a_sweep_compacts_and_remembers_up_to_where(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock(step=1), config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 60)
        log, before = store.partition("t"), store.partition("t").size
        expected, active = latest(log), int(logs(store_dir)[-1].stem)
        (done,) = store.sweep()
        assert (done.topic, done.partition, done.error) == ("t", 0, None)
        assert done.compacted_bytes == before - log.size > 0
        assert done.compacted_records == 60 - len(list(records(log))) > 0
        assert latest(log) == expected
        assert log.end_offset == 60
        assert checkpoint(store_dir).split() == ["0", "1", "t", "0", str(active)]
        assert store.sweep() == ()
        stats = store.stats()[0]
        assert (stats.dirty_ratio, stats.compacted_bytes) == (0.0, done.compacted_bytes)
    with segstore.open(store_dir, config=BY_HAND) as store:
        assert latest(store.partition("t")) == expected
        assert store.sweep() == ()


def test_the_dirtiest_log_comes_first_and_clean_ones_do_not(store_dir: Path) -> None:
    order: list[str] = []

    class Seen(Files):
        def rename(self, source: Any, target: Any) -> None:
            super().rename(source, target)
            if str(target).endswith(".log.swap"):
                order.append(Path(target).parent.name)

    with segstore.open(store_dir, files=Seen(), config=BY_HAND) as store:
        for name in ("a", "b", "c"):
            store.create_topic(name, config=COMPACT)
            put(store, name, 40, keys=40)
        store.sweep()
        order.clear()
        for name, n in (("a", 45), ("b", 12), ("c", 120)):
            put(store, name, n, keys=40)
        found = [done.topic for done in store.sweep()]
        assert list(dict.fromkeys(order)) == ["c-0", "a-0"]
        assert found == ["a", "c"]


def test_compact_and_delete(store_dir: Path) -> None:
    clock = Clock()
    with segstore.open(store_dir, clock=clock, config=BY_HAND) as store:
        config = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": 60_000}
        store.create_topic("t", config=config)
        put(store, "t", 20)
        clock.now += 61_000
        put(store, "t", 20)
        (done,) = store.sweep()
        log = store.partition("t")
        assert done.deleted_segments > 0 < done.compacted_records
        assert log.start_offset > 0
        assert set(latest(log)) == {b"k0", b"k1", b"k2"}


def test_a_compacted_segment_is_as_old_as_the_last_of_those_that_it_is_made_of(store_dir: Path) -> None:
    """Else records without timestamps would live anew with each compaction."""
    clock = Clock()
    with segstore.open(store_dir, clock=clock, config=BY_HAND) as store:
        store.create_topic("t", config={**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": 1000})
        for i in range(60):
            store.partition("t").append(value_of(i, 100), key=b"k%d" % (i % 3), timestamp=-1)
        ages = {}
        for number, path in enumerate(logs(store_dir)):
            ages[path] = START_MS - 900 + number
            os.utime(path, ns=(0, ages[path] * 1_000_000))
        (done,) = store.sweep()
        assert done.compacted_records
        new = [path for path in logs(store_dir)[:-1] if path.stat().st_size]
        assert new
        for path in new:
            assert path.stat().st_mtime_ns // 1_000_000 in ages.values()
        assert max(path.stat().st_mtime_ns for path in new) // 1_000_000 == [*ages.values()][-2]
        clock.now += 200
        (done,) = store.sweep()
        assert done.deleted_segments > len(new)
        assert store.partition("t").start_offset == 60


def test_an_error_marks_the_partition_until_it_is_tried_by_hand(store_dir: Path) -> None:
    failing: set[str] = set()

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if ".cleaned" in str(getattr(args[0], "path", "")) and any(f in str(args[0].path) for f in failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = FailingFiles({"pwrite", "pwritev", "copy_range"}, fault, nth=1, times=1 << 30)
    with segstore.open(store_dir, files=files, config={"log.cleaner.backoff.ms": 1}) as store:
        failing.add("bad-0")
        for name in ("bad", "good"):
            store.create_topic(name, config=COMPACT)
            put(store, name, 60)
        store.sweep()
        until(lambda: store.stats()[0].error is not None and store.stats()[1].compacted_bytes)
        bad, good = store.stats()
        assert "Input/output error" in str(bad.error)
        assert good.error is None
        assert bad.records == 60
        failing.clear()
        by_hand = {s.topic: s for s in store.sweep()}["bad"]
        assert (by_hand.error, by_hand.compacted_records > 0) == (None, True)
        assert store.stats()[0].error is None


def test_the_background_tries_a_partition_again_that_found_no_room(store_dir: Path) -> None:
    full = [True]

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if full and ".cleaned" in str(getattr(args[0], "path", "")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles({"pwrite", "pwritev", "copy_range"}, fault, nth=1, times=1 << 30)
    with segstore.open(store_dir, files=files, config={"log.cleaner.backoff.ms": 1}) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 60)
        until(lambda: "No space left" in str(store.stats()[0].error))
        full.clear()
        until(lambda: store.stats()[0].error is None and store.stats()[0].compacted_bytes)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_notes_that_can_not_be_written_fail_no_sweep(
    store_dir: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "sweeps.json" in str(getattr(args[0], "path", "")):
            raise OSError(error, os.strerror(error))

    with segstore.open(store_dir, files=FailingFiles({"pwrite"}, fault, nth=1, times=1 << 30)) as store:
        store.create_topic("t", config={"retention.bytes": 1000, "segment.bytes": 500})
        put(store, "t", 60)
        assert store.sweep()[0].deleted_segments > 1
        store.sweep()
        assert caplog.text.count("the notes of sweeps could not be written") == 1


def test_the_background_compacts_by_itself(store_dir: Path) -> None:
    with segstore.open(store_dir, config={"log.cleaner.backoff.ms": 1}) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 60)
        until(lambda: len(list(records(store.partition("t")))) < 60)


def test_no_cleaner_threads_no_background(store_dir: Path) -> None:
    config = {**BY_HAND, "log.cleaner.backoff.ms": 1, "log.retention.check.interval.ms": 1}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 60)
        time.sleep(0.1)
        assert store.stats()[0].records == 60
        assert store.sweep()[0].compacted_records > 0


def test_a_throttled_compaction_ends_when_the_store_closes(store_dir: Path) -> None:
    with segstore.open(store_dir, config={"log.cleaner.io.max.bytes.per.second": 1}) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 60)
        sweep = threading.Thread(target=store.sweep)
        sweep.start()
        until(lambda: store.engine.sweeper._compaction._throttle._seen)
        store.close()
        sweep.join(PATIENCE)
        assert not sweep.is_alive()
    with segstore.open(store_dir) as store:
        assert len(list(records(store.partition("t")))) == 60


@pytest.mark.kind("kills")
def test_killed_at_each_call_of_a_sweep_that_compacts(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "s", config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 30)
        expected = latest(store.partition("t"))

    def sweep(files: Files, path: Path) -> None:
        segstore.open(path, files=files, config=BY_HAND).sweep()

    for nth, path in killed_at_each_call(tmp_path / "s", tmp_path, sweep):
        with segstore.open(path, config=BY_HAND) as store:
            assert latest(store.partition("t")) == expected, nth
            store.sweep()
            assert store.partition("t").append(b"on", key=b"k") == 30
        assert segstore.check(path) == [], nth


def test_internal_topics_are_swept_by_their_settings(store_dir: Path) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t", config=SMALL)
        with segstore.Consumer(store, "t", group_id="g") as consumer:
            consumer.poll()
            consumer.commit({segstore.TopicPartition("t", 0): segstore.OffsetAndMetadata(0)})
        assert store.topics()["__consumer_offsets"].config["cleanup.policy"] == "compact"
        store.alter_topic("__consumer_offsets", {"segment.bytes": 500, "min.cleanable.dirty.ratio": 0})
        with segstore.Consumer(store, group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([segstore.TopicPartition("t", 0)])
            for i in range(20):
                store.partition("t").append(b"x")
                consumer.commit({segstore.TopicPartition("t", 0): segstore.OffsetAndMetadata(i)})
        assert [s.error for s in store.sweep()] == [None]
    with segstore.open(store_dir) as store, segstore.Consumer(store, group_id="g") as consumer:
        assert consumer.committed(segstore.TopicPartition("t", 0)) == 19
