"""Promise: C's syncs and Python's never overlap, and each leaves to the other the flushes that it can't
make.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, HookedFiles
from group_commits import DURABLE, Slow, closed, flusher_of, in_threads, opened

import segstore
from segstore._native import ffi, lib, seg_tail_flush
from segstore.files import Handle
from segstore.storage.log.tail import ALL


def test_python_waits_for_a_sync_of_c(store_dir: Path) -> None:
    files = Slow()
    files.log = log = opened(store_dir, files, {})
    flusher = flusher_of(log)
    log.append(b"by C")
    assert log._own is not None
    assert log._own.tail.may_be_open
    files.go.clear()
    files.begun.clear()
    seen: list[int] = []
    threads = in_threads(log.flush)
    files.begun.wait()
    assert flusher._commit.word % 2 == 1
    threads += in_threads(lambda: flusher.without_syncs(lambda: seen.append(files.under_way)))
    threads[1].join(0.1)
    assert seen == []
    files.go.set()
    for thread in threads:
        thread.join()
    assert seen == [0]
    closed(log)


def test_c_waits_for_a_sync_of_python(store_dir: Path) -> None:
    files = Slow()
    files.log = log = opened(store_dir, files, {})
    flusher = flusher_of(log)
    log.append(b"by C")
    inside, go = threading.Event(), threading.Event()

    def rename() -> None:
        inside.set()
        go.wait()
        assert files.under_way == 0

    threads = in_threads(lambda: flusher.without_syncs(rename))
    inside.wait()
    before = files.syncs
    threads += in_threads(log.flush, log.flush)
    threads[1].join(0.1)
    assert files.syncs == before
    go.set()
    for thread in threads:
        thread.join()
    assert flusher.recovery_point == 3
    assert files.most == 1
    closed(log)


def test_a_close_tells_what_a_sync_of_c_told_nobody(store_dir: Path) -> None:
    """The tail is taken back while C syncs for an append, as by a roll of another thread."""

    class Taking(HookedFiles):
        log: segstore.PartitionLog | None = None

        def sync(self, handle: Handle) -> None:
            super().sync(handle)
            if self.log is not None and self.log._own is not None:
                self.log._own.tail.pause()

    files = Taking()
    log = opened(store_dir, files, DURABLE)
    log.append(b"by C")
    files.log = log
    log.append(b"told to nobody")
    files.log = None
    assert flusher_of(log).recovery_point == 4
    closed(log)
    assert segstore.check(store_dir) == []


def test_what_a_roll_leaves_is_synced_by_python(store_dir: Path) -> None:
    """The sealed segment, its indexes, the snapshot and the directory are synced before C syncs again."""
    files = CountingFiles()
    log = opened(store_dir, files, {})
    partition = log.partition_for_write()
    assert partition.roll_from(partition.view)
    for n in range(3):
        log.append(b"%d" % n)
        log.flush()
    assert log._own is not None
    assert log._own.tail.may_be_open
    assert lib.seg_tail_syncs(log._own.tail.native.c)
    log.append(b"by C")
    files.clear()
    log.flush()
    assert files.counts() == {"sync": 1}
    closed(log)


def test_a_store_whose_files_sync_in_python(store_dir: Path) -> None:
    """Without `native_sync` C never syncs."""

    class Own(segstore.files.Files):
        syncs = 0

        def sync(self, handle: Handle) -> None:
            Own.syncs += 1
            super().sync(handle)

    with segstore.open(store_dir, files=Own()) as store:
        store.create_topic("t", 1, DURABLE)
        log = store.partition("t")
        for n in range(3):
            log.append(b"%d" % n)
        before = Own.syncs
        for n in range(5):
            log.append(b"%d" % n)
        assert Own.syncs - before == 5


def test_a_tail_that_is_just_being_made_is_not_flushed_by_c() -> None:
    """It has no commit then."""
    c, here = ffi.new("seg_tail *"), ffi.new("uint8_t[1]", b"\1")
    c.owner = here
    assert lib.seg_tail_flush(c, 1) == lib.SEG_SLOW


@pytest.mark.parametrize("arguments", [(), (0,), (0, 1, 2), (None, 1), (0, "1"), (0, 2**63)])
def test_what_the_call_of_c_that_flushes_does_not_take(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        seg_tail_flush(*arguments)


def test_the_call_of_c_that_flushes_takes_an_offset(store_dir: Path) -> None:
    files = CountingFiles()
    log = opened(store_dir, files, {})
    tail = log.partition_for_write().tail.native
    assert tail is not None
    log.append(b"below the offset")
    files.clear()
    assert seg_tail_flush(tail.address, 2) == 0
    assert files.count("sync") == 0
    assert seg_tail_flush(tail.address, 3) == seg_tail_flush(tail.address, ALL) == 0
    assert files.count("sync") == 1
    log.append(b"behind it")
    assert seg_tail_flush(tail.address, ALL) == 0
    assert files.count("sync") == 2
    tail.pause()
    assert seg_tail_flush(tail.address, ALL) == lib.SEG_SLOW
    closed(log)


def test_a_commit_that_is_closed_and_never_opened() -> None:
    """An interrupt may leave it so: whoever waits looks again after a second."""
    c = ffi.new("seg_commit *")
    assert lib.seg_commit_wait(c) == 0
    assert lib.seg_commit_close(c) == 0
    assert lib.seg_commit_close(c) == 0
    assert lib.seg_commit_wait(c) == lib.SEG_SLOW
    lib.seg_commit_open(c)
    assert lib.seg_commit_wait(c) == 0
