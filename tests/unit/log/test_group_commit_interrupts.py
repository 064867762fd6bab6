"""Promise: an append or a flush that an interrupt or a deletion meets while it waits for a sync is durable if
it returns, and holds up nobody.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles, HookedFiles
from group_commits import DURABLE, Slow, closed, flusher_of, in_threads, opened, profiled
from group_commits import way as way

import segstore
from segstore import StorageError
from segstore._native import lib
from segstore.storage.log import append
from segstore.storage.log.partition import Partition

# --- interrupts -----------------------------------------------------------------------------------


@pytest.fixture
def interrupts() -> Iterator[Callable[[], None]]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_append_whose_wait_a_signal_has_ended_is_durable_when_it_returns(store_dir: Path) -> None:
    """C leaves the rest of the wait to Python."""
    files = Slow()
    files.log = log = opened(store_dir, files, DURABLE)
    files.go.clear()
    files.begun.clear()
    threads = in_threads(partial(log.append, b"of the first sync"))
    files.begun.wait()

    def go_on(_signal: int, _frame: object) -> None:
        files.go.set()

    before = signal.signal(signal.SIGALRM, go_on)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        offset = log.append(b"of the second")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert files.synced > offset
    assert flusher_of(log).recovery_point > offset
    threads[0].join()
    closed(log)


@pytest.mark.parametrize("n", [1, 3])
def test_a_flush_that_c_leaves_is_made_though_the_tail_is_opened_anew_meanwhile(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """C could not sync, since another thread paused the tail, or the sync has failed; the other thread opens
    it before the append comes back to Python.
    """
    number = errno.EIO
    files = FailingFiles({"sync"}, OSError(number, os.strerror(number)), nth=0)
    log = opened(store_dir, files, DURABLE)
    partition = log.partition_for_write()
    calls = "seg_tail_append", "seg_list_append"
    for name in calls:
        monkeypatch.setattr(append, name, partial(_then_opened, getattr(append, name), partition))
    files.arm()
    with pytest.raises(StorageError, match="sync failed"):
        log.append(b"not durable") if n == 1 else log.append_batch([b"not durable"] * n)
    assert flusher_of(log).recovery_point == 2
    assert log.end_offset == 2 + n
    closed(log)


def _then_opened(call: Callable[..., int], partition: Partition, *arguments: Any) -> int:
    """Return what a call of C gives, behind which another append opens the tail anew."""
    answer = call(*arguments)
    with partition.token:
        partition.tail.open(partition.validator)
    assert partition.tail.native.is_open
    return answer


def test_a_flush_whose_wait_a_signal_has_ended_waits_on(store_dir: Path) -> None:
    """It is one call of C all the same."""
    files = Slow()
    log = opened(store_dir, files, {})
    log.append(b"waited for")
    files.go.clear()
    files.begun.clear()
    threads = in_threads(log.flush)
    files.begun.wait()
    syncs, seen = files.syncs, list[int]()

    def look(_signal: int, _frame: object) -> None:
        seen.append(flusher_of(log).recovery_point)
        if len(seen) == 2:
            files.go.set()

    before = signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        _, native = profiled(log.flush)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    threads[0].join()
    assert seen[:2] == [2, 2]
    assert [name for name in native if name == "seg_tail_flush"] == ["seg_tail_flush"]
    assert (flusher_of(log).recovery_point, files.syncs) == (3, syncs)
    closed(log)


def test_an_interrupt_of_who_waits(store_dir: Path, way: str, interrupts: Callable[[], None]) -> None:
    files = Slow()
    files.log = log = opened(store_dir, files, {})
    log.append(b"waited for")
    files.go.clear()
    files.begun.clear()
    threads = in_threads(log.flush)
    files.begun.wait()
    threading.Timer(0.1, interrupts).start()
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    files.go.set()
    threads[0].join()
    log.append(b"afterwards")
    log.flush()
    assert flusher_of(log).recovery_point == 4
    closed(log)


# --- interrupts, and a sync that fails while a tail is lent ---------------------------------------


def test_an_interrupted_wait_for_a_sync_of_c_does_not_hold_up_later_syncs(store_dir: Path) -> None:
    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    log = opened(store_dir, HookedFiles(), {})
    flusher = flusher_of(log)
    flusher._commit.word += 1  # as while C syncs
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(KeyboardInterrupt):
            flusher.without_syncs(lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert flusher._commit.closed == 0
    flusher._commit.word += 1
    closed(log)


def test_a_tail_that_is_being_lent_learns_of_names_that_are_not_synced(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(store_dir, HookedFiles(), {})
    flusher, tail = flusher_of(log), log.partition_for_write().tail
    asked = flusher._needs_log_only

    asked_of: list[bool] = []

    def changed_then(view: Any) -> bool:
        needed = asked(view)
        asked_of.append(needed)
        flusher.names_changed()  # another thread's sync of the directory fails at this moment
        return needed

    monkeypatch.setattr(flusher, "_needs_log_only", changed_then)
    with tail.token:
        """The tail is paused."""
    log.append(b"opens the tail")
    assert tail.native.is_open
    assert (asked_of, lib.seg_tail_syncs(tail.native.c)) == ([True], 0)
    closed(log)


def test_a_partition_that_is_deleted_while_it_is_synced_is_no_failed_disk(store_dir: Path) -> None:
    """Its directory gets another name, so the sync of its names finds none. That fenced the log, and took the
    directory of a replicated store offline, from which a partition moved away.
    """

    class Deleted(HookedFiles):
        armed = False

        def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.armed and name == "sync_dir":
                self.armed = False
                deleting = threading.Thread(target=store.delete_topic, args=("t",))
                deleting.start()
                deleting.join()

    files = Deleted()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"in a file whose name is not synced, and no roll has it synced in the background")
        partition = log.partition_for_write()
        files.armed = True
        with pytest.raises(segstore.StoreClosedError):
            partition.flusher.flush(log.end_offset)
        assert (files.armed, partition.flusher.failed, partition.segments.fenced) == (False, False, None)
