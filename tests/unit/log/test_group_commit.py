"""Promise: what a flush has returned for is synced, and one sync serves all that wait."""

from __future__ import annotations

import errno
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles, HookedFiles
from group_commits import DURABLE, THREADS, Slow, closed, flusher_of, in_threads, opened, profiled
from group_commits import way as way

import segstore
from segstore import StorageError
from segstore.files import Files, Handle

EACH = 40


# --- calls ----------------------------------------------------------------------------------------


def test_one_call_of_c_appends_and_syncs(store_dir: Path) -> None:
    """What Python does behind it, the next thread waits for."""
    log = opened(store_dir, Files(), DURABLE)
    for n in range(3):
        python, native = profiled(partial(log.append, b"value", b"key"))
        assert native == ["seg_tail_append"]
        assert python == ["append", "append_short"]
        assert flusher_of(log).recovery_point == 3 + n
    closed(log)


def test_one_call_of_c_flushes(store_dir: Path) -> None:
    log = opened(store_dir, Files(), {})
    log.append(b"value")
    python, native = profiled(log.flush)
    assert native == ["seg_tail_flush"]
    assert python == ["flush", "flush"]
    assert flusher_of(log).recovery_point == 3
    closed(log)


def test_one_write_and_one_sync(store_dir: Path, way: str) -> None:
    files = CountingFiles()
    log = opened(store_dir, files, DURABLE)
    files.clear()
    for n in range(20):
        log.append(b"%d" % n)
    writes = {"pwrite", "pwritev"}
    assert [name for name, _ in files.calls if name in writes | {"sync"}][1::2] == ["sync"] * 20
    assert files.count("sync") == files.count(*writes) == 20
    closed(log)


@pytest.mark.parametrize("messages", [2, 5])
def test_flush_messages_counts(store_dir: Path, way: str, messages: int) -> None:
    files = CountingFiles()
    log = opened(store_dir, files, {"flush.messages": messages})
    files.clear()
    for n in range(10 * messages):
        log.append(b"%d" % n)
        assert log.end_offset - flusher_of(log).recovery_point == (n + 1) % messages
    assert files.count("sync") == 10
    closed(log)


def test_one_sync_serves_all_that_wait(store_dir: Path, way: str) -> None:
    files = Slow()
    files.log = log = opened(store_dir, files, {})
    files.go.clear()
    files.begun.clear()
    before = files.syncs
    log.append(b"of the first sync")
    threads = in_threads(log.flush)
    files.begun.wait()

    def durably() -> None:
        offset = log.append(b"of the second")
        log.flush()
        assert files.synced > offset

    threads += in_threads(*[durably] * THREADS)
    while log.end_offset < 3 + THREADS:
        threads[-1].join(0.01)
    files.go.set()
    for thread in threads:
        thread.join()
    assert files.most == 1
    assert files.syncs - before == 2
    assert flusher_of(log).recovery_point == log.end_offset == 3 + THREADS
    closed(log)


def test_each_that_waits_is_woken_by_the_one_before(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is forgotten looks again after a second, and its flush takes the long way then."""
    files = Slow()
    log = opened(store_dir, files, {})
    tail, short = log.partition_for_write().tail, list[bool]()
    flush = tail.flush

    def noted() -> bool:
        short.append(flush())
        return short[-1]

    monkeypatch.setattr(tail, "flush", noted)
    commit = flusher_of(log)._commit
    log.append(b"for all")
    files.go.clear()
    files.begun.clear()
    threads = in_threads(log.flush)
    files.begun.wait()
    threads += in_threads(*[log.flush] * THREADS)
    while commit.waiting < THREADS:
        threads[-1].join(0.01)
    files.go.set()
    for thread in threads:
        thread.join()
    assert short == [True] * (1 + THREADS)
    assert (commit.waiting, commit.served) == (0, THREADS)
    closed(log)


LONG_NS = 600 * 10**9
"""More than a test takes."""


@pytest.mark.parametrize("config", [{}, DURABLE])
def test_a_sync_waits_for_those_whom_the_last_one_served(store_dir: Path, config: dict[str, Any]) -> None:
    files = Slow()
    files.log = log = opened(store_dir, files, config)
    commit, before = flusher_of(log)._commit, files.syncs
    commit.served, commit.patience = THREADS - 1, LONG_NS

    def durably() -> None:
        offset = log.append(b"one of many")
        if not config:
            log.flush()
        assert files.synced > offset

    threads = in_threads(*[durably] * (THREADS - 1))
    while commit.waiting < THREADS - 2 and files.syncs == before:
        threads[0].join(0.01)
    assert files.syncs == before
    threads += in_threads(durably)
    for thread in threads:
        thread.join()
    assert files.syncs - before == 1
    assert flusher_of(log).recovery_point == log.end_offset == 2 + THREADS
    assert (commit.served, commit.waiting) == (THREADS - 1, 0)
    assert 0 <= commit.patience <= 250_000  # half of that sync, of which a slow one is worth no more
    closed(log)


def test_half_of_a_sync_is_waited_for_the_next_one_where_all_came(store_dir: Path) -> None:
    class Long(HookedFiles):
        def sync(self, handle: Handle) -> None:
            super().sync(handle)
            time.sleep(0.0005)  # half of which is the most

    log = opened(store_dir, Long(), DURABLE)
    commit = flusher_of(log)._commit
    commit.served = commit.patience = 0
    log.append(b"nobody else was to come")
    assert commit.patience == 250_000
    closed(log)


def test_a_sync_does_not_wait_for_those_who_stay_away(store_dir: Path) -> None:
    files = Slow()
    log = opened(store_dir, files, DURABLE)
    commit, before = flusher_of(log)._commit, files.syncs
    commit.served, commit.patience = THREADS, 1000
    log.append(b"alone")
    assert (commit.served, files.syncs - before) == (0, 1)
    commit.patience = LONG_NS
    log.append(b"alone again")
    assert files.syncs - before == 2
    closed(log)


def test_a_sync_of_python_ends_the_wait_for_others(store_dir: Path) -> None:
    files = Slow()
    log = opened(store_dir, files, {})
    flusher, seen = flusher_of(log), list[int]()
    commit = flusher._commit
    commit.served, commit.patience = 1000, LONG_NS
    log.append(b"by C")
    threads = in_threads(log.flush)
    while commit.word % 2 == 0 and threads[0].is_alive():
        threads[0].join(0.01)
    flusher.without_syncs(lambda: seen.append(commit.word % 2))
    threads[0].join()
    assert seen == [0]
    assert flusher.recovery_point == log.end_offset
    closed(log)


@pytest.mark.parametrize("config", [{}, DURABLE, {"segment.bytes": 2000}, {"segment.bytes": 2000} | DURABLE])
def test_nothing_is_told_before_it_is_synced(store_dir: Path, way: str, config: dict[str, Any]) -> None:
    """Threads that append and flush, through rolls: what a thread was told of is below the end at which a
    later sync began.
    """
    files = Slow()
    files.log = log = opened(store_dir, files, config)
    wrong: list[int] = []

    def run() -> None:
        for n in range(EACH):
            offset = log.append(b"%d" % n * 20)
            if n % 7 == 3:
                log.append_batch([b"more"] * 3)
            if not config.get("flush.messages"):
                log.flush()
            if files.synced <= offset or flusher_of(log).recovery_point <= offset:
                wrong.append(offset)

    for thread in in_threads(*[run] * THREADS):
        thread.join()
    assert wrong == []
    assert log.end_offset == 2 + THREADS * (EACH + 3 * len(range(3, EACH, 7)))
    closed(log)
    assert segstore.check(store_dir) == []


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, DURABLE])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_fences(store_dir: Path, way: str, config: dict[str, Any], number: int) -> None:
    files = FailingFiles({"sync"}, OSError(number, os.strerror(number)), nth=0)
    log = opened(store_dir, files, config)
    files.arm()

    def durably() -> None:
        log.append(b"not durable")
        log.flush()

    with pytest.raises(StorageError, match="sync failed") as raised:
        durably()
    assert raised.value.errno == number
    for call in (log.flush, lambda: log.append(b"refused")):
        with pytest.raises(StorageError, match="fenced"):
            call()
    assert files.hits == 1
    assert flusher_of(log).recovery_point == 2
    assert [record.value for record in log.read(2)] == [b"not durable"]
    closed(log)
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 3


def test_all_that_wait_are_told_of_a_failed_sync(store_dir: Path) -> None:
    go, begun = threading.Event(), threading.Event()

    def fail(_: str, args: tuple[Any, ...]) -> None:
        begun.set()
        go.wait()
        raise OSError(errno.EIO, "EIO")

    files = FailingFiles({"sync"}, fail, nth=0)
    log = opened(store_dir, files, {})
    errors: list[int | str | None] = []

    def flush() -> None:
        try:
            log.flush()
        except StorageError as error:
            errors.append(error.errno or "fenced")

    files.arm()
    log.append(b"not durable")
    threads = in_threads(flush)
    begun.wait()
    threads += in_threads(flush, flush)
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(errors, key=str) == [errno.EIO, "fenced", "fenced"]
    assert files.hits == 1
    closed(log)
