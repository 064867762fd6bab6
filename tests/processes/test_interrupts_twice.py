"""Promise: a second Ctrl-C, wherever it comes while the first is handled, fences and loses nothing."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from paused_tails import let_tails_open
from struck import struck

import segstore
from segstore import StorageError, mutex
from segstore._native import lib
from segstore.files import Files, Handle, calls
from segstore.storage.log.append import AHEAD_PLAIN
from segstore.storage.log.writer import LogWriter
from segstore.storage.segment.active import ActiveSegment
from segstore.storage.store.partition_log import PartitionLog

# A generator that is dropped is ended where an exception is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]
TOPIC = {"segment.bytes": 300, "flush.messages": 3, "index.interval.bytes": 0}
ERRORS = [
    KeyboardInterrupt,
    SystemExit,
    MemoryError,
    TimeoutError,
]  # the last: a handler of the application's


def values_from(log: PartitionLog, offset: int) -> list[bytes | None]:
    found = []
    while offset < log.end_offset:
        records = log.read(offset)
        found += [record.value for record in records]
        offset = records.next_offset
    return found


class Raising(Files):
    """While `on`, a log's write raises, and the truncate that takes it back."""

    def __init__(self) -> None:
        super().__init__()
        self.on: list[Callable[[], BaseException]] = []

    def _raise(self, handle: Handle) -> None:
        if self.on and handle.path.endswith(".log"):
            raise self.on.pop()()

    def pwrite(self, handle: Handle, data: object, position: int) -> None:
        self._raise(handle)
        super().pwrite(handle, data, position)

    def truncate(self, handle: Handle, size: int) -> None:
        self._raise(handle)
        super().truncate(handle, size)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("times", [1, 2])
def test_what_no_disk_has_refused_fences_nothing(
    store_dir: Path, error: type[BaseException], times: int
) -> None:
    files = Raising()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"before")
        for value in (b"one", b"two"):
            files.on = [error] * times
            while files.on:
                with pytest.raises(error):
                    log.append(value)
        assert log.append(b"behind") == 1
        assert values_from(log, 0) == [b"before", b"behind"]
        files.on = [error] * times
        with pytest.raises(error):
            log.append(b"last")
    with segstore.open(store_dir) as store:
        assert not store.recovered
        assert values_from(store.partition("t"), 0) == [b"before", b"behind"]


def test_a_fence_has_a_reason(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.partition_for_write().segments.fenced = MemoryError()  # which says nothing
        with pytest.raises(StorageError, match=r"is fenced for writing.*: MemoryError$"):
            log.append(b"two")
        log.partition_for_write().flusher.set_recovery_point(-1)
        with pytest.raises(StorageError, match=r"is fenced for writing.*: MemoryError$"):
            log.flush()
        log.partition_for_write().segments.fenced = None


def one(log: PartitionLog, value: bytes) -> list[bytes]:
    log.append(value)
    return [value]


def some(log: PartitionLog, value: bytes) -> list[bytes]:
    """Of several batches, so that it rolls within."""
    values = [value, value + b"'", value + b"''"]
    log.append_batch(values, batch_bytes=1)
    return values


class Tried:
    """An append that is struck, and what is there behind it, while `log` grows."""

    def __init__(self, log: PartitionLog, how: Callable[[PartitionLog, bytes], list[bytes]]) -> None:
        self.log, self.how, self.number = log, how, count()
        self.expected: list[bytes | None] = []

    def strike(self, *places: int) -> int:
        """How many interrupts came. The append is there whole, or not at all, and so are those behind it."""
        log, value = self.log, b"%d" % next(self.number)
        whole = [value] if self.how is one else [value, value + b"'", value + b"''"]
        before = len(self.expected)
        raised = struck(partial(self.how, log, value), *places)
        assert log.append(b"behind") == log.end_offset - 1
        came = values_from(log, before)
        assert came in ([b"behind"], [*whole, b"behind"]), places
        self.expected += came
        return raised


LEAST = {True: 0, False: 100}
"""Places that are struck, or pairs of them: of an append that C may make, and of one that Python makes."""


@pytest.mark.parametrize("short", LEAST)
@pytest.mark.parametrize("how", [one, some])
def test_one_at_each_place_of_an_append(
    store_dir: Path,
    how: Callable[[PartitionLog, bytes], list[bytes]],
    short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_tails_open(monkeypatch, short)
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
        tried = Tried(store.partition("t"), how)
        places = 0
        while tried.strike(places + 1) == 1:
            places += 1
        assert places > LEAST[short]
        assert segstore.check(store_dir) == []
    with segstore.open(store_dir) as store:
        assert not store.recovered
        assert values_from(store.partition("t"), 0) == tried.expected


@pytest.mark.parametrize("short", LEAST)
@pytest.mark.parametrize("how", [one, some])
def test_two_in_an_append(
    store_dir: Path,
    rng: random.Random,
    how: Callable[[PartitionLog, bytes], list[bytes]],
    short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second while the first is dealt with: at a place that is drawn, for each place of the first."""
    let_tails_open(monkeypatch, short)
    pairs = 0
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
        tried = Tried(store.partition("t"), how)
        first, raised = 0, 2
        while raised:
            first += 1
            for most in (8, 40, 160):
                raised = tried.strike(first, rng.randint(1, most))
                pairs += raised == 2
        assert short or pairs > LEAST[short]  # C leaves few places, and no second one behind some
        assert segstore.check(store_dir) == []
    with segstore.open(store_dir) as store:
        assert not store.recovered
        assert values_from(store.partition("t"), 0) == tried.expected


def test_one_at_each_place_of_taking_back(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `recall` and `_undo`, of an append that had rolled twice, sealed what was active and failed then."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
        log, undone = store.partition("t"), 0
        expected: list[bytes | None] = [b"first"]
        log.append(b"first")
        writer = log.partition_for_write().writer
        undo = LogWriter.take_back

        def interrupted(self: LogWriter) -> None:
            nonlocal undone
            monkeypatch.setattr(LogWriter, "take_back", undo)
            undone = struck(partial(undo, self), place)
            raise KeyboardInterrupt

        for place in count(1):
            long = [b"%d-%d" % (place, i) for i in range(12)]
            monkeypatch.setattr(LogWriter, "take_back", interrupted)
            monkeypatch.setattr(ActiveSegment, "append", failing_after(2))
            with pytest.raises(KeyboardInterrupt):
                log.append_batch(long, batch_bytes=1)
            monkeypatch.undo()
            if place % 2:
                writer.take_back()
            assert log.append(b"behind") == len(expected)
            expected.append(b"behind")
            assert values_from(log, 0) == expected
            if not undone:
                break
        assert place > 30
        assert segstore.check(store_dir) == []
    with segstore.open(store_dir) as store:
        assert not store.recovered
        assert values_from(store.partition("t"), 0) == expected


def failing_after(calls: int) -> Callable[..., int]:
    """The last one fails when its batches are written."""
    left, append = iter(range(calls)), ActiveSegment.append

    def failing(self: ActiveSegment, *arguments: Any) -> int:
        done = append(self, *arguments)
        if done and next(left, None) is None:
            raise ValueError("a defect, to be undone")
        return done

    return failing


def test_two_in_a_long_append(store_dir: Path, rng: random.Random) -> None:
    """No write comes late, whatever becomes of the one that ends the first."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        long = [bytes(AHEAD_PLAIN // 8)] * 10
        pairs = 0
        for _ in range(60):
            before = log.end_offset
            raised = struck(
                partial(log.append_batch, long, batch_bytes=1), rng.randint(1, 700), rng.randint(1, 40)
            )
            pairs += raised == 2
            assert log.append(b"behind") == log.end_offset - 1
            assert log.end_offset - before - 1 in (0, len(long))
            assert log.read(log.end_offset - 1)[0].value == b"behind"
            log.delete_records(log.end_offset)
        assert pairs > 5
        assert segstore.check(store_dir) == []


def test_python_s_fstat_has_no_part_in_a_roll(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.10 raises SystemError where two signals' handlers raise within one `os.fstat`."""

    def fails(fd: int) -> os.stat_result:
        raise SystemError("<class 'KeyboardInterrupt'> returned a result with an exception set")

    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
        log = store.partition("t")
        monkeypatch.setattr(os, "fstat", fails)
        for number in range(30):
            log.append(b"%d" % number)
        monkeypatch.undo()
        assert len(list((store_dir / "t-0").glob("*.log"))) > 2
        assert values_from(log, 0) == [b"%d" % number for number in range(30)]


def test_python_s_status_calls_have_no_part_in_an_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two signals within `os.path.realpath`, which asks `os.lstat`, made an open raise SystemError."""

    def fails(*_: object, **__: object) -> os.stat_result:
        raise SystemError("<class 'KeyboardInterrupt'> returned a result with an exception set")

    def use(directory: Path) -> None:
        with segstore.open(directory / "store") as store:
            store.create_topic("t")
            store.partition("t").append(b"one")
            with segstore.open(directory / "store", mode="r") as reader:
                assert values_from(reader.partition("t"), 0) == [b"one"]
            segstore.copy(directory / "store", directory / "copy")
        with segstore.open(directory / "store") as store:
            assert values_from(store.partition("t"), 0) == [b"one"]

    for name in ("imports", "again"):
        (tmp_path / name).mkdir()
    use(tmp_path / "imports")  # modules are found by such calls
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, fails)
    use(tmp_path / "again")
    monkeypatch.undo()
    assert segstore.check(tmp_path / "again" / "store") == []
    assert segstore.check(tmp_path / "again" / "copy") == []


@pytest.mark.parametrize("left", ["token", "publishing"])
def test_a_lock_that_an_interrupt_left_taken(store_dir: Path, left: str) -> None:
    """CPython 3.10 leaves a `with` block open where a second interrupt comes with the first one raised."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"flush.ms": 1})
        log = store.partition("t")
        log.append(b"before")
        partition = log.partition_for_write()
        lock = partition.token if left == "token" else partition.visible.publishing
        lock.acquire()  # no `with` block lets it go
        assert log.append(b"after") == 1
        other = threading.Thread(target=log.append, args=(b"from another thread",))
        other.start()
        other.join(60)
        assert log.end_offset == 3
        lock.acquire()  # the scheduler's thread may wait for it, and `close` for that


def test_a_lock_that_another_thread_waits_for_with_one_that_this_thread_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As above; the thread that has left the first lock taken waits for the second one."""
    monkeypatch.setattr(mutex, "LEAVES_OPEN", True)
    left, wanted, held = mutex.Mutex(), mutex.Mutex(), threading.Event()

    def interrupted() -> None:
        left.__enter__()

    def other() -> None:
        with wanted:
            held.set()
            with left:
                pass

    interrupted()
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    held.wait(60)
    ours = mutex.Mutex()
    with ours, wanted:
        assert ours.owned
        assert not left.owned
    thread.join(60)
    assert not thread.is_alive()


class Handled:
    """In place of the module `sys` for `mutex`: a handler looks for left locks as one is taken."""

    def __init__(self) -> None:
        self.times = 0

    def _getframe(self, depth: int) -> FrameType:
        if sys._getframe(1).f_code is mutex.Mutex.__enter__.__code__:
            self.times += 1
            mutex._let_go_of_dead()
        return sys._getframe(depth + 1)


def test_a_lock_that_a_handler_comes_into_the_taking_of_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.10: the handler's append waited for a lock, and let go of the one that `send` was taking."""
    monkeypatch.setattr(mutex, "LEAVES_OPEN", True)
    handled = Handled()
    monkeypatch.setattr(mutex, "sys", handled)
    lock = mutex.Mutex()
    with lock:
        assert lock.owned
    assert handled.times == 1


def test_a_lock_that_a_generator_holds_stays_taken_while_it_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython 3.10: the frame of a context manager that is a generator is not on the stack within its block,
    and so a thread that waited for another lock there let go of the one that the generator has.
    """
    monkeypatch.setattr(mutex, "LEAVES_OPEN", True)
    lock, wanted = mutex.Mutex(), mutex.Mutex()
    held, looked, let_go = threading.Event(), threading.Event(), mutex._let_go_of_dead

    @contextmanager
    def holding() -> Iterator[None]:
        with lock:
            yield

    def other() -> None:
        with wanted:
            held.set()
            looked.wait(60)

    def look() -> None:
        let_go()
        looked.set()

    monkeypatch.setattr(mutex, "_let_go_of_dead", look)
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    held.wait(60)
    with holding(), wanted:
        assert looked.is_set()
        assert lock.owned
    thread.join(60)
    assert not lock.owned


class Failing:
    """The C helper, of which a sync fails once, and an interrupt comes as it returns."""

    def __init__(self) -> None:
        self.left = 1

    def __getattr__(self, name: str) -> object:
        return getattr(lib, name)

    def seg_fdatasync(self, fd: int, failed: Any) -> int:
        if not self.left:
            return int(lib.seg_fdatasync(fd, failed))
        self.left -= 1
        assert lib.seg_fdatasync(-1, failed) == -errno.EBADF
        raise KeyboardInterrupt


def test_an_interrupt_as_a_sync_fails_hides_nothing(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of a failed write once: the next sync would be taken for proof of what is lost."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        monkeypatch.setattr(calls, "lib", Failing())
        with pytest.raises(KeyboardInterrupt):
            log.flush()
        with pytest.raises(StorageError, match="sync failed"):
            log.flush()
        with pytest.raises(StorageError, match="fenced"):
            log.append(b"y")
        monkeypatch.undo()
