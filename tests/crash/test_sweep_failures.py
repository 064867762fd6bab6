"""Sweeps under difficulties: files that can't be removed, damaged sweep states, defects, clocks that are set
back.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from background import caught_up
from cli import run
from compaction import (
    FailingUnsynced,
    Unsynced,
    clean,
    latest,
    merge,
    open_compacted,
    put,
    records,
    roll,
    split,
)
from elsewhere import elsewhere
from faults import MUTATING, FailingFiles
from stores import START_MS, Clock, in_child, killed

import segstore
from segstore.storage.cleaner import cleaner
from segstore.storage.segment.segment import Segment

pytestmark = pytest.mark.kind("faults")

SMALL = {"segment.bytes": 300, "retention.bytes": 500, "file.delete.delay.ms": 60_000}
COMPACT = {"segment.bytes": 300, "cleanup.policy": "compact", "file.delete.delay.ms": 0}
BY_HAND = {"log.cleaner.threads": 0}


def fill(store: segstore.Store, *topics: str, n: int = 20) -> None:
    for topic in topics:
        for i in range(n):
            store.partition(topic).append(b"x" * 100, key=b"k%d" % (i % 3))


def buried(path: Path, topic: str) -> int:
    return len(list((path / f"{topic}-0").glob("*.deleted")))


@pytest.mark.parametrize(
    "text",
    [
        b"[",
        b"{}",
        b"3",
        b'[["t",0,5]]',
        b'[["t",0,[]]]',
        b'[["t",0,{"swept_ms":1e400}]]',
        b'[["t",0,{"swept_ms":1e30}]]',
        b'[["t",0,{"swept_ms":-99999999999999}]]',
        b'[["t",0,{"deleted_bytes":-5}]]',
        b'[["t",0,{"error":"a\\u0000\\ud800b"}]]',
        b'[["t",null,{}]]',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_note_of_sweeps_is_none(store_dir: Path, text: bytes) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t")
    note = store_dir / ".segstore" / "sweeps.json"
    note.write_bytes(text)
    for args in (["stats"], ["stats", "--prometheus"], ["topics"]):
        told = run(*args, "-s", store_dir)
        assert told.exit_code == 0, told.stderr
    with segstore.open(store_dir) as store:
        store.sweep()
        assert store.stats()[0].swept_ms == -1


def test_a_file_that_cannot_be_removed_stops_no_sweep_and_no_close(store_dir: Path) -> None:
    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "bad-0" in str(args[0]) and str(args[0]).endswith(".deleted"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(args[0]))

    clock = Clock()
    files = FailingFiles({"unlink"}, fault, times=1 << 30)
    with segstore.open(store_dir, clock=clock, files=files, config=BY_HAND) as store:
        for name in ("bad", "good"):
            store.create_topic(name, config=SMALL)
        fill(store, "bad", "good")
        store.sweep()
        clock.now += 60_000
        fill(store, "bad", "good")
        assert [done.error for done in store.sweep()] == [None, None]
        assert buried(store_dir, "bad") > buried(store_dir, "good")
    assert buried(store_dir, "good") == 0
    with segstore.open(store_dir) as store:
        assert store.recovered == ()
        assert store.partition("bad").end_offset == 40


def test_a_clock_that_is_set_back_keeps_no_files(store_dir: Path) -> None:
    clock = Clock()
    with segstore.open(store_dir, clock=clock, config=BY_HAND) as store:
        store.create_topic("t", config=SMALL)
        fill(store, "t")
        clock.now += 10**12
        store.sweep()
        clock.now = START_MS
        store.sweep()
        assert buried(store_dir, "t") > 0
        clock.now += 59_999
        store.sweep()
        assert buried(store_dir, "t") > 0
        clock.now += 1
        store.sweep()
        assert buried(store_dir, "t") == 0


@pytest.mark.parametrize("limit", ["retention.ms", "retention.bytes"])
def test_an_emptied_segment_goes_with_the_next(store_dir: Path, limit: str) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock, cleanup_policy="compact,delete", segment_bytes=400) as store:
        log = store.partition("t")
        for value in (b"a", b"b"):
            put(log, *[(b"k%d" % i, value * 40) for i in range(4)])
            roll(store)
            put(log, *[(b"%s%d" % (value, i), value * 40) for i in range(4)])
            roll(store)
        clean(store)
        view = log.partition_for_write().view
        assert [segment.size > 0 for segment in view.segments] == [False, True, True, True, False]
        store.alter_topic("t", {limit: 10**6})
        store.sweep()
        assert log.start_offset == 0
        clock.now += 10**6 + 1
        store.alter_topic("t", {limit: 10**6 if limit == "retention.ms" else view.segments[1].size})
        store.sweep()
        assert log.start_offset == (16 if limit == "retention.ms" else 12)


def broken(store: segstore.Store, monkeypatch: pytest.MonkeyPatch, error: Exception) -> set[str]:
    """Names of topics whose compaction fails."""
    step, topics = store.engine.sweeper._compaction, {"bad"}
    original = step.run

    def fail(key: tuple[str, int], now: int) -> Any:
        if key[0] in topics:
            raise error
        return original(key, now)

    monkeypatch.setattr(step, "run", fail)
    return topics


def background(store: segstore.Store) -> None:
    sweeper = store.engine.sweeper
    for step in (sweeper._retention, sweeper._compaction):
        sweeper._run(step)


def test_a_defect_met_in_one_partition_leaves_the_others(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        for name in ("bad", "good"):
            store.create_topic(name, config=COMPACT)
        fill(store, "bad", "good")
        broken(store, monkeypatch, AssertionError())
        found = {done.topic: done for done in store.sweep()}
        assert found["bad"].error == "AssertionError"
        assert found["good"].compacted_records > 0


def test_an_error_is_shown_until_that_very_step_goes_well(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"cleanup.policy": "compact,delete", "retention.bytes": 500}
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("bad", config=COMPACT | policy)
        topics = broken(store, monkeypatch, OSError(errno.EIO, "no luck"))
        for _ in range(3):
            fill(store, "bad")
            background(store)
            (stats,) = store.stats()
            assert "no luck" in str(stats.error)
        assert stats.deleted_bytes > 0
        topics.clear()
        store.sweep()
        assert store.stats()[0].error is None
        topics.add("bad")
        fill(store, "bad")
        background(store)
        store.alter_topic("bad", {"cleanup.policy": "delete"})
        background(store)
        assert store.stats()[0].error is None


def test_a_topic_made_anew_is_not_the_one_that_failed(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("bad", config=COMPACT)
        fill(store, "bad")
        topics = broken(store, monkeypatch, OSError(errno.EIO, "no luck"))
        background(store)
        assert store.stats()[0].error
        topics.clear()
        store.delete_topic("bad")
        store.create_topic("bad", config=COMPACT)
        fill(store, "bad")
        background(store)
        (stats,) = store.stats()
        assert (stats.error, stats.compacted_bytes > 0) == (None, True)


@pytest.mark.parametrize("make", [merge, split], ids=["merged", "split"])
def test_interrupted_at_each_call_and_gone_on_with(tmp_path: Path, make: Any) -> None:
    """Ctrl-C in the midst of a swap: nothing that is superseded comes back, now or when it is reopened."""
    make(tmp_path / "base")
    files = FailingUnsynced(MUTATING, KeyboardInterrupt(), nth=0)
    for nth in range(1, 100):
        path = killed(tmp_path / "base", tmp_path / f"at-{nth}")
        with segstore.open(path, files=files, clock=Clock(step=1), config=BY_HAND) as store:
            log, expected = store.partition("t"), latest(store.partition("t"))
            files.arm(nth)
            with contextlib.suppress(KeyboardInterrupt):
                clean(store)
            ended = files.hits == 0
            files.arm(0)
            assert latest(log) == expected, nth
            store.alter_topic("t", {"delete.retention.ms": 0})
            put(log, *[(key, None) for key in expected])
            for _ in range(4):
                put(log, (b"new", b"x"))
                roll(store)
                with contextlib.suppress(segstore.StorageError):  # only reopening can finish the swap
                    clean(store)
            assert latest(log) == {b"new": b"x"}, nth
        with segstore.open(path, files=Unsynced()) as store:
            assert latest(store.partition("t")) == {b"new": b"x"}, nth
        assert segstore.check(path) == [], nth
        if ended:
            return
    raise AssertionError("no end")


def test_many_small_segments_under_a_small_limit_of_descriptors(store_dir: Path) -> None:
    with segstore.open(store_dir, files=Unsynced(), config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT | {"segment.bytes": 1 << 20})
        for i in range(200):
            put(store.partition("t"), (b"k%d" % (i % 5), b"%d" % i))
            roll(store)
        expected = latest(store.partition("t"))

    def sweep(tell: Any) -> None:
        gc.collect()  # what older tests have left
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 80,) * 2)
        with segstore.open(store_dir, files=Unsynced(), config=BY_HAND | {"max.open.files": 60}) as store:
            assert [done.error for done in store.sweep()] == [None]
            assert len(os.listdir("/proc/self/fd")) < before + 70

    in_child(sweep)
    with segstore.open(store_dir) as store:
        assert store.stats()[0].segments < 30
        assert latest(store.partition("t")) == expected


def test_a_topic_made_anew_while_its_name_was_compacted(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ = cleaner._Pass.run

    def made_anew(it: Any) -> Any:
        done = run_(it)
        store.delete_topic("t")
        store.create_topic("t", config=COMPACT)
        return done

    monkeypatch.setattr(cleaner._Pass, "run", made_anew)
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        fill(store, "t")
        store.sweep()
        assert store.engine._checkpoints.cleaner_offsets.get(("t", 0)) is None


def test_a_reader_in_another_process_lets_go_of_what_was_swept(store_dir: Path) -> None:
    clock = Clock(step=1)
    config = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
    with open_compacted(store_dir, clock, Unsynced()) as store, segstore.open(store_dir, mode="r") as other:
        store.alter_topic("t", config | {"retention.bytes": 2000})
        for _ in range(30):
            fill(store, "t", n=12)
            store.sweep()
            log = other.partition("t")
            while log.read(log.start_offset).next_offset < log.end_offset - 3:
                store.partition("t").delete_records(log.start_offset + 3)
        log.read(log.start_offset)
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        gone = [link for link in map(_read_link, links) if str(store_dir) in link and "deleted" in link]
        assert len(gone) < 5


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # the store's own threads open files and close them
        return ""


def test_indexes_of_what_was_compressed_anew(store_dir: Path) -> None:
    """Each batch gets another size: what lies behind it begins elsewhere."""
    with open_compacted(store_dir, segment_bytes=10_000, index_interval_bytes=1) as store:
        log = store.partition("t")
        for i in range(8):
            put(log, *[(b"k%d" % (i * 3 + j), b"x" * 100) for j in range(4)])
        roll(store)
        store.alter_topic("t", {"compression.type": "gzip"})
        clean(store)
    (index, _) = sorted((store_dir / "t-0").glob("*.index"))
    assert index.stat().st_size == 7 * 8
    assert segstore.check(store_dir) == []


def test_a_reader_in_the_midst_of_a_swap(store_dir: Path, tmp_path: Path) -> None:
    """The merged segment has its name, those that it is made of still have theirs: nothing is damage, and a
    copy waits.
    """
    found: list[Any] = []

    class Looking(Unsynced):
        def rename(self, source: Any, target: Any) -> None:
            super().rename(source, target)
            if str(source).endswith((".log.swap", ".log")):
                with segstore.open(store_dir, mode="r") as other:
                    log = other.partition("t")
                    held = [(r.offset, r.key) for at in range(log.end_offset) for r in log.read(at)]
                    found.append(sorted(set(held)))

    with open_compacted(store_dir, files=Looking(), segment_bytes=400) as store:
        log = store.partition("t")
        for i in range(12):
            put(log, (b"a%d" % i, b"x" * 50))
        for i in range(12):
            put(log, (b"a%d" % i, b"y" * 50), (b"b%d" % i, b"y" * 50))
        roll(store)
        clean(store)
        store.alter_topic("t", {"segment.bytes": 100_000})
        put(log, (b"b0", b"z"))
        roll(store)
        found.clear()
        clean(store)
        expected = [(r.offset, r.key) for r in records(log)]
    assert len(found) > 5
    for one in found:
        assert set(expected) <= set(one) <= {*expected, (13, b"b0")}


def test_a_topic_that_loses_all_while_its_compaction_begins(store_dir: Path) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        fill(store, "t")
        caught_up(store)
        partition = store.partition("t").partition_for_write()
        flush = partition.flusher.flush

        def lose(offset: int) -> None:
            flush(offset)
            partition.flusher.flush = flush
            elsewhere(lambda: store.partition("t").delete_records(-1))

        partition.flusher.flush = lose  # type: ignore[method-assign]
        assert store.sweep() == ()
        assert store.stats()[0].error is None


def test_a_look_for_a_time_in_a_topic_that_is_made_anew(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read by then is another topic's: that is no damage."""
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t")
        fill(store, "t")
        log, handle = store.partition("t"), Segment.handle

        def anew(segment: Segment) -> Any:
            monkeypatch.setattr(Segment, "handle", handle)
            store.delete_topic("t")
            store.create_topic("t")
            return segment.handle

        monkeypatch.setattr(Segment, "handle", property(anew))
        with pytest.raises(segstore.StoreClosedError):
            log.offset_for_time(0)
