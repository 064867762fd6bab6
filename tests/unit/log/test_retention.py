"""Retention: which segments go, when their bytes are freed, and what readers see of it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from background import caught_up
from faults import NAMES, SYNCS, FailingFiles
from faulty import MODES, FaultyFiles
from partitions import Partition
from stores import START_MS, Clock, killed_at_each_call, logs, records, tree, value_of, values
from waiting import PATIENCE

import segstore
from segstore.errors import OffsetOutOfRangeError, ReadOnlyError
from segstore.files import Files
from segstore.storage.store.sweeper import Swept

SIZE = 100
SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}
HOUR = 3_600_000


def write(
    path: Path, n: int, config: dict[str, Any], clock: Clock, step: int = 1000, **options: Any
) -> segstore.Store:
    """Topic "t": `n` records in batches of their own, `step` ms apart, about five to a segment."""
    store = segstore.open(path, clock=clock, **options)
    store.create_topic("t", config={**SMALL, **config})
    log = store.partition("t")
    for i in range(n):
        log.append(value_of(i, SIZE), key=b"k%d" % i, timestamp=clock.now)
        clock.now += step
    return store


def stays(store: segstore.Store) -> list[bytes | None]:
    """What is left, which is the newest of what there was."""
    log = store.partition("t")
    found = values(log)
    assert found == [value_of(i, SIZE) for i in range(log.start_offset, log.end_offset)]
    return found


# --- which segments go ------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 999, 1000, 2500, 4000])
def test_by_size_all_above_the_bound_goes(store_dir: Path, kept: int) -> None:
    with write(store_dir, 23, {"retention.bytes": kept}, Clock()) as store:
        sizes = [log.stat().st_size for log in logs(store_dir)]
        swept = store.sweep()
        left = [log.stat().st_size for log in logs(store_dir)]
        log = store.partition("t")
        # Kafka: a segment goes where what is left without it is still at least retention.bytes.
        assert sum(left) >= min(kept, sum(sizes))
        assert not left[0] or sum(left) - left[0] < kept or left == sizes
        gone = len(sizes) - len([size for size in left if size])
        expected = [Swept("t", 0, gone, sum(sizes) - sum(left))] if gone else []
        assert list(swept) == expected
        assert log.end_offset == 23
        stays(store)
        assert store.sweep() == ()


AGES = {
    # age of the youngest record that must go, of the oldest that must stay, in records before the end
    "everything": (-1, 0),
    "nothing": (HOUR, 23),
    "ten-seconds": (10_000, 15),
}


@pytest.mark.parametrize(("retention", "most"), AGES.values(), ids=AGES.keys())
def test_by_age(store_dir: Path, retention: int, most: int) -> None:
    clock = Clock()
    with write(store_dir, 23, {"retention.ms": max(retention, 0)}, clock) as store:
        store.sweep()
        left = stays(store)
        log = store.partition("t")
        if not most:
            assert left == []
            assert log.start_offset == log.end_offset == 23
            assert log.append(b"after") == 23
        else:
            assert min(most, 10) <= len(left) <= most
            oldest = log.start_offset - 1
            assert log.start_offset == 0 or clock.now - (START_MS + oldest * 1000) > retention


def test_age_counts_from_the_largest_timestamp_of_a_segment(store_dir: Path) -> None:
    clock = Clock()
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={**SMALL, "retention.ms": 10_000})
        log = store.partition("t")
        for i in range(15):  # out of order: the first of the second segment is the youngest of all
            log.append(value_of(i, SIZE), timestamp=clock.now - 20_000 + (15_000 if i == 6 else 0))
        store.sweep()
        assert 5 <= log.start_offset <= 6
        assert [r.offset for r in log.read(log.start_offset)][-1] == 14


def test_without_timestamps_the_file_s_age_counts(store_dir: Path) -> None:
    clock = Clock()
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={**SMALL, "retention.ms": HOUR})
        for i in range(12):
            store.partition("t").append(value_of(i, SIZE), timestamp=-1)
        clock.now = os.stat(logs(store_dir)[-1]).st_mtime_ns // 1_000_000 + HOUR - 60_000
        assert store.sweep() == ()
        clock.now += 120_000
        assert store.sweep()[0].deleted_segments == 3
        assert store.partition("t").start_offset == 12


def test_stamps_ahead_of_the_clock_stay(store_dir: Path) -> None:
    clock = Clock()
    with write(store_dir, 12, {"retention.ms": 1000}, clock) as store:
        clock.now = START_MS - 365 * 24 * HOUR  # the clock was set back
        assert store.sweep() == ()
        assert len(stays(store)) == 12


NOT_SWEPT = {
    "no-bounds": {},
    "compact": {"cleanup.policy": "compact", "retention.ms": 1, "retention.bytes": 1},
    "neither": {"cleanup.policy": "", "retention.ms": 1, "retention.bytes": 1},
}


@pytest.mark.parametrize("config", NOT_SWEPT.values(), ids=NOT_SWEPT.keys())
def test_what_the_settings_do_not_ask_for(store_dir: Path, config: dict[str, Any]) -> None:
    clock = Clock()
    with write(store_dir, 12, config, clock) as store:
        clock.now += HOUR
        store.sweep()
        assert store.partition("t").start_offset == 0


@pytest.mark.kind("costly unit tests")
def test_a_broker_s_topic_is_never_swept(broker_partition: Partition, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(broker_partition.path, root / broker_partition.path.name)
    before = tree(root)
    with segstore.open(root, config={"log.retention.check.interval.ms": 1}) as store:
        assert store.sweep() == ()
        log = store.partition(broker_partition.topic, broker_partition.index)
        assert [r.offset for r in records(log)] == [e.offset for e in broker_partition.expected()]
    after = tree(root)
    assert [k for k in after if k.endswith(".log")] == [k for k in before if k.endswith(".log")]


def test_after_a_clean_close_partitions_are_opened_to_be_swept(store_dir: Path) -> None:
    clock = Clock()
    write(store_dir, 12, {"retention.ms": 1000}, clock).close()
    clock.now += HOUR
    with segstore.open(store_dir, clock=clock) as store:
        assert store.sweep()[0].deleted_segments > 1
        assert store.partition("t").start_offset == 12


def test_the_start_never_moves_back(store_dir: Path) -> None:
    clock = Clock()
    with write(store_dir, 23, {"retention.bytes": 1000}, clock) as store:
        store.sweep()
        start = store.partition("t").start_offset
        store.alter_topic("t", {"retention.bytes": None})
        store.sweep()
        assert store.partition("t").start_offset == start > 0
    for mode in ("rw", "r", "rw"):
        with segstore.open(store_dir, mode=mode, clock=clock) as store:
            assert store.partition("t").start_offset == start


# --- rolling ---------------------------------------------------------------------------------------


def test_an_idle_segment_rolls_by_the_clock(store_dir: Path) -> None:
    clock = Clock()
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={"segment.ms": HOUR, "retention.ms": 30 * 24 * HOUR})
        log = store.partition("t")
        log.append(b"old", timestamp=1)  # however old its records say that it is
        clock.now += HOUR
        store.sweep()
        assert len(logs(store_dir)) == 1
        assert log.start_offset == 1  # by age, not by the roll
        log.append(b"new", timestamp=clock.now)
        store.sweep()
        clock.now += HOUR
        store.sweep()
        assert len(logs(store_dir)) == 1
        clock.now += 1
        store.sweep()
        assert len(logs(store_dir)) == 2
        clock.now += HOUR * 2
        store.sweep()
        assert len(logs(store_dir)) == 2  # an empty one does not roll


@pytest.mark.parametrize("jitter", [2**63 - 1, 2000, 999])
def test_jitter_takes_off_less_than_all(store_dir: Path, jitter: int) -> None:
    """Else each record had a segment of its own, where it is more than segment.ms."""
    clock = Clock()
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config={"segment.ms": 1000, "segment.jitter.ms": jitter})
        for _ in range(5):
            store.partition("t").append(b"x")
            store.sweep()
        assert len(logs(store_dir, "t-0")) == 1
        store.alter_topic("t", {"segment.ms": 1})
        store.partition("t").append(b"x")
        assert len(logs(store_dir, "t-0")) == 1
        clock.now += 1001
        store.partition("t").append(b"x")
        assert len(logs(store_dir, "t-0")) == 2


def test_a_clock_that_was_set_back_begins_the_wait_anew(store_dir: Path) -> None:
    clock = Clock()
    with write(store_dir, 1, {"segment.ms": HOUR, "retention.ms": 30 * 24 * HOUR}, clock) as store:
        clock.now -= 10 * HOUR
        store.sweep()
        clock.now += HOUR
        store.sweep()
        assert len(logs(store_dir)) == 1
        clock.now += 1
        store.sweep()
        assert len(logs(store_dir)) == 2


# --- bytes and names ---------------------------------------------------------------------------------


def test_files_wait_for_their_delay_as_deleted(store_dir: Path) -> None:
    clock = Clock()
    config = {"retention.bytes": 1000, "file.delete.delay.ms": 60_000}
    with write(store_dir, 23, config, clock) as store:
        before = len(logs(store_dir))
        gone = store.sweep()[0].deleted_segments
        assert gone == before - len(logs(store_dir)) > 0
        assert len(list(store_dir.rglob("*.log.deleted"))) == gone
        assert segstore.check(store_dir) == []  # of an open store
        clock.now += 59_999
        store.sweep()
        assert len(list(store_dir.rglob("*.log.deleted"))) == gone
        clock.now += 1
        store.sweep()
        assert not list(store_dir.rglob("*.deleted"))
        for i in range(20):
            store.partition("t").append(value_of(23 + i, SIZE))
        store.sweep()
        assert list(store_dir.rglob("*.deleted"))
    assert not list(store_dir.rglob("*.deleted"))


def test_a_topic_may_be_deleted_while_its_files_wait(store_dir: Path) -> None:
    clock = Clock()
    config = {"retention.bytes": 1000, "file.delete.delay.ms": 60_000}
    with write(store_dir, 23, config, clock) as store:
        store.sweep()
        store.delete_topic("t")
        clock.now += HOUR
        assert store.sweep() == ()
    assert not list(store_dir.rglob("*.log*"))


def test_what_was_read_stays(store_dir: Path) -> None:
    with write(store_dir, 23, {"retention.bytes": 0}, Clock()) as store:
        log = store.partition("t")
        held = log.read(0)
        store.sweep()
        assert [r.value for r in held] == [value_of(i, SIZE) for i in range(len(held))]
        with pytest.raises(OffsetOutOfRangeError, match="begins and ends at 23"):
            log.read(0)


@pytest.mark.kind("programs")
def test_a_reader_in_another_process_that_comes_late_is_told(store_dir: Path) -> None:
    program = """
import sys, segstore
from segstore.errors import OffsetOutOfRangeError
with segstore.open(sys.argv[1], mode="r") as store:
    log = store.partition("t")
    first = log.read(0, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        log.read(first.next_offset)
    except OffsetOutOfRangeError as error:
        print(error.offset, error.start, error.end, first[0].value[:1].decode())
"""
    clock = Clock()
    with write(store_dir, 23, {"retention.bytes": 0}, clock) as store:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(store_dir)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        store.sweep()
        out, _ = child.communicate("\n")
        assert out.split() == ["1", "23", "23", "0"]
        assert child.returncode == 0


def test_readers_and_appends_go_on_during_sweeps(store_dir: Path) -> None:
    clock = Clock()
    done, errors = threading.Event(), []
    with write(store_dir, 5, {"retention.bytes": 2000}, clock) as store:
        log = store.partition("t")

        def read() -> None:
            at = 0
            while not done.is_set():
                seen = store.publications
                if at == log.end_offset:
                    store.wait(seen, 100)
                try:
                    for record in log.read(at):
                        if record.value != value_of(record.offset, SIZE):
                            errors.append(record)
                        at = record.offset + 1
                except OffsetOutOfRangeError as error:
                    at = error.start

        readers = [threading.Thread(target=read) for _ in range(2)]
        [reader.start() for reader in readers]
        for i in range(5, 200):
            assert log.append(value_of(i, SIZE)) == i
            if i % 7 == 0:
                store.sweep()
        done.set()
        [reader.join() for reader in readers]
        assert not errors
        assert log.size < 4000


# --- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.kind("kills")
def test_killed_at_each_call_of_a_sweep(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path / "s", 23, {"retention.bytes": 2000}, clock).close()

    def sweep(files: Files, path: Path) -> None:
        segstore.open(path, files=files, clock=clock).sweep()

    starts = set()
    for nth, path in killed_at_each_call(tmp_path / "s", tmp_path, sweep):
        with segstore.open(path, clock=clock) as store:
            log = store.partition("t")
            assert log.end_offset == 23, nth
            starts.add(log.start_offset)
            stays(store)
            store.sweep()
            assert 2000 <= log.size < 4000
        assert segstore.check(path) == [], nth
        assert not list(path.rglob("*.deleted"))
    assert len(starts) == 2  # before and after, nothing in between


def write_unsynced(path: Path, config: dict[str, Any], **options: Any) -> segstore.Store:
    """`write` 23 records, of which the last is not synced."""
    clock = Clock()
    store = write(path, 22, config, clock, **options)
    caught_up(store)
    log = store.partition("t")
    log.flush()
    log.append(value_of(22, SIZE), timestamp=clock.now)
    assert log.partition_for_write().recovery_point == 22
    return store


@pytest.mark.parametrize("mode", MODES)
def test_a_power_cut_leaves_the_bytes_that_retention_keeps(
    tmp_path: Path, rng: random.Random, mode: str
) -> None:
    """The record that a power cut took had counted, and a segment was removed for it."""
    with write_unsynced(tmp_path / "before", {}) as store:
        sizes = [log.stat().st_size for log in logs(tmp_path / "before")]
    kept = sum(sizes[2:])  # to the byte, with the last record
    files = FaultyFiles(tmp_path)
    store = write_unsynced(tmp_path / "s", {"retention.bytes": kept}, files=files)
    assert store.sweep()[0].deleted_segments == 2
    files.power_cut(mode, rng)
    store.engine.abandon()
    with segstore.open(tmp_path / "s") as store:
        assert store.partition("t").size == kept
        stays(store)
    assert segstore.check(tmp_path / "s") == []


SYNCED_BY_RETENTION = {
    # settings, and the offset below which a sweep leaves all durable, in a log of 23 records
    "by size": ({"retention.bytes": 1000}, 23),
    "by size, and nothing goes": ({"retention.bytes": 100_000}, 22),
    "by age": ({"retention.ms": 12_000}, 22),
}


@pytest.mark.parametrize(("config", "durable"), SYNCED_BY_RETENTION.values(), ids=SYNCED_BY_RETENTION.keys())
def test_retention_syncs_the_log_s_end_only_for_bytes(
    store_dir: Path, config: dict[str, Any], durable: int
) -> None:
    with write_unsynced(store_dir, config) as store:
        store.sweep()
        assert store.partition("t").partition_for_write().recovery_point == durable


def test_a_sync_that_fails_keeps_the_segments_that_retention_would_remove(store_dir: Path) -> None:
    """Durable bytes are not given up for bytes that could not be synced."""
    files = FailingFiles(SYNCS, OSError(errno.EIO, os.strerror(errno.EIO)), nth=0)
    with write_unsynced(store_dir, {"retention.bytes": 1000}, files=files) as store:
        before = tree(store_dir / "t-0")
        files.arm()
        for told in ("Input/output error", "fenced"):
            assert told in str(store.sweep()[0].error)
            assert store.partition("t").start_offset == 0
            assert tree(store_dir / "t-0") == before
    with segstore.open(store_dir) as store:
        assert store.sweep()[0].deleted_segments > 0


def test_an_error_in_one_partition_marks_it_and_the_others_are_swept(store_dir: Path) -> None:
    clock, files = Clock(), FailingFiles(NAMES, OSError(errno.EIO, os.strerror(errno.EIO)), nth=0)
    with segstore.open(store_dir, clock=clock, files=files) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, config={**SMALL, "retention.bytes": 1000})
            for i in range(23):
                store.partition(topic).append(value_of(i, SIZE))
        files.arm()
        swept = {done.topic: done for done in store.sweep()}
        assert "Input/output error" in str(swept["a"].error)
        assert swept["b"] == swept["b"]._replace(error=None)
        assert swept["b"].deleted_segments > 0
        states = store.sweep_states()
        assert states["a", 0].error == swept["a"].error
        assert states["b", 0].error is None
        with segstore.open(store_dir, mode="r") as reader:
            assert reader.sweep_states() == states
        log = store.partition("a")
        assert log.end_offset == 23
        assert values(log) == [value_of(i, SIZE) for i in range(log.start_offset, 23)]
        store.sweep()
        assert store.sweep_states()["a", 0].error is None


def test_the_sweeper_sweeps_by_itself(store_dir: Path) -> None:
    clock, swept = Clock(), threading.Event()

    class Seen(Files):
        def rename(self, source: Any, target: Any) -> None:
            super().rename(source, target)
            if str(target).endswith(".log.deleted"):
                swept.set()

    config = {"log.retention.check.interval.ms": 1}
    with segstore.open(store_dir, clock=clock, files=Seen(), config=config) as store:
        store.create_topic("t", config={**SMALL, "retention.bytes": 1000})
        for i in range(23):
            store.partition("t").append(value_of(i, SIZE))
        assert swept.wait(PATIENCE)
        assert store.partition("t").start_offset > 0


def test_who_may_not_sweep(store_dir: Path) -> None:
    write(store_dir, 3, {}, Clock()).close()
    with segstore.open(store_dir, mode="r") as store, pytest.raises(ReadOnlyError, match="mode"):
        store.sweep()
