"""Sweeps where something is wrong: files that stay, notes that are damaged, defects, clocks set back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from cli import run
from compaction import clean, open_compacted, put, roll
from faults import FailingFiles
from stores import START_MS, Clock

import segstore

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
        view = log._writing().view
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
    step, topics = store._side.sweeper._compaction, {"bad"}
    original = step.run

    def fail(key: tuple[str, int], now: int) -> Any:
        if key[0] in topics:
            raise error
        return original(key, now)

    monkeypatch.setattr(step, "run", fail)
    return topics


def background(store: segstore.Store) -> None:
    sweeper = store._side.sweeper
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
