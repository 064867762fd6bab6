"""Promise: what a flush has returned for is synced, one sync serves all that wait, and C's syncs and Python's
never overlap.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles, HookedFiles
from paused_tails import let_tails_open

import segstore
from segstore import StorageError
from segstore._native import ffi, lib, seg_tail_flush
from segstore.files import Files, Handle
from segstore.storage.log import append
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.partition import Partition
from segstore.storage.log.tail import ALL

THREADS, EACH = 6, 40
DURABLE = {"flush.messages": 1}


@pytest.fixture(params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    let_tails_open(monkeypatch, request.param == "short")
    return str(request.param)


def opened(path: Path, files: Files, config: dict[str, Any]) -> segstore.PartitionLog:
    """Return a log whose first record, which makes the files, is synced, and whose tail is lent, if it is
    ever.
    """
    store = segstore.open(path, files=files)
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for n in range(2):
        log.append(b"before %d" % n)
    log.flush()
    return log


def closed(log: segstore.PartitionLog) -> None:
    store = log.store
    assert isinstance(store, segstore.Store)
    store.close()


def flusher_of(log: segstore.PartitionLog) -> Flusher:
    return log.partition_for_write().flusher


class Slow(HookedFiles):
    """Files whose syncs wait for `go`, and note where the log ended before them: `synced` of each thread."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.under_way = self.most = self.syncs = 0
        self.synced = 0
        self.log: segstore.PartitionLog | None = None

    def sync(self, handle: Handle) -> None:
        end = 0 if self.log is None else self.log.end_offset
        self.under_way += 1
        self.syncs += 1
        self.most = max(self.most, self.under_way)
        self.begun.set()
        self.go.wait()
        super().sync(handle)
        self.synced = max(self.synced, end)
        self.under_way -= 1


def in_threads(*runs: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    return threads


# --- calls ---------------------------------------------------------------------------------------


def profiled(run: Callable[[], object]) -> tuple[list[str], list[str]]:
    """Return the functions of Python, and those of C, that `run` calls."""
    python: list[str] = []
    native: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            python.append(frame.f_code.co_name)
        if event == "c_call" and argument.__name__.startswith("seg_"):
            native.append(argument.__name__)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return python, native


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


# --- what fails ----------------------------------------------------------------------------------


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


# --- Python's syncs and C's ----------------------------------------------------------------------


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


# --- interrupts ----------------------------------------------------------------------------------


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


# --- interrupts, and a sync that fails while a tail is lent -----------------------------------------


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
